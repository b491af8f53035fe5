"""Were the runs made in the same way? What differs in their code, versions, devices and data, besides the settings."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnorm.analysis.arms import Arm
from attnorm.data.readers.text import digest
from attnorm.errors import RunError
from attnorm.run.record import modules_in
from attnorm.run.run import Run

if TYPE_CHECKING:
    from attnorm.analysis.scores import ExampleTable

LISTED = 3  # runs or values that a sentence names
DATA_KEYS = ("data.", "tokenizer.", "task.", "model.")  # settings on which the fingerprints of training data depend


def doubts_of(arms: Sequence[Arm]) -> list[str]:
    """What makes a comparison of these arms doubtful, as sentences."""
    older = [f"{arm.label}, seed {run.seed} ({run.folder})" for arm in arms for run in arm.superseded]
    notes = [*environment_notes(arms), *training_data_notes(arms)]
    if older:
        notes.append(f"Of several finished runs with one seed, the newest counts. Left out: {some(older)}.")
    return notes


def check_code(arms: Sequence[Arm]) -> None:
    """Raises RunError if finished runs were trained with different versions of an own module."""
    versions: dict[str, dict[str, str]] = defaultdict(dict)  # module -> digest -> a run that has it
    for arm in arms:
        for run in arm.finished.values():
            for module, digests in modules_in(run.recorded).items():
                for version in digests:
                    versions[module].setdefault(version, f"{arm.label}, seed {run.seed} ({run.folder})")
    for module, runs in versions.items():
        if len(runs) > 1:
            (one, first), (other, second), *_ = runs.items()
            raise RunError(
                f"{module} was edited between these runs, so their results are not mixed: {first} was trained with the "
                f"version {one}, and {second} with {other} (SHA-256 of the file). Compare runs of one version, or "
                "train the others again"
            )


def environment_notes(arms: Sequence[Arm]) -> list[str]:
    """What differs between the runs in code, versions and devices."""
    origins: dict[str, Counter[str]] = defaultdict(Counter)
    for arm in arms:
        for run in arm.runs:
            for name, value in origin_of(run.recorded).items():
                origins[name][value] += 1
    notes = []
    for name, values in origins.items():
        if len(values) > 1:
            listed = "; ".join(f"{value} ({count} runs)" for value, count in values.most_common(4))
            notes.append(f"The runs differ in {name}: {listed}.")
    if any("with uncommitted changes" in value for value in origins.get("the commit of the code", ())):
        notes.append("Some runs were made with uncommitted changes to the code.")
    return notes


def origin_of(record: Mapping[str, Any]) -> dict[str, str]:
    """What a reader of the record of a run wants to be equal between runs, in words."""
    origin = {}
    git, code, packages, gpus = (record.get(name) for name in ("commit", "code", "versions", "gpus"))
    version = f", version {code}" if isinstance(code, str) else ""
    if isinstance(git, dict) and git.get("commit"):
        changed = f" with uncommitted changes{version}" if git.get("changed") else ""
        origin["the commit of the code"] = f"{str(git['commit'])[:10]}{changed}"
    elif code:
        origin["the commit of the code"] = f"an installed package{version}"
    if isinstance(packages, dict):
        for name in ("torch", "attnorm"):
            if name in packages:
                origin[f"the version of {name}"] = str(packages[name])
    if isinstance(gpus, list):
        origin["the device"] = ", ".join(map(str, gpus)) or "CPU"
    return origin


def device_of(run: Run) -> str:
    """The machine that trained a run, as a text: speeds are compared only where it is equal."""
    known = run.recorded
    system = known.get("versions", {}).get("platform")
    names = known.get("gpus") or [known.get("cpu"), system, known.get("cpu_threads")]
    return ", ".join(str(name) for name in names if name) if isinstance(names, list) else ""


def training_data_notes(arms: Sequence[Arm]) -> list[str]:
    """Whether runs with the same settings were trained on different data, because files changed under their paths."""
    seen: dict[str, dict[str, str]] = defaultdict(dict)  # settings -> fingerprint -> a run that has it
    for arm in arms:
        settings = repr(sorted((key, value) for key, value in arm.settings.items() if key.startswith(DATA_KEYS)))
        for run in arm.finished.values():
            recorded = run.summary.get("data_fingerprints")
            if isinstance(recorded, dict) and "train" in recorded:
                seen[settings].setdefault(str(recorded["train"]), f"{arm.label}, seed {run.seed}")
    return [
        "The training data have changed between runs, although their settings are the same: "
        f"{some(fingerprints.values())} were trained on different data."
        for fingerprints in seen.values()
        if len(fingerprints) > 1
    ]


def check_inputs(tables: "Mapping[str, ExampleTable]", ids: Sequence[str]) -> list[str]:
    """Raises RunError if runs were given other inputs or have other references for the same examples.

    tables: by the name of the run. Returns a sentence if some tables have no hashes of the inputs.
    """
    names = list(tables)
    references = {name: digest(table.texts("reference", ids)) for name, table in tables.items()}
    if other := next((name for name in names if references[name] != references[names[0]]), None):
        raise RunError(f"{names[0]} and {other} were scored on different data: the same ids have different references")
    hashes = {name: hashed for name, table in tables.items() if (hashed := table.input_hashes(ids)) is not None}
    images = {name: hashed for name, (_, hashed) in hashes.items() if hashed is not None}
    for part, known in (("inputs", {name: texts for name, (texts, _) in hashes.items()}), ("images", images)):
        first = next(iter(known), "")
        for name, values in known.items():
            differing = sum(one != other for one, other in zip(values, known[first], strict=True))
            if differing:
                what = f"{differing:,} of {len(ids):,} examples with the same id and reference have different {part}"
                raise RunError(f"{first} and {name} were scored on different data: {what}")
    unknown = [name for name in names if name not in hashes]
    if not unknown:
        return []
    why = f"the predictions of {some(unknown)} have no hashes of them"
    return [f"It cannot be checked whether all runs were given the same inputs: {why}."]


def some(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    listed = list(names)
    more = [f"{len(listed) - LISTED} more"] if len(listed) > LISTED else []
    *most, last = [*listed[:LISTED], *more]
    return f"{', '.join(most)} and {last}" if most else last
