"""The difference of each arm from the baseline on the rungs of a ladder, and how it changes with compute."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan, log10, nan

import numpy as np

from attnorm.analysis.arms import DEFAULT_BASELINE
from attnorm.analysis.cautions import cautions_of
from attnorm.analysis.ladder.ladder_scores import LadderScores, Rung
from attnorm.analysis.statistics.contrasts import (
    MIN_RUNGS,
    baseline_slope,
    compute_multiplier,
    contrast,
    deviation_weights,
    held_weights,
    projection_weights,
    trend_weights,
)
from attnorm.analysis.statistics.crossed import MIN_SEEDS, Difference, Interval
from attnorm.analysis.statistics.multiple import holm
from attnorm.analysis.verdict import AT_THESE_RATES, FALSE_CALLS, listed_seeds
from attnorm.errors import ConfigError, Problem
from attnorm.imports import nearest
from attnorm.wording import counted

PRIMARIES = {"largest": "at the largest rung", "trend": "per factor of ten in compute"}  # adjusted together
AHEAD = 10.0  # by what factor beyond the largest rung a projection goes, if no compute is given


@dataclass(frozen=True)
class RungResult:
    """An arm on one rung.

    difference: arm minus baseline; None if the arm is not compared on this rung. seconds_ratio: the seconds per token
    of the arm over those of the baseline. multiplier: how many times as much compute the baseline needs to be as good,
    and its interval; net is divided by the ratio. They are None if they are withheld. diverged: how many runs have
    failed there, in words.
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
class ArmOnLadder:
    """An arm compared with the baseline.

    rungs: all on which it was trained, without those beyond. seeds: those that count, on the rungs that are compared.
    contrasts: by name, as far as there are enough rungs and seeds: `largest` and `trend`, the two primaries;
    `projection`, the value at the compute `projected` of the line through the rungs; `deviation`, the largest rung
    minus the line through the others; `held`, the rung beyond minus the projection to it. adjusted: the p-values of
    the primaries. notes: what a reader has to know, as sentences.
    """

    label: str
    rungs: Sequence[RungResult]
    seeds: Sequence[int]
    contrasts: Mapping[str, Difference] = field(default_factory=dict)
    adjusted: Mapping[str, float] = field(default_factory=dict)
    projected: float = nan
    beyond: Rung | None = None
    notes: Sequence[str] = ()

    @property
    def compared(self) -> list[Rung]:
        """The rungs that are compared, the smallest first."""
        return [result.rung for result in self.rungs if result.difference is not None]

    def verdict(self, primary: str) -> str:
        """In words. Each arm was trained at one rate per rung, so that no difference is shown for all rates."""
        p = self.adjusted[primary]
        return "no verdict" if isnan(p) else AT_THESE_RATES if p < FALSE_CALLS else "not shown"


@dataclass(frozen=True)
class LadderComparison:
    """The arms of a ladder compared with the baseline."""

    scores: LadderScores
    baseline: str
    arms: Sequence[ArmOnLadder]
    level: float

    def differences(self, arm: ArmOnLadder, rungs: Sequence[Rung], seeds: Sequence[int]) -> np.ndarray:
        """Arm minus baseline, (rungs, seeds, examples)."""
        return self.scores.table(arm.label, rungs, seeds) - self.scores.table(self.baseline, rungs, seeds)


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
    empty = LadderComparison(scores, baseline, (), level)
    arms = [_compared(empty, label, project) for label in labels if label != baseline]
    unadjusted = [arm.contrasts[name].p_value if name in arm.contrasts else nan for arm in arms for name in PRIMARIES]
    p_values = iter(holm(unadjusted))
    return replace(empty, arms=[replace(arm, adjusted={name: next(p_values) for name in PRIMARIES}) for arm in arms])


