"""The values that a sweep tried for each arm, and which of them it chose.

Everything is read from the file jobs.jsonl and the runs beside it. They are not trusted: a file of another form is left
out.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np

from attnorm.analysis.arms import Arm, as_number, numbers_of
from attnorm.analysis.other_values import OtherValues
from attnorm.analysis.statistics.tuned import candidates
from attnorm.analysis.verdict import Verdict
from attnorm.errors import RunError
from attnorm.run.folder import TUNE, RunState
from attnorm.run.run import Run
from attnorm.schema import is_name
from attnorm.sweeps.job_record import recorded
from attnorm.sweeps.tuning import mean
from attnorm.wording import counted


@dataclass(frozen=True)
class Trial:
    """A tuning run. name: of its folder. metric: the primary one, if there is one. value: of the metric that selects
    the value, and score of the primary one; None if the run has not finished."""

    name: str
    metric: str | None
    value: float | None
    score: float | None


@dataclass(frozen=True)
class TunedValues:
    """What a sweep tried for an arm.

    label: of the arm; "" if it is not compared. best: the value at which it is compared. trials: by value, one for each
    tuning seed. diverged: the values at which a tuning run has failed. further: the names of its runs with the
    comparison seeds at other values, by value.
    """

    label: str
    best: str
    trials: Mapping[str, Sequence[Trial]]
    diverged: tuple[str, ...]
    further: Mapping[str, Sequence[str]]

    def mean(self, value: str) -> float | None:
        """The mean at a value of the metric that selects it; None if a run failed."""
        return mean([trial.value for trial in self.trials[value]])


class TuningRecord:
    """How a sweep tuned its arms.

    key: the setting that is tuned. values: those that were tried, and those of them that the sweep added. seeds: those
    that tune. monitor: the metric that selects a value, and mode whether "min" or "max" of it is best.
    arms: by label, those that are compared; every: all of them. notes: why the grid was not extended further, and the
    arms that failed at every value.
    """

    def __init__(self, folder: Path, content: Mapping[str, Any], labels: Mapping[str, str]):
        tuning, jobs = content["tuning"], {str(job["name"]): job for job in content["jobs"]}
        self.folder, self.key = folder, str(tuning["key"])
        self.values, self.added, self.seeds = (list(map(str, tuning[name])) for name in ("values", "added", "seeds"))
        self.numbers = list(map(float, self.values))
        if not all(0 < number < inf for number in self.numbers):
            raise ValueError(self.values)
        self.every = [self._values_of(entry, jobs, labels) for entry in tuning["arms"]]
        known = {arm.label: number for number, arm in enumerate(self.every)}
        compared = [known[label] for label in dict.fromkeys(labels.values()) if label in known]
        self.arms = {self.every[number].label: self.every[number] for number in compared}
        first = tuning["arms"][compared[0]]
        self.monitor, self.mode = str(first["monitor"]), str(first["mode"])
        lost = [str(entry["arm"]) for entry in tuning["arms"] if entry["best"] is None]
        self.notes = list(map(str, tuning["notes"]))
        self.notes += [f"{name} is not compared, because runs failed at every value." for name in lost]
        names = {trial.name for arm in self.every for trials in arm.trials.values() for trial in trials}
        seconds, updates = (sum(as_number(jobs[name][what]) or 0 for name in names) for what in ("seconds", "steps"))
        self.budget = f"{counted(len(names), 'run')}, {updates:,.0f} updates, {seconds / 3600:.2f} hours"

    def _values_of(self, entry: Mapping[str, Any], jobs: Mapping[str, Any], labels: Mapping[str, str]) -> TunedValues:
        trials: dict[str, list[Trial]] = {value: [] for value in self.values}
        for value in self.values:
            for name in map(_plain, entry["tune"][value]):
                job = jobs[name]
                best = as_number(job["best_value"]) if job["state"] == RunState.FINISHED else None
                score = None if best is None else as_number(job["score"])
                trials[value].append(Trial(name, job["metric"], best, score))
            if len(trials[value]) != len(self.seeds):
                raise ValueError(f"{value}: {len(trials[value])} runs")
        best_value, label = entry["best"], next((labels[name] for name in entry["compare"] if name in labels), "")
        if best_value is not None and str(best_value) not in trials:
            raise ValueError(best_value)
        diverged = tuple(value for value in self.values if entry["means"][value] is None)
        further = {str(value): list(map(_plain, names)) for value, names in entry.get("further", {}).items()}
        return TunedValues("" if best_value is None else label, str(best_value), trials, diverged, further)

    def of(self, arms: Iterable[Arm]) -> dict[str, TunedValues]:
        """What was tried for some arms, by label and in their order."""
        return {arm.label: self.arms[arm.label] for arm in arms if arm.label in self.arms}

    def choice(self, arms: Sequence[Arm]) -> str:
        """The values of the arms, as a sentence. arms: all that are compared."""
        values = ", ".join(f"{label} {tuned.best}" for label, tuned in self.of(arms).items())
        if others := ", ".join(arm.label for arm in arms if arm.label not in self.arms):
            return f"Only some arms have their best {self.key}: {values}. Not tuned with them: {others}."
        return f"Each arm has its best {self.key}: {values}."

    def about(self) -> str:
        """The metric, the seeds and the budget in words."""
        added = f", of which {', '.join(self.added)} were added at the edge" if self.added else ""
        better = "lower" if self.mode == "min" else "higher"
        further = sum(len(names) for arm in self.every for names in arm.further.values())
        compare = "run compares" if further == 1 else "runs compare"
        others = f" {further} {compare} the worse arm of a verdict at its other values, with the comparison seeds."
        return (
            f"Every arm tried the same {len(self.values)} values of {self.key}{added}, with the tuning seeds "
            f"{', '.join(self.seeds)}. It is compared at the value with the best mean of {self.monitor} ({better} is "
            "better) on the validation examples that select checkpoints; no run of another seed played a part. Budget: "
            f"{self.budget}.{others if further else ''}"
        )

    def other_values(self, metric: str, direction: int) -> dict[str, OtherValues]:
        """The values of each arm besides its best one. Values are left out by a metric on the validation split; if the
        tuning runs have not recorded it, none is. direction: 1 if a higher value of the metric is better, or else -1.
        """
        scores = np.full((len(self.every), len(self.values), len(self.seeds)), nan)
        diverged = np.array([[value in arm.diverged for value in self.values] for arm in self.every])
        for number, index, seed in np.argwhere(np.isnan(scores) & ~diverged[..., None]):
            run = Run(self.folder / TUNE / self.every[number].trials[self.values[index]][seed].name)
            scores[number, index, seed] = direction * numbers_of(run.evaluation().get("metrics")).get(metric, nan)
        kept = (candidates(scores) | ~np.isfinite(scores).all(-1)) & ~diverged
        others = {}
        for number, arm in enumerate(self.every):
            possible = [value for value in compress(self.values, kept[number]) if value != arm.best]
            worse = tuple(choice for choice in self.values if choice not in (*possible, *arm.diverged, arm.best))
            runs: dict[str, dict[int, Run]] = {value: {} for value in possible}
            for value in possible if arm.label else ():
                for name in arm.further.get(value, ()):
                    with suppress(RunError):
                        run = Run(self.folder / TUNE / name)
                        runs[value][run.seed] = run
            others[arm.label] = OtherValues(arm.label, number, self.key, runs, worse, arm.diverged)
        return others

    def dependence(self, verdict: Verdict) -> str | None:
        """Says if a difference that is shown reverses or disappears when both arms use the same value; None otherwise.

        It disappears if the tuning seeds do not agree on its sign. The scores are those of the tuning runs, in the
        metric of the verdict if it is the primary one, and otherwise in the metric that selects the value.
        """
        if not verdict.is_shown or not {verdict.label, verdict.baseline} <= self.arms.keys():
            return None
        is_better = verdict.difference.estimate * verdict.direction > 0
        reverses, disappears = list[str](), list[str]()
        for value in self.values:
            gains = self._gains(value, verdict)
            signs = {(gain > 0) - (gain < 0) for gain in gains}
            if not gains or signs == {1 if is_better else -1}:
                continue
            opposite = sum(gains) < 0 if is_better else sum(gains) > 0
            (reverses if opposite else disappears).append(value)
        words = [f"has the opposite sign at {', '.join(reverses)}"] if reverses else []
        words += [f"is not of one sign over the tuning seeds at {', '.join(disappears)}"] if disappears else []
        if not words:
            return None
        return (
            f"The verdict on {verdict.label} depends on {self.key}: if it has the same value as {verdict.baseline}, "
            f"the difference between their tuning runs {' and '.join(words)}."
        )

    def _gains(self, value: str, verdict: Verdict) -> list[float]:
        """How much better an arm is than the baseline at a value, by tuning seed. Failed runs are worse; [] if both
        arms have some."""
        arm, baseline = (self.arms[label] for label in (verdict.label, verdict.baseline))
        failed = [of_arm.mean(value) is None for of_arm in (arm, baseline)]
        if any(failed):
            return [] if all(failed) else [-1.0 if failed[0] else 1.0]
        trials = list(zip(arm.trials[value], baseline.trials[value], strict=True))
        if all(trial.metric == verdict.metric and trial.score is not None for pair in trials for trial in pair):
            return [verdict.direction * ((one.score or 0.0) - (other.score or 0.0)) for one, other in trials]
        sign = -1 if self.mode == "min" else 1
        return [sign * ((one.value or 0.0) - (other.value or 0.0)) for one, other in trials]


def tunings_of(arms: Iterable[Arm]) -> list[TuningRecord]:
    """What each sweep with runs of these arms has tuned, if it has recorded it in a known form."""
    folders: dict[Path, dict[str, str]] = {}  # the label of the arm of each run, by its name
    for arm in arms:
        for run in arm.runs:
            folders.setdefault(run.folder.parent, {})[run.folder.name] = arm.label
    tunings = []
    for folder, labels in folders.items():
        content = recorded(folder)
        with suppress(AttributeError, IndexError, KeyError, TypeError, ValueError):  # written by another program
            tunings += [TuningRecord(folder, content, labels)] if content.get("tuning") else []
    return tunings


def _plain(name: object) -> str:
    """The name of a run folder in a sweep. Raises ValueError for anything else."""
    if not is_name(name):
        raise ValueError(name)
    return str(name)
