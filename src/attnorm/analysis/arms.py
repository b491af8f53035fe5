"""Run folders as the arms of a comparison: which runs differ in nothing but the seed, and in what the arms differ.

Everything is read from files as plain data. Nothing that a run names is imported, so the folders may come from anyone.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from math import isfinite
from pathlib import Path
from typing import Any

from attnorm.errors import RunError
from attnorm.run.folder import COST, EVENTS, TUNE, RunState, folders_in, opened
from attnorm.run.run import Run

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


def find_runs(paths: Iterable[str | Path]) -> list[Run]:
    """The runs in some places: run folders, folders with runs below them, such as that of a sweep, or patterns.

    Raises RunError for a place without runs, and for a run folder whose config.yaml cannot be read.
    """
    folders: list[Path] = []
    for path in paths:
        found = run_folders(path)
        if not found:
            raise no_runs(path)
        folders += found
    runs = [Run(folder) for folder in each_once(folders)]
    for run in runs:
        _ = run.config  # RunError
    return runs


def each_once(folders: Iterable[Path]) -> list[Path]:
    """The folders without repetitions, which may be spelled in different ways."""
    found: dict[Path, Path] = {}
    for folder in folders:
        found.setdefault(folder.resolve(), folder)
    return [*found.values()]


def no_runs(place: str | Path) -> RunError:
    """The error for a place without runs."""
    return RunError(
        f"{place}: no run folder there; a run folder has a config.yaml, and those in {TUNE}/ and {COST}/ of a sweep "
        "folder are not compared"
    )


def run_folders(place: str | Path) -> list[Path]:
    """The run folders in one place, without those that tune or measure."""
    folders: list[Path] = []
    for root in expanded(place):
        if Run(root).exists or (root / EVENTS).is_file():
            opened(root)  # the report is written there, too
        for folder in folders_in(root):
            aside = folder.absolute().parent
            if aside.name not in (TUNE, COST) or not (aside.parent / EVENTS).is_file():
                folders.append(folder)
    return folders


def expanded(pattern: str | Path) -> list[Path]:
    """The paths that a pattern matches, or the place itself if it is not a pattern."""
    return (
        [Path(path) for path in sorted(glob(str(pattern), recursive=True))]
        if has_magic(str(pattern))
        else [Path(pattern)]
    )


def arms_of(runs: Sequence[Run]) -> list[Arm]:
    """Groups runs by their settings, in the order in which they are given.

    If several runs have the same settings and the same seed, the finished one counts, and of several the newest.
    """
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[repr(sorted(run.settings.items(), key=lambda item: item[0]))].append(run)
    members = [one_per_seed(group) for group in groups.values()]
    names = _labels_of([next((run for run in group if run.label), group[0]) for group in members])
    arms = []
    for name, counting, group in zip(names, members, groups.values(), strict=True):
        older = [run for run in group if run.state is RunState.FINISHED and run not in counting]
        arms.append(Arm(name, counting, tuple(older)))
    return arms


def one_per_seed(runs: Iterable[Run]) -> tuple[Run, ...]:
    """The run that counts of each seed, ordered by seed."""
    best: dict[int, Run] = {}
    for run in sorted(runs, key=lambda run: (run.state is RunState.FINISHED, run.config_file.stat().st_mtime)):
        best[run.seed] = run
    return tuple(best[seed] for seed in sorted(best))


def _labels_of(arms: Sequence[Run]) -> list[str]:
    """A label for each arm, given one run of each: its attention, and what tells it from others with that attention."""
    labels = []
    for arm in arms:
        attention, task = arm.attention_label, arm.settings["task.name"]
        alike = [run for run in arms if (run.attention_label, run.settings["task.name"]) == (attention, task)]
        keys = distinguishing([run.settings for run in alike])
        prefix = f"attention.options.{attention}."
        told = [f"{key.removeprefix(prefix)}={_shown(key, arm.settings[key])}" for key in keys if key in arm.settings]
        labels.append(f"{attention} ({', '.join(told)})" if told else attention)
    names = [(arm.settings["task.name"], label) for arm, label in zip(arms, labels, strict=True)]
    # classes of one name in different modules look alike
    numbers = [f" [{names[:n].count(name) + 1}]" if names.count(name) > 1 else "" for n, name in enumerate(names)]
    return [label + number for label, number in zip(labels, numbers, strict=True)]


def distinguishing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys that labels name: those in which some settings differ, or, if these are many, as few as are enough.

    Keys of attention sites that only some models have are left out, because they follow from the model. They are kept
    if the settings could not be told apart without them.
    """
    keys = varying(settings)
    common = [key for key in keys if not is_of_site(key) or all(key in its for its in settings)]
    kept = common if number_of_kinds(settings, common) == len(settings) else keys
    return kept if len(kept) <= MAX_LISTED else sorted(fewest(settings, kept))


def fewest(settings: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[str]:
    """Few of the keys that tell the settings apart as well as all of them: the key that tells most apart comes first.

    Of keys that tell equally many apart, a class comes before its options, and then the one with the shortest values.
    """

    def length(key: str) -> tuple[bool, int]:
        return not key.endswith("_target_"), max(len(str(_shown(key, its.get(key, "")))) for its in settings)

    ordered, chosen, kinds = sorted(keys, key=length), list[str](), number_of_kinds(settings, keys)
    while number_of_kinds(settings, chosen) < kinds:
        chosen.append(max(ordered, key=lambda key: number_of_kinds(settings, [*chosen, key])))
    return chosen


def number_of_kinds(settings: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> int:
    """How many of the settings these keys tell apart."""
    return len({repr([its.get(key) for key in keys]) for its in settings})


def _shown(key: str, value: object) -> object:
    """A value as a label shows it: a class without its module."""
    return str(value).rpartition(".")[2] if key.endswith("_target_") else value


def varying(settings: Iterable[Mapping[str, Any]]) -> list[str]:
    """The keys in which some settings differ, sorted."""
    found = list(settings)
    keys = sorted({key for its in found for key in its})
    absent = object()
    return [key for key in keys if any(its.get(key, absent) != found[0].get(key, absent) for its in found[1:])]


def is_of_normalizer(key: str) -> bool:
    """Whether a setting is one of the attention."""
    return key.startswith("attention.")


def is_of_site(key: str) -> bool:
    """Whether a setting is the normalizer, the priors, the scorer or the bank of an attention site."""
    return is_of_normalizer(key) and not key.startswith("attention.options.")


def as_number(value: object) -> float | None:
    """A value of a file that anyone may have written, if it is a finite number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value):
        return float(value)
    return None
