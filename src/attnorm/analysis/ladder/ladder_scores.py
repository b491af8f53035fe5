"""What the runs of a ladder scored, whether they are read from run folders or from tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isclose, log10
from statistics import median

import numpy as np

from attnorm.analysis.scores import ExampleTable
from attnorm.errors import RunError
from attnorm.wording import counted

WHAT_IS_EQUAL = {"input_hash": "another input", "n_tokens": "another number of tokens", "group": "another group"}
LOSS = "loss"  # the metric of a ladder, unless another one is asked for


@dataclass(frozen=True)
class Rung:
    """A size of model on a ladder.

    number: from 1 for the smallest. parameters: of matrix products, with attention=softmax. tokens: real tokens of
    training. flops: of the matrix products of training. beyond: whether it only checks a projection.
    """

    number: int
    parameters: int
    tokens: float
    flops: float
    beyond: bool = False

    @property
    def x(self) -> float:
        """log10 of its compute."""
        return log10(self.flops)


@dataclass(frozen=True)
class LadderRun:
    """A run on a rung.

    examples: its scores; None without any. diverged: whether that is because the run failed. seconds: per token of
    training; None if they were not measured. device: the machine. place: where it was read, for messages.
    """

    arm: str
    rung: Rung
    seed: int
    examples: ExampleTable | None
    diverged: bool
    seconds: float | None
    device: str
    place: str

    @property
    def key(self) -> tuple[str, int, int]:
        """Its arm, rung and seed."""
        return self.arm, self.rung.number, self.seed


@dataclass(frozen=True)
class LadderScores:
    """The runs of a ladder, which fit together.

    runs: by arm, rung and seed. timed: these, and others of which only the seconds count. better: 1 if a higher value
    of the metric is better, -1 if a lower one is. ids: the examples that all runs were scored on. groups: theirs; None
    if every example is on its own. task: "" if it is not known. notes: what a reader has to know, as sentences.
    """

    runs: Mapping[tuple[str, int, int], LadderRun]
    timed: Sequence[LadderRun]
    metric: str
    better: int
    ids: Sequence[str]
    groups: Sequence[str] | None
    task: str = ""
    notes: Sequence[str] = ()

    @cached_property
    def arms(self) -> list[str]:
        """The labels of the arms, in the order given."""
        return list(dict.fromkeys(arm for arm, _, _ in self.runs))

    @cached_property
    def rungs(self) -> dict[int, Rung]:
        """The rungs by number, those with less compute first."""
        rungs = {run.rung.number: run.rung for run in self.runs.values()}
        return dict(sorted(rungs.items(), key=lambda item: item[1].flops))

    def on(self, arm: str, rung: Rung) -> dict[int, LadderRun]:
        """The runs of an arm on a rung, by seed."""
        return {seed: run for (label, number, seed), run in self.runs.items() if (label, number) == (arm, rung.number)}

    def seeds(self, arm: str, rung: Rung) -> set[int]:
        """The seeds with which an arm has scores on a rung."""
        return {seed for seed, run in self.on(arm, rung).items() if run.examples is not None}

    def diverged(self, arm: str, rung: Rung) -> str:
        """How many runs of an arm on a rung have diverged, in words; "" if none has."""
        runs = self.on(arm, rung)
        failed = sum(run.diverged for run in runs.values())
        return f"diverged: {failed} of {len(runs)} at rung {rung.number}" if failed else ""

    def table(self, arm: str, rungs: Sequence[Rung], seeds: Sequence[int]) -> np.ndarray:
        """The scores of an arm, see `ExampleTable.values`, as (rungs, seeds, examples)."""
        tables = [[self.runs[arm, rung.number, seed].examples for seed in seeds] for rung in rungs]
        return np.array([[table.values(self.metric, self.ids) for table in each if table] for each in tables])

    def seconds(self, arm: str, rung: Rung) -> dict[str, float]:
        """The seconds per token of an arm on a rung, by machine: the median over seeds."""
        measured: dict[str, list[float]] = {}
        for run in self.timed:
            if (run.arm, run.rung.number) == (arm, rung.number) and run.seconds is not None:
                measured.setdefault(run.device, []).append(run.seconds)
        return {device: median(values) for device, values in measured.items()}

    def seconds_ratio(self, arm: str, baseline: str, rung: Rung) -> tuple[float, Rung] | tuple[None, None]:
        """The seconds per token of an arm over those of the baseline on one machine, and the rung on which they were
        measured: this one, or else the smallest on which both were. None without such a rung."""
        for measured in (rung, *self.rungs.values()):
            of_arm, of_baseline = self.seconds(arm, measured), self.seconds(baseline, measured)
            for device in (device for device in of_arm if device in of_baseline):
                return of_arm[device] / of_baseline[device], measured
        return None, None


def ladder_scores(
    runs: Sequence[LadderRun], metric: str, better: int, task: str = "", notes: Sequence[str] = ()
) -> LadderScores:
    """The scores of runs that fit together. Of two runs of one arm, rung and seed, the first counts.

    Raises RunError if no run has scores, if a rung is not the same in all runs, and if the examples do not fit: none is
    in all runs, or one differs in WHAT_IS_EQUAL between runs.
    """
    for run in runs:
        first = next(each for each in runs if each.rung.number == run.rung.number)
        for name in ("parameters", "tokens", "flops", "beyond"):
            one, other = (getattr(each.rung, name) for each in (first, run))
            if not isclose(one, other, rel_tol=1e-6):
                message = f"rung {run.rung.number} is not the same everywhere"
                values = f"{one:,.9g} in {first.place} and {other:,.9g} in {run.place}"
                raise RunError(f"{message}: {name} is {values}")
    counting: dict[tuple[str, int, int], LadderRun] = {}
    for run in runs:
        counting.setdefault(run.key, run)
    tables = {run.place: run.examples for run in counting.values() if run.examples is not None}
    if not tables:
        raise RunError("no run of the ladder has finished with scores of single examples")
    first_place, table = next(iter(tables.items()))
    common = set(table.rows.index).intersection(*(other.rows.index for other in tables.values()))
    shared = [example for example in table.rows.index if example in common]
    known = np.all([np.isfinite(each.values(metric, shared)) for each in tables.values()], axis=0) if shared else []
    ids = [example for example, is_known in zip(shared, known, strict=True) if is_known]
    if not ids:
        raise RunError("the runs of the ladder have no example in common that all of them were scored on")
    for place, others in tables.items():
        for column, what in WHAT_IS_EQUAL.items():
            if column not in table.rows or column not in others.rows:
                continue
            differs = table.rows.loc[ids, column].to_numpy() != others.rows.loc[ids, column].to_numpy()
            if differs.any():
                message = f"example {ids[int(differs.argmax())]} has {what} than in {first_place}"
                raise RunError(f"{place}: {message}, so they are not compared")
    if left := max(len(other.rows) for other in tables.values()) - len(ids):
        notes = [*notes, f"Left out, because not every run has a score for them: {counted(left, 'example')}."]
    return LadderScores(counting, runs, metric, better, ids, table.groups(ids), task, notes)
