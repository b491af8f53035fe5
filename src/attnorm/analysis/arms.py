"""Run folders as the arms of a comparison: which runs differ in nothing but the seed, and in what the arms differ.

Everything is read from files as plain data. Nothing that a run names is imported, so the folders may come from anyone.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from glob import glob, has_magic
from math import isfinite
from pathlib import Path
from typing import Any

from attnorm.errors import ConfigError, Problem, RunError
from attnorm.imports import nearest
from attnorm.run.folder import EVENTS, TUNE, RunState, find_folder, folders_in
from attnorm.run.run import Run
from attnorm.sweeps.state import Journal

Places = str | Path | Sequence[str | Path]
DEFAULT_BASELINE = "softmax"
MAX_LISTED = 3  # keys in which arms may differ before labels name only those that are needed to tell them apart


@dataclass(frozen=True)
class Arm:
    """Runs that differ in nothing but the seed.

    label: the label of their attention; if other settings distinguish them from another arm with the same attention,
    these follow, as in "softmax (model.n_heads=4)". Options of the normalizer are named without the group, as in
    "em_routing (n_iters=3)". runs: one run per seed. superseded: finished runs that do not count, because a newer
    one has the same seed.
    """

    label: str
    runs: tuple[Run, ...]
    superseded: tuple[Run, ...] = ()

    @property
    def finished(self) -> dict[int, Run]:
        """The finished runs by seed."""
        return {run.seed: run for run in self.runs if run.state is RunState.FINISHED}

    @property
    def settings(self) -> dict[str, Any]:
        """The flat settings that all its runs share."""
        return self.runs[0].settings

    @property
    def task(self) -> str:
        """The name of the task."""
        return self.settings["task.name"]


def find_runs(places: Iterable[str | Path], unreadable: dict[Path, RunError] | None = None) -> list[Run]:
    """The runs in some places, each once: run folders, folders with runs below them, such as that of a sweep, or
    patterns.

    unreadable: receives the run folders whose run.json cannot be read, with the reasons.

    Raises RunError for a place without runs, and, without `unreadable`, for a run.json that cannot be read.
    """
    folders: dict[Path, Path] = {}
    for place in places:
        here = run_folders(place)
        if not here:
            if not any(map(Path.exists, expanded(place))):
                raise RunError(f"{place}: no such folder")
            explained = f"a run folder has a run.json, and those in {TUNE}/ of a sweep folder are not compared"
            raise RunError(f"{place}: no run folder there; {explained}")
        for folder in here:  # which may be spelled in different ways
            folders.setdefault(folder.resolve(), folder)
    runs = []
    for folder in folders.values():
        run = Run(folder)
        try:
            _ = run.config  # RunError
        except RunError as error:
            if unreadable is None:
                raise
            unreadable[folder] = error
        else:
            runs.append(run)
    return runs


def run_folders(pattern: str | Path) -> list[Path]:
    """The run folders in one place, or in those that a pattern matches, without those that tune.

    The runs of a sweep are in the order in which they were typed.
    """
    folders: list[Path] = []
    for root in expanded(pattern):
        typed = [event["name"] for event in Journal(root).added()]
        found = [folder for folder in folders_in(root) if not tunes(folder)]
        folders += sorted(found, key=lambda folder: typed.index(folder.name) if folder.name in typed else len(typed))
    return folders


def tunes(folder: Path) -> bool:
    """Whether a run is one that tunes its arm in a sweep."""
    aside = folder.absolute().parent
    return aside.name == TUNE and (aside.parent / EVENTS).is_file()


def expanded(pattern: str | Path) -> list[Path]:
    """The folders of runs and sweeps that a pattern matches, or the one that is meant, see `find_folder`."""
    return list(map(partial(find_folder, sweeps=True), matching(pattern)))


def matching(pattern: str | Path) -> list[Path]:
    """The paths that a pattern matches, or the path itself if it exists or is not a pattern."""
    if Path(pattern).exists() or not has_magic(str(pattern)):
        return [Path(pattern)]
    return list(map(Path, sorted(glob(str(pattern), recursive=True))))


def arms_of(runs: Sequence[Run]) -> list[Arm]:
    """Groups runs by their settings, in the order in which they are given.

    If several runs have the same settings and the same seed, the finished one counts, and of several the newest.
    """
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[repr(sorted(run.settings.items(), key=lambda item: item[0]))].append(run)
    members = []
    for group in groups.values():
        newest_last = sorted(group, key=lambda run: (run.state is RunState.FINISHED, run.record_file.stat().st_mtime))
        best = {run.seed: run for run in newest_last}
        members.append(tuple(best[seed] for seed in sorted(best)))
    labels = labels_of([(counting[0].label, counting[0].settings) for counting in members])
    return [
        Arm(label, counting, tuple(run for run in group if run.state is RunState.FINISHED and run not in counting))
        for label, counting, group in zip(labels, members, groups.values(), strict=True)
    ]


def baseline_of(arms: Sequence[Arm], label: str | None) -> Arm:
    """The arm with a label; without one, softmax, or else the first arm. Raises ConfigError for an unknown label.

    Without a label, an arm of which every run has ended early is chosen only if there is no other.
    """
    labels = [arm.label for arm in arms]
    if label is None:
        usable = [arm.label for arm in arms if not all(run.state.is_unfinished for run in arm.runs)] or labels
        label = DEFAULT_BASELINE if DEFAULT_BASELINE in usable else usable[0]
    if label not in labels:
        message = f"there is neither such a folder nor such an arm; the arms are: {', '.join(labels)}"
        raise ConfigError([Problem("baseline", f"{message}.{nearest(label, labels)}", label)])
    return arms[labels.index(label)]


def labels_of(arms: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """A label for each arm, given its attention and its settings: its attention, and what tells it from other arms of
    the task with that attention."""
    labels = []
    for attention, settings in arms:
        task = settings["task.name"]
        alike = [other for label, other in arms if (label, other["task.name"]) == (attention, task)]
        prefix = f"attention.options.{attention}."
        keys = [key for key in distinguishing(alike) if key in settings]
        more = [f"{key.removeprefix(prefix)}={_shown(key, settings[key])}" for key in keys]
        labels.append(f"{attention} ({', '.join(more)})" if more else attention)
    names = [(settings["task.name"], label) for (_, settings), label in zip(arms, labels, strict=True)]
    # classes of one name in different modules look alike
    numbers = [f" [{names[:n].count(name) + 1}]" if names.count(name) > 1 else "" for n, name in enumerate(names)]
    return [label + number for label, number in zip(labels, numbers, strict=True)]


def distinguishing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys that labels name: those in which some settings differ, or, if these are many, as few as are enough.

    Keys of attention sites that only some models have are left out, because they follow from the model. They are kept
    if the settings could not be told apart without them.

    Of many keys, the one that tells most apart is chosen first. Of keys that tell equally many apart, a class comes
    before its options, and then the one with the shortest values.
    """
    keys = varying(settings)
    of_sites = [key for key in keys if is_of_normalizer(key) and not key.startswith("attention.options.")]
    common = [key for key in keys if key not in of_sites or all(key in each for each in settings)]
    kept = common if number_of_kinds(settings, common) == len(settings) else keys
    if len(kept) <= MAX_LISTED:
        return kept

    def length(key: str) -> tuple[bool, int]:
        return not key.endswith("_target_"), max(len(str(_shown(key, each.get(key, "")))) for each in settings)

    ordered, chosen, kinds = sorted(kept, key=length), list[str](), number_of_kinds(settings, kept)
    while number_of_kinds(settings, chosen) < kinds:
        chosen.append(max(ordered, key=lambda key: number_of_kinds(settings, [*chosen, key])))
    return sorted(chosen)


