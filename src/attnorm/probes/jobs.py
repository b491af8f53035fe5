"""The jobs of a comparison on probes: each trains one ensemble, and leaves its result in a file."""

import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch

from attnorm.attention.measures import column_mass, normalized_entropy
from attnorm.files import replacing
from attnorm.imports import PATH, find, package_of, short_name, texts
from attnorm.probes import BENCHMARKS, PROBES
from attnorm.probes.arm import Arm
from attnorm.probes.base import SITES, Probe
from attnorm.probes.ensemble import Trained, batches, evaluate, train
from attnorm.source_code import digest_of_attnorm, own_modules, stated

NAMES = PROBES | BENCHMARKS
MEASURED = 100  # examples at the size of training on which the attention weights are measured


@dataclass(frozen=True)
class Cell:
    """A probe at one dose. name: a key of NAMES, or the path of a class. title: "hub 0.9"."""

    name: str
    dose: str = ""

    @property
    def short(self) -> str:
        """The name of the probe without the module of an own class."""
        return short_name(self.name)

    @property
    def title(self) -> str:
        return f"{self.short} {self.dose}".strip()

    def probe(self) -> Probe:
        """Builds the probe. Raises ValueError for an unknown name, and for sizes or a site that cannot be."""
        cls = find("probe", self.name, NAMES, Probe)
        probe: Probe = cls(**cls.doses[self.dose])
        if probe.site not in SITES:
            raise ValueError(f"{self.short}.site={probe.site!r}: allowed: {', '.join(SITES)}")
        if probe.size not in probe.test_sizes:
            raise ValueError(f"{self.short}.test_sizes={tuple(probe.test_sizes)}: must contain size={probe.size}")
        return probe


def cells_of(name: str) -> list[Cell]:
    """All doses of a probe. Raises ValueError for an unknown name, and for doses of another form. "module:Class" and
    "module.Class" are the same."""
    doses = find("probe", name, NAMES, Probe).doses
    if not (isinstance(doses, Mapping) and doses and all(isinstance(dose, str) for dose in doses)):
        example = "{'4': {'queries': 4}}"
        raise ValueError(f"{name}.doses={doses!r}: expected the options of each dose by its name, as in {example}")
    return [Cell(name.replace(":", "."), dose) for dose in doses]


def cells_named(name: str) -> list[Cell]:
    """The cells of "demand", "demand:4", "package.module.Class" or "package.module.Class:4"."""
    path, colon, dose = name.rpartition(":")
    if not colon:
        return cells_of(name)
    try:
        doses = {cell.dose: cell for cell in cells_of(path)}
    except ValueError:
        if PATH.fullmatch(name):  # "package.module:Class"
            return cells_of(name)
        raise
    if dose not in doses:
        allowed = f"allowed: {', '.join(doses)}" if any(doses) else "it has none"
        raise ValueError(f"{name}: {path} has no dose {dose!r}; {allowed}")
    return [doses[dose]]


@dataclass(frozen=True)
class ProbeJob:
    """Trains an arm on a cell with all pairs of the seeds and the rates.

    tune: whether only the selection data are scored, to choose a learning rate; otherwise the test sets are.
    updates: the length of training.
    """

    cell: Cell
    arm: str
    seeds: tuple[int, ...]
    rates: tuple[float, ...]
    tune: bool
    options: Mapping[str, Any]
    updates: int

    @property
    def stem(self) -> str:
        """The name of the result's files in the folder, without the suffix. It ends with a hash of `identity`."""
        rates = "_".join(f"{rate:g}" for rate in self.rates)
        title = f"{self.cell.title}/{Arm(self.arm, self.options).short}".replace(" ", "-")
        return f"{title}.{'tune' if self.tune else 'test'}_{rates}.{_digest(json.dumps(self.identity()), 8)}"

    def identity(self) -> dict[str, Any]:
        """What the result depends on. Own classes, and those that they inherit from, are known by their source."""
        own_classes = [cls for cls in self.classes() if cls.__module__.split(".")[0] not in LIBRARIES]
        names = {f"{cls.__module__}.{cls.__qualname__}": cls for cls in own_classes}
        sources = {name: _digest(_source_of(names[name]), 16) for name in sorted(names)}
        fields = json.loads(json.dumps(asdict(self)))
        return {**fields, "sources": sources, "attnorm": version("attnorm")}

    def code(self) -> dict[str, str]:
        """The part of `code_now` on which the result depends: own modules only if the job names an own class."""
        named = (self.cell.name, self.arm, *(text for _, text in texts(self.options)))
        is_own = any({".", ":"} & {*name} and package_of(name) != "attnorm" for name in named)
        return {name: digest for name, digest in code_now().items() if is_own or package_of(name) == "attnorm"}

    def classes(self) -> list[type]:
        """The classes of the probe and of the parts of the normalizer, such as members of mix, with their bases."""
        cls = find("probe", self.cell.name, NAMES, Probe)
        parts = {type(part) for part in Arm(self.arm, self.options).normalizer(1, 1).modules()}
        return [base for part in (cls, *parts) for base in part.__mro__]


def code_now() -> dict[str, str]:
    """The digests of the code on which results may depend: of packages of attnorm, and of own modules, by name.

    They stand beside the identity of a job, not in it: a result of other code is replaced.
    """
    return {f"attnorm.{name}": digest_of_attnorm(name) for name in ("attention", "probes")} | own_modules()


LIBRARIES = ("attnorm", "torch", "builtins", "abc", "typing")  # packages whose classes are not own ones