def _compared(comparison: LadderComparison, label: str, project: float | None) -> ArmOnLadder:
    """One arm, without p-values."""
    scores, baseline, level = comparison.scores, comparison.baseline, comparison.level
    ladder = [rung for rung in scores.rungs.values() if not rung.beyond]
    shared = {rung: scores.seeds(label, rung) & scores.seeds(baseline, rung) for rung in scores.rungs.values()}
    rungs = [rung for rung in ladder if len(shared[rung]) >= MIN_SEEDS] or [rung for rung in ladder if shared[rung]]
    seeds = sorted(set.intersection(*(shared[rung] for rung in rungs))) if rungs else []
    rungs = rungs if seeds else []
    arm, notes = ArmOnLadder(label, [], seeds), list[str]()
    differences = comparison.differences(arm, rungs, seeds) if rungs else np.empty(0)

    results, ratios = list[RungResult](), {}
    for rung in (rung for rung in ladder if scores.on(label, rung)):
        difference = multiplier = None
        if rung in rungs:
            difference = contrast(np.ones(1), differences[[rungs.index(rung)]], scores.groups, level)
            ends = difference.new_seeds_and_examples
            if difference.no_verdict is None and (slope := _slope(scores, baseline, rung)):
                low, high = sorted(compute_multiplier(end, slope) for end in (ends.low, ends.high))
                multiplier = compute_multiplier(difference.estimate, slope), Interval(low, high)
        ratios[rung] = scores.seconds_ratio(label, baseline, rung)
        of_baseline = scores.diverged(baseline, rung)
        words = filter(None, (scores.diverged(label, rung), of_baseline and f"{baseline} {of_baseline}"))
        results.append(RungResult(rung, difference, ratios[rung][0], multiplier, " and ".join(words)))
    if not rungs:
        why = f"it and {baseline} share no seed with scores on every rung"
        return replace(arm, rungs=results, notes=[f"{label} is not compared, because {why}."])

    if missing := [rung for rung in ladder if rung not in rungs]:
        why = f"it and {baseline} share fewer than {MIN_SEEDS} seeds on {listed_rungs(missing)}"
        notes.append(f"{label} is compared on {listed_rungs(rungs)}, because {why}.")
    if others := sorted(set.union(*(shared[rung] for rung in rungs)) - {*seeds}):
        notes.append(f"{label}: {listed_seeds(others)} left out, because not every rung has scores of both arms.")
    if unpriced := [rung for rung, (ratio, _) in ratios.items() if ratio is None]:
        why = f"no machine has measured the seconds of it and {baseline}; train {baseline} there on the smallest rung"
        notes.append(f"{label}: no net multiplier on {listed_rungs(unpriced)}, because {why}.")
    if borrowed := {rung: of for rung, (_, of) in ratios.items() if of is not None and of != rung}:
        of = listed_rungs([*borrowed.values()][:1])
        notes.append(f"{label}: the ratio of seconds on {listed_rungs([*borrowed])} is that of {of}.")
    unknown = [each for each in results if each.difference and not each.difference.no_verdict and not each.multiplier]
    if flat := [result.rung for result in unknown]:
        why = f"the {scores.metric} of {baseline} is not shown to improve there by two standard errors of its slope"
        notes.append(f"{label}: no multiplier on {listed_rungs(flat)}, because {why}.")

    x, weights, projected = [rung.x for rung in rungs], {"largest": np.eye(len(rungs))[-1]}, nan
    if len(rungs) >= MIN_RUNGS and len(seeds) >= MIN_SEEDS:
        projected = project or AHEAD * rungs[-1].flops
        weights |= {"trend": trend_weights(x), "projection": projection_weights(x, log10(projected))}
        weights |= {"deviation": deviation_weights(x)}
    else:
        why = f"{counted(len(rungs), 'rung')} and {counted(len(seeds), 'seed')} are too few"
        notes.append(f"{label}: no trend, because {why}; at least {MIN_RUNGS} rungs and {MIN_SEEDS} seeds are needed.")
    contrasts = {name: contrast(each, differences, scores.groups, level) for name, each in weights.items()}
    for name in (name for name in PRIMARIES if name in weights):
        cautions = cautions_of(np.tensordot(weights[name], differences, 1), seeds, scores.groups, ())
        notes += [f"{label}, difference {PRIMARIES[name]}: {caution}" for caution in cautions]
    beyond = next((rung for rung in reversed(scores.rungs.values()) if rung.beyond and shared[rung] & {*seeds}), None)
    if beyond is not None and "trend" in weights:
        table = comparison.differences(arm, [*rungs, beyond], sorted(shared[beyond] & {*seeds}))
        contrasts["held"] = contrast(held_weights(x, beyond.x), table, scores.groups, level)
    return ArmOnLadder(label, results, seeds, contrasts, {}, projected, beyond, notes)


def _slope(scores: LadderScores, baseline: str, at: Rung) -> float | None:
    """See `baseline_slope`, over the rungs on which the baseline has enough seeds."""
    seeds = {rung: scores.seeds(baseline, rung) for rung in scores.rungs.values() if not rung.beyond}
    rungs = [rung for rung, each in seeds.items() if len(each) >= MIN_SEEDS]
    common = sorted(set.intersection(*(seeds[rung] for rung in rungs))) if rungs else []
    if not common:
        return None
    table = scores.table(baseline, rungs, common)
    return baseline_slope(table, [rung.x for rung in rungs], at.x, scores.better, scores.groups)


def listed_rungs(rungs: Sequence[Rung]) -> str:
    """'rung 1', 'rungs 1 to 3', 'rungs 1, 2 and 4'."""
    *most, last = [rung.number for rung in rungs]
    if len(most) > 1 and last - most[0] == len(most):
        return f"rungs {most[0]} to {last}"
    return f"rungs {', '.join(map(str, most))} and {last}" if most else f"rung {last}"
