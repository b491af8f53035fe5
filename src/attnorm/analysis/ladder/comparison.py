"""The difference of each arm from the baseline on the rungs of a ladder, and how it changes with compute."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, log10, nan

import numpy as np

from attnorm.analysis.arms import DEFAULT_BASELINE
from attnorm.analysis.cautions import cautions_of
from attnorm.analysis.ladder.scores import LadderScores, Rung
from attnorm.analysis.statistics.crossed import MIN_SEEDS, Difference, Interval
from attnorm.analysis.statistics.ladder import (
    MIN_RUNGS,
    baseline_slope,
    compute_multiplier,
    contrast,
    deviation_weights,
    held_weights,
    projection_weights,
    trend_weights,
)
from attnorm.analysis.statistics.multiple import holm
from attnorm.analysis.verdict import AT_THESE_RATES, FALSE_CALLS, listed_seeds
from attnorm.errors import ConfigError, Problem
from attnorm.imports import nearest
from attnorm.wording import counted

AHEAD = 10.0  # by what factor beyond the largest rung a projection goes, if no compute is given


@dataclass(frozen=True)
class RungResult:
    """An arm on one rung.

    difference: arm minus baseline; None if the arm is not compared on this rung. seconds_ratio: the seconds per token
    of the arm over those of the baseline. multiplier: how many times as much compute the baseline needs to be as good,
    and its interval. net: the same divided by the ratio of seconds. They are None if they are withheld. diverged: how
    many runs have failed there, in words; may be empty.
    """

    rung: Rung
    difference: Difference | None
    seconds_ratio: float | None
    multiplier: tuple[float, Interval] | None
    diverged: str

    @property
    def net(self) -> tuple[float, Interval] | None:
        if self.multiplier is None or self.seconds_ratio is None:
            return None
        value, ends = self.multiplier
        return value / self.seconds_ratio, Interval(ends.low / self.seconds_ratio, ends.high / self.seconds_ratio)


@dataclass(frozen=True)
class Primary:
    """A difference with a verdict. adjusted: its p-value, adjusted for both primaries of all arms."""

    difference: Difference
    adjusted: float = nan

    @property
    def word(self) -> str:
        """The verdict. Each arm was trained at one rate per rung, so that no difference is shown for all rates."""
        if not isfinite(self.adjusted):
            return "no verdict"
        return AT_THESE_RATES if self.adjusted < FALSE_CALLS else "not shown"


@dataclass(frozen=True)
class ArmOnLadder:
    """An arm compared with the baseline.

    rungs: all on which it was trained, without those beyond. seeds: those that count, on the rungs that are compared.
    largest, trend: the two primaries. projection: the value at the compute `projected` of the line through the rungs.
    deviation: the largest rung minus the line through the others. held: the rung beyond minus the projection to it.
    They are None if there are too few rungs or seeds. notes: why, and what else a reader has to know, as sentences.
    """

    label: str
    rungs: Sequence[RungResult]
    seeds: Sequence[int]
    projected: float
    largest: Primary | None = None
    trend: Primary | None = None
    projection: Difference | None = None
    deviation: Difference | None = None
    beyond: Rung | None = None
    held: Difference | None = None
    notes: Sequence[str] = ()

    @property
    def compared(self) -> list[RungResult]:
        """The rungs that are compared, the smallest first."""
        return [result for result in self.rungs if result.difference is not None]


@dataclass(frozen=True)
class LadderComparison:
    """The arms of a ladder compared with the baseline. notes: what a reader has to know, as sentences."""

    scores: LadderScores
    baseline: str
    arms: Sequence[ArmOnLadder]
    level: float
    notes: Sequence[str] = field(default_factory=list)


def compare_ladder(
    scores: LadderScores, baseline: str | None = None, project: float | None = None, level: float = 0.95
) -> LadderComparison:
    """Compares the arms of a ladder with one of them.

    baseline: its label; None: softmax, or else the first arm. project: the compute in FLOPs of the projection; None:
    AHEAD times that of the largest rung of each arm. level: of the intervals; the verdicts do not depend on it.

    Raises ConfigError for an unknown baseline, and if there is no other arm.
    """
    labels = scores.arms
    baseline = baseline or (DEFAULT_BASELINE if DEFAULT_BASELINE in labels else labels[0])
    if baseline not in labels:
        message = f"there is no such arm; the arms are: {', '.join(labels)}.{nearest(baseline, labels)}"
        raise ConfigError([Problem("baseline", message, baseline)])
    if len(labels) == 1:
        raise ConfigError([Problem("against", f"there is nothing to compare with the baseline, {baseline}")])
    arms = [_compared(scores, label, baseline, project, level) for label in labels if label != baseline]
    primaries = [primary for arm in arms for primary in (arm.largest, arm.trend)]
    p_values = [nan if primary is None else primary.difference.p_value for primary in primaries]
    adjusted = iter(holm(p_values))
    arms = [
        replace(
            arm,
            largest=_with_p(arm.largest, next(adjusted)),
            trend=_with_p(arm.trend, next(adjusted)),
        )
        for arm in arms
    ]
    return LadderComparison(scores, baseline, arms, level, scores.notes)


def _with_p(primary: Primary | None, adjusted: float) -> Primary | None:
    return None if primary is None else replace(primary, adjusted=adjusted)


def _compared(scores: LadderScores, label: str, baseline: str, project: float | None, level: float) -> ArmOnLadder:
    """One arm, with p-values that are not adjusted."""
    rungs, groups, notes = scores.rungs, scores.groups, list[str]()
    shared = {number: scores.seeds(label, number) & scores.seeds(baseline, number) for number in rungs}
    enough = [number for number, seeds in shared.items() if len(seeds) >= MIN_SEEDS and not rungs[number].beyond]
    seeds = sorted(set.intersection(*(shared[number] for number in enough))) if enough else []
    compared = enough if seeds else []
    mine, base = ((scores.table(each, compared, seeds) if compared else None) for each in (label, baseline))
    differences = mine - base if mine is not None and base is not None else np.empty((0, 0, 0))
    x = [rungs[number].x for number in compared]

    results = []
    for number, rung in rungs.items():
        runs = [key for key in scores.runs if key[:2] == (label, number)]
        if rung.beyond or not runs:
            continue
        difference = multiplier = None
        if number in compared:
            difference = contrast(np.ones(1), differences[[compared.index(number)]], groups, level)
            if slope := _slope(scores, baseline, rung):
                ends = difference.new_seeds_and_examples
                limits = sorted(compute_multiplier(end, slope) for end in (ends.low, ends.high))
                multiplier = compute_multiplier(difference.estimate, slope), Interval(*limits)
        ratio = scores.seconds_ratio(label, baseline, number)
        diverged = [_diverged(scores, arm, number) for arm in (label, baseline)]
        words = " and ".join(filter(None, (diverged[0], f"{baseline} {diverged[1]}" if diverged[1] else "")))
        results.append(RungResult(rung, difference, ratio and ratio[0], multiplier, words))
    arm = ArmOnLadder(label, results, seeds, project or nan)
    missing = [number for number, rung in rungs.items() if number not in compared and not rung.beyond]
    if not compared:
        why = f"on no rung do {label} and {baseline} share {MIN_SEEDS} seeds with scores"
        return replace(arm, notes=[f"{label} is not compared, because {why}."])
    if missing:
        here = f"{label} is compared on {_listed(compared)}"
        notes.append(f"{here}, because it and {baseline} share fewer than {MIN_SEEDS} seeds on {_listed(missing)}.")
    if others := sorted(set.union(*(shared[number] for number in compared)) - {*seeds}):
        notes.append(f"{label}: {listed_seeds(others)} left out, because not every rung has scores of both arms.")
    notes += _notes_on_price(scores, arm, baseline)

    top = rungs[compared[-1]]
    primaries = {"at the largest rung": np.eye(len(compared))[-1]}
    if len(compared) >= MIN_RUNGS and len(seeds) >= MIN_SEEDS:
        primaries["of the trend"] = trend_weights(x)
    for name, weights in primaries.items():
        cautions = cautions_of(np.tensordot(weights, differences, 1), seeds, groups, ())
        notes += [f"{label}, difference {name}: {caution}" for caution in cautions]
    arm = replace(arm, largest=Primary(contrast(primaries["at the largest rung"], differences, groups, level)))
    if "of the trend" not in primaries:
        why = f"{counted(len(compared), 'rung')} and {counted(len(seeds), 'seed')} are too few"
        notes.append(f"{label}: no trend, because {why}; at least {MIN_RUNGS} rungs and {MIN_SEEDS} seeds are needed.")
        return replace(arm, notes=notes)
    at = project or AHEAD * top.flops
    arm = replace(
        arm,
        trend=Primary(contrast(primaries["of the trend"], differences, groups, level)),
        projected=at,
        projection=contrast(projection_weights(x, log10(at)), differences, groups, level),
        deviation=contrast(deviation_weights(x), differences, groups, level),
    )
    beyond = [rung for rung in rungs.values() if rung.beyond and shared[rung.number] & {*seeds}]
    if beyond:
        new = beyond[-1]
        both = sorted(shared[new.number] & {*seeds})
        table = np.subtract(*(scores.table(each, [*compared, new.number], both) for each in (label, baseline)))
        arm = replace(arm, beyond=new, held=contrast(held_weights(x, new.x), table, groups, level))
    return replace(arm, notes=notes)


def _slope(scores: LadderScores, baseline: str, at: Rung) -> float | None:
    """See `baseline_slope`, over the rungs that the baseline has with enough seeds."""
    seeds = {n: scores.seeds(baseline, n) for n, rung in scores.rungs.items() if not rung.beyond}
    rungs = [number for number, each in seeds.items() if len(each) >= MIN_SEEDS]
    common = sorted(set.intersection(*(seeds[number] for number in rungs)))
    if not common:
        return None
    x = [scores.rungs[number].x for number in rungs]
    return baseline_slope(scores.table(baseline, rungs, common), x, at.x, scores.better, scores.groups)


def _diverged(scores: LadderScores, arm: str, rung: int) -> str:
    """How many runs of an arm on a rung have diverged, in words; "" if none has."""
    runs = [run for key, run in scores.runs.items() if key[:2] == (arm, rung)]
    failed = sum(run.diverged for run in runs)
    return f"diverged: {failed} of {len(runs)} at rung {rung}" if failed else ""


def _notes_on_price(scores: LadderScores, arm: ArmOnLadder, baseline: str) -> list[str]:
    """Why net multipliers are withheld, or where their seconds were measured."""
    ratios = {result.rung.number: scores.seconds_ratio(arm.label, baseline, result.rung.number) for result in arm.rungs}
    without = [number for number, ratio in ratios.items() if ratio is None]
    elsewhere = [number for number, ratio in ratios.items() if ratio is not None and ratio[1] != number]
    bent = [result.rung.number for result in arm.compared if result.multiplier is None]
    notes = []
    if without:
        notes.append(
            f"{arm.label}: no net multiplier on {_listed(without)}, because no machine has measured the seconds of "
            f"both {arm.label} and {baseline}; train {baseline} there with one seed on the smallest rung."
        )
    if elsewhere:
        measured = next(ratio[1] for number, ratio in ratios.items() if number in elsewhere and ratio is not None)
        notes.append(f"{arm.label}: the ratio of seconds on {_listed(elsewhere)} is that of rung {measured}.")
    if bent:
        notes.append(
            f"{arm.label}: no multiplier on {_listed(bent)}, because the {scores.metric} of {baseline} is not shown to "
            "improve with compute there by two standard errors, or has fewer than three rungs."
        )
    return notes


def _listed(numbers: Sequence[int]) -> str:
    """'rung 1', 'rungs 1, 2 and 4'."""
    *most, last = map(str, numbers)
    return f"rungs {', '.join(most)} and {last}" if most else f"rung {last}"