def _digest(text: str, digits: int) -> str:
    """The first digits of a hash of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def _source_of(cls: type) -> str:
    """The text of the module of a class; its name if the text is not known."""
    try:
        return inspect.getsource(inspect.getmodule(cls) or cls)
    except (OSError, TypeError):
        return cls.__qualname__


@dataclass(frozen=True)
class ProbeResult:
    """What a job has found. Arrays have one row per member: the seeds at the first rate, then those at the next.

    curve:     the score on the selection data in the course of training, (E, CHECKS).
    scores:    for each size, the score of every test example, (E, examples).
    scalars:   the learned scalars, (E,) each. measures: of the attention weights, (E,) each.
    diverged:  the number of members whose outputs were not finite. seconds: CPU time of the training, of all members.
    code:      see `ProbeJob.code`. The results of the atlas (experiments/atlas/scores) have none.
    """

    curve: np.ndarray
    scores: dict[int, np.ndarray]
    scalars: dict[str, np.ndarray]
    measures: dict[str, np.ndarray]
    diverged: int
    seconds: float
    code: dict[str, str] = field(default_factory=dict)

    @property
    def all_diverged(self) -> bool:
        """Whether the scores are only those of outputs that were not finite, which count as 0."""
        return self.diverged == len(self.curve)


def run(job: ProbeJob) -> ProbeResult:
    """Trains the ensemble of a job and scores it."""
    probe = job.cell.probe()
    arm = Arm(job.arm, job.options)
    seeds, rates = list(job.seeds) * len(job.rates), [rate for rate in job.rates for _ in job.seeds]
    members, scores = len(job.seeds) * len(job.rates), {}
    diverged, measures = torch.zeros(members, dtype=torch.bool), dict[str, np.ndarray]()
    with torch.random.fork_rng(devices=[]):  # for normalizers that draw random numbers themselves
        torch.manual_seed(int(_digest(job.stem, 8), 16))
        trained = train(probe, arm, seeds, rates, job.updates)
        if not job.tune:
            for size in probe.test_sizes:
                of_size, lost = evaluate(probe, trained.model, members, "test", size, probe.test_examples)
                scores[size], diverged = of_size.numpy(), diverged | lost
            measures = measure(probe, trained, members)
    return ProbeResult(
        curve=trained.curve.numpy(),
        scores=scores,
        scalars={name: value.numpy() for name, value in trained.learned_scalars().items()},
        measures=measures,
        diverged=int(diverged.sum()),
        seconds=trained.seconds,
        code=job.code(),
    )


@torch.no_grad()
def measure(probe: Probe, trained: Trained, members: int) -> dict[str, np.ndarray]:
    """Entropy and column mass of the weights on MEASURED examples, and the mean weight on wanted keys, (E,) each."""
    model: Any = trained.model.eval()
    if not hasattr(model, "weights"):
        return {}
    [batch] = batches(probe, "test", probe.size, MEASURED, members, pieces=1)
    weights = model.weights(batch)  # (E, B, N, M)
    allowed = None
    if probe.site == "causal":
        allowed = torch.ones(weights.shape[-2:], dtype=torch.bool).tril()
    heads = weights.transpose(0, 1)  # (B, E, N, M)
    of_heads = {"entropy": normalized_entropy(heads, allowed), "column_mass_min": column_mass(heads, allowed)[0]}
    measures = {name: value.nanmean(0).numpy() for name, value in of_heads.items()}
    if (wanted := getattr(batch, "wanted", None)) is not None:
        on_wanted = weights.gather(-1, wanted.unsqueeze(-1)).squeeze(-1)
        measures["wanted"] = on_wanted.flatten(1).mean(1).numpy()
        # the whole mass on keys that some query wants, per query: its limit is K / M if all columns have equal mass
        is_wanted = torch.zeros_like(weights[..., 0, :]).scatter(-1, wanted, 1.0)
        measures["mass_on_wanted"] = (weights.mean(-2) * is_wanted).sum(-1).mean(1).numpy()
        measures["share_wanted"] = is_wanted.mean((-2, -1)).numpy()
    return measures


def save(job: ProbeJob, result: ProbeResult, folder: Path) -> None:
    """Writes a result, atomically: <stem>.npz."""
    path = folder / f"{job.stem}.npz"
    numbers = {"diverged": result.diverged, "seconds": result.seconds}
    about = {"job": job.identity(), **stated(), "modules": result.code, **numbers}
    arrays: dict[str, Any] = {"curve": result.curve.astype(np.float32)}
    arrays |= {f"scores/{size}": scores.astype(np.float32) for size, scores in result.scores.items()}
    arrays |= {f"scalars/{name}": value for name, value in result.scalars.items()}
    arrays |= {f"measures/{name}": value for name, value in result.measures.items()}
    with replacing(path) as unfinished, open(unfinished, "wb") as file:
        np.savez(file, about=np.array(json.dumps(about)), **arrays)


def load(job: ProbeJob, folder: Path) -> ProbeResult | None:
    """The result of a job, if the folder has it: one of the same seeds, rates, options, updates and sources. A damaged
    file is as good as none."""
    groups: dict[str, Any] = {"scores": {}, "scalars": {}, "measures": {}}
    try:
        with np.load(folder / f"{job.stem}.npz") as file:
            about = json.loads(str(file["about"]))
            for name in file.files:
                group, _, key = name.partition("/")
                if key:
                    groups[group][int(key) if group == "scores" else key] = file[name]
            numbers = {name: about[name] for name in ("diverged", "seconds")}
            return ProbeResult(file["curve"], **groups, **numbers, code=about.get("modules", {}))
    except (OSError, EOFError, KeyError, ValueError, BadZipFile):
        return None
