"""`tune=<key>=<values>`: every arm tries the same values with separate tuning seeds, and is compared at its best value.

The best value has the best mean over the tuning seeds of the metric that selects checkpoints, on the validation
examples that select them. Neither runs of the comparison seeds nor the examples on which arms are compared play a part
in this choice. A run that failed or diverged counts as the worst.

A verdict is about the best value of each arm, which tuning may have missed. Where the arms differ at their chosen
values, the worse one is also trained with the comparison seeds at its other values: see `analysis.other_values`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from attnorm.errors import ConfigError
from attnorm.run.folder import FURTHER, TUNE
from attnorm.sweeps.jobs import Job
from attnorm.sweeps.plan import Plan
from attnorm.sweeps.state import JobState, Journal, is_held

MOST_ADDED = 3  # values that may be added at each end of the grid
Choice = tuple[int, str, str]  # the index of an arm, a value and a seed
MakeJobs = Callable[[str, Sequence[Choice]], list[Job]]  # from a purpose and choices: one job for each choice


@dataclass(frozen=True)
class Tuning:
    """What is tuned. key: as overrides name it. values: in ascending order, as texts. seeds, compare: the seeds that
    tune, and those that compare."""

    key: str
    values: tuple[str, ...]
    seeds: tuple[str, ...]
    compare: tuple[str, ...]

    def job(self, arm: Sequence[str], value: str, seed: str) -> tuple[str, ...]:
        """The overrides of a job of an arm."""
        return (*arm, f"++{self.key}={value}", f"++seed={seed}")


@dataclass(frozen=True)
class TunedArm:
    """An arm. mode: whether "min" or "max" of its metric `monitor` is best."""

    label: str
    monitor: str
    mode: str


def best_of(means: Mapping[str, float | None], mode: str) -> str | None:
    """The value with the best mean; of equal ones, the one closest to the middle of the grid, so that the grid is not
    extended if the metric does not depend on the value. A mean of None counts as the worst. None if all are None.

    means: by value, in the order of the grid.
    """
    sign, middle = 1 if mode == "min" else -1, (len(means) - 1) / 2
    apart = {value: abs(index - middle) for index, value in enumerate(means)}
    ranks = {value: (sign * mean, apart[value]) for value, mean in means.items() if mean is not None}
    return min(ranks, key=lambda value: ranks[value]) if ranks else None


def beyond(values: Sequence[str], upwards: bool) -> str | None:
    """The next value beyond the grid: the outermost value times its ratio to the one next to it. None if there is none,
    such as a whole number below 1."""
    last, inner = (values[-1], values[-2]) if upwards else (values[0], values[1])
    value = float(last) * (float(last) / float(inner))
    text = str(round(value)) if all(digits.lstrip("-").isdigit() for digits in values) else f"{value:.6g}"
    return text if isfinite(value) and float(text) > 0 and float(text) not in map(float, values) else None


class Tuned(Plan):
    """The jobs of a sweep that tunes: the whole grid of every arm, and then the comparison at the best values.

    If the best value of any arm is at the edge of the grid, a value is added there for all arms, at most MOST_ADDED at
    each end. Once the comparison has ended, `further` says at which other values which arms are trained too.

    make_jobs: makes jobs; raises ConfigError for a value that is not allowed.
    further: called once; the number of an arm and a value, for each value to train with the comparison seeds.
    """

    def __init__(self, tuning: Tuning, arms: Sequence[TunedArm], journal: Journal, make_jobs: MakeJobs):
        super().__init__()
        self.tuning, self.arms, self.journal, self.make_jobs = tuning, arms, journal, make_jobs
        self.values = list(tuning.values)
        self.trials: dict[tuple[int, str], list[Job]] = {}  # the tuning jobs by arm and value
        self.open: set[str] = set()  # names of jobs that have not ended
        self.states: dict[str, JobState] = {}  # of the tuning jobs that have ended
        self.best: list[str | None] = []  # by arm, once the values are chosen
        self.compared: list[list[Job]] = [[] for _ in arms]
        self.further: Callable[[], Sequence[tuple[int, str]]] = list
        self.others: dict[tuple[int, str], list[Job]] | None = None  # the further jobs by arm and value, once known
        self.notes: list[str] = []
        self.try_values(self.values)

    @property
    def total(self) -> int:
        """As far as it is known: values may be added."""
        known = [*self.trials.values(), *(self.others or {}).values()]
        return sum(map(len, known)) + len(self.arms) * len(self.tuning.compare)

    def next(self) -> Job | None:
        if not self.left and not self.open and not self.best:
            self.decide()
        if not self.left and not self.open and self.best and self.others is None:
            self.try_others()
        return super().next()

    def ended(self, job: Job, state: JobState) -> None:
        self.open.discard(job.name)
        if job.purpose == TUNE:
            self.states[job.name] = state

    def is_done(self, job: Job, state: JobState) -> bool:
        return super().is_done(job, state) or job.name in self.journal.worst

    def try_values(self, values: Sequence[str]) -> None:
        """Adds the tuning jobs of some values."""
        seeds = self.tuning.seeds
        choices = [(arm, value, seed) for arm in range(len(self.arms)) for value in values for seed in seeds]
        for (arm, value, _), job in self.add_jobs(TUNE, choices):
            self.trials.setdefault((arm, value), []).append(job)

    def add_jobs(self, purpose: str, choices: Sequence[Choice]) -> Iterable[tuple[Choice, Job]]:
        """Adds a job for each choice to those that are given out, and returns both."""
        jobs = self.make_jobs(purpose, choices) if choices else []
        self.jobs += jobs
        self.left += jobs
        self.open |= {job.name for job in jobs}
        return zip(choices, jobs, strict=True)

    def try_others(self) -> None:
        """Adds the jobs at further values."""
        self.others = {choice: [] for choice in self.further()}
        choices = [(arm, value, seed) for arm, value in self.others for seed in self.tuning.compare]
        for (arm, value, _), job in self.add_jobs(FURTHER, choices):
            self.others[arm, value].append(job)
        self.set_aside(FURTHER)

    def means(self, arm: int) -> dict[str, float | None]:
        """The mean of the metric of an arm over the tuning seeds, by value; None if a run failed, or has not ended."""
        return {value: mean([self.score(job) for job in self.trials[arm, value]]) for value in self.values}

    def score(self, job: Job) -> float | None:
        """The best value of the metric in a tuning run that has finished."""
        value = job.run.best_value
        is_number = isinstance(value, (int, float)) and isfinite(value)
        return value if is_number and self.states.get(job.name) is JobState.FINISHED else None

    def decide(self) -> None:
        """Extends the grid, or chooses the value of every arm and adds the jobs that compare them."""
        best = [best_of(self.means(number), arm.mode) for number, arm in enumerate(self.arms)]
        if not self.extend({value for value in best if value is not None}):
            self.best = best
            chosen = [(arm, value) for arm, value in enumerate(best) if value is not None]
            choices = [(arm, value, seed) for arm, value in chosen for seed in self.tuning.compare]
            for (arm, *_), job in self.add_jobs("compare", choices):
                self.compared[arm].append(job)
            self.set_aside(TUNE, "compare")
            tried = [job for arm, _ in chosen for value in self.values for job in self.trials[arm, value]]
            worst = [job.name for job in tried if self.states.get(job.name) is not JobState.FINISHED]
            if worst or self.journal.worst:
                self.journal.add("tuned", worst=worst)

    def extend(self, best: set[str]) -> bool:
        """Adds a value at each end of the grid that is the best value of an arm. Returns whether a value was added."""
        self.notes, new, before = [], [], len(self.values)
        for upwards in (False, True):
            edge = self.values[-1 if upwards else 0]
            if edge not in best:
                continue
            typed = self.tuning.values[-1 if upwards else 0]
            added = abs(self.values.index(typed) - self.values.index(edge))
            value = beyond(self.values, upwards)
            if added == MOST_ADDED:
                self.note(edge, f"the grid was extended {MOST_ADDED} times in this direction, which is the limit")
            elif value is None:
                self.note(edge, "there is no value beyond it")
            else:
                new.append((upwards, edge, value))
        for upwards, edge, value in new:
            try:
                self.try_values([value])
            except ConfigError as error:
                self.note(edge, f"{value} is not allowed: {error.problems[0]}")
            else:
                self.values.insert(len(self.values) if upwards else 0, value)
        return len(self.values) > before

    def note(self, edge: str, why: str) -> None:
        """Notes why the grid was not extended beyond the best value of an arm."""
        self.notes.append(f"The best value of an arm is at the edge of the grid, {self.tuning.key}={edge}: {why}.")

    def set_aside(self, *purposes: str) -> None:
        """Removes jobs of earlier commands with these purposes from the sweep. Comparison runs at other values no
        longer belong to an arm, so their folders move to those of the tuning runs."""
        names = {job.name for job in self.jobs}
        for job in self.journal.jobs():
            if job.purpose in purposes and job.name not in names and not is_held(job):
                if job.purpose == "compare" and job.folder.exists():
                    aside = aside_of(job)
                    aside.parent.mkdir(exist_ok=True)
                    job.folder.rename(aside)
                self.journal.add("aside", job.name)

    def record(self) -> dict[str, Any]:
        """The grid, the curve and the best value of every arm, for jobs.jsonl."""
        return {
            "key": self.tuning.key,
            "values": self.values,
            "added": [value for value in self.values if value not in self.tuning.values],
            "seeds": list(self.tuning.seeds),
            "notes": self.notes,
            "arms": [
                {
                    "arm": arm.label,
                    "monitor": arm.monitor,
                    "mode": arm.mode,
                    "best": self.best[number] if self.best else None,
                    "means": self.means(number),
                    "tune": {value: [job.name for job in self.trials[number, value]] for value in self.values},
                    "compare": [job.name for job in self.compared[number]],
                    "further": {
                        value: [job.name for job in jobs]
                        for (arm_number, value), jobs in (self.others or {}).items()
                        if arm_number == number
                    },
                }
                for number, arm in enumerate(self.arms)
            ],
        }


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of some numbers; None if one of them is None."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def aside_of(job: Job) -> Path:
    """The path of the folder of a comparison run while it is put aside."""
    return job.folder.parent / TUNE / job.folder.name