def number_of_kinds(settings: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> int:
    """How many of the settings these keys tell apart."""
    return len({repr([each.get(key) for key in keys]) for each in settings})


def _shown(key: str, value: object) -> object:
    """A value as a label shows it: a class without its module."""
    return str(value).rpartition(".")[2] if key.endswith("_target_") else value


def varying(settings: Iterable[Mapping[str, Any]]) -> list[str]:
    """The keys in which some settings differ, sorted."""
    first, *others = settings
    absent = object()
    keys = sorted({key for each in (first, *others) for key in each})
    return [key for key in keys if any(each.get(key, absent) != first.get(key, absent) for each in others)]


def differing(arms: Sequence[Arm]) -> list[str]:
    """The settings in which arms differ, sorted. An empty mapping only says that no options are set."""
    keys = varying(arm.settings for arm in arms)
    return [key for key in keys if any(arm.settings.get(key, {}) != {} for arm in arms)]


def is_of_normalizer(key: str) -> bool:
    """Whether a setting is one of the attention."""
    return key.startswith("attention.")


def as_number(value: object) -> float | None:
    """A value of a file that anyone may have written, if it is a finite number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value):
        return float(value)
    return None


def numbers_of(record: object) -> dict[str, float]:
    """The finite numbers of a JSON object, by name."""
    items = record.items() if isinstance(record, dict) else ()
    return {str(name): number for name, value in items if (number := as_number(value)) is not None}
