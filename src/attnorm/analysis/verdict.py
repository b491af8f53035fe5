"""What an arm scored and what it cost, and what can be said about its difference from the baseline."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import isnan, nan
from statistics import median

import numpy as np

from attnorm.analysis.arms import as_number
from attnorm.analysis.other_values import OtherValues
from attnorm.analysis.provenance import device_of
from attnorm.analysis.statistics.crossed import Difference, Interval
from attnorm.analysis.statistics.multiple import holm
from attnorm.analysis.statistics.power import detectable
from attnorm.analysis.statistics.tuned import DISMISSAL
from attnorm.run.run import Run
from attnorm.tasks.results import NAMES, NATS_OR_BITS
from attnorm.wording import counted, on_one_line

AT_THESE_RATES = "shown at these rates only"
FALSE_CALLS = 0.05  # the probability of any false "shown" in a family of comparisons, whatever the level of intervals


@dataclass(frozen=True)
class Cost:
    """How a cost is shown. name: the header of its column. digits: after the point. meaning: in words."""

    name: str
    digits: int
    meaning: str


COSTS = {
    "tokens_per_second": Cost("tokens/s", 0, "training speed in tokens per second without padding, mean over seeds"),
    "peak_memory_mb": Cost("memory (MB)", 0, "peak memory of the GPU, or of the process on a CPU, mean over seeds"),
    "hours": Cost("hours per run", 3, "wall time of a run, mean over seeds"),
    "parameters": Cost("parameters", 0, "number of trained parameters"),
}


def mean_costs(runs: Iterable[Run]) -> dict[str, float]:
    """The mean of each cost in COSTS over the runs that have recorded it. On a GPU, the memory is that of the GPU."""
    values: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        memory, seconds = run.summary.get("peak_memory"), as_number(run.summary.get("wall_seconds"))
        memory = memory if isinstance(memory, dict) else {}
        costs = {
            "tokens_per_second": as_number(run.summary.get("tokens_per_second")),
            "peak_memory_mb": as_number(memory.get("gpu_mb", memory.get("process_mb"))),
            "hours": None if seconds is None else seconds / 3600,
            "parameters": as_number(run.summary.get("parameters")),
        }
        for name, value in costs.items():
            if value is not None:
                values[name].append(value)
    return {name: sum(each) / len(each) for name, each in values.items()}


def speed_ratio(runs: Sequence[Run], baseline: Sequence[Run]) -> float | None:
    """The tokens per second of an arm over those of the baseline, each the median over its runs. None if a run has not
    recorded them, or if not all runs were trained on one machine."""
    speeds = [[as_number(run.summary.get("tokens_per_second")) for run in each] for each in (runs, baseline)]
    own, theirs = ([speed for speed in each if speed] for each in speeds)
    if not own or [len(own), len(theirs)] != [len(runs), len(baseline)]:
        return None
    return median(own) / median(theirs) if len({device_of(run) for run in (*runs, *baseline)}) == 1 else None


@dataclass(frozen=True)
class ArmScores:
    """The scores of one arm on the examples of a comparison.

    values: the metric by seed, for the seeds that count. costs: means over these runs, by name, as in
    `COSTS`. left_out: what has become of the other runs, as sentences.
    """

    label: str
    values: dict[int, float]
    costs: dict[str, float] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    @property
    def mean(self) -> float:
        """The mean over seeds; NaN without finished runs."""
        return float(np.mean(list(self.values.values()))) if self.values else float("nan")

    @property
    def spread(self) -> float:
        """The standard deviation over seeds, with k - 1 in the denominator; NaN with fewer than two."""
        return float(np.std(list(self.values.values()), ddof=1)) if len(self.values) > 1 else float("nan")


@dataclass(frozen=True)
class Verdict:
    """What can be said about the difference between an arm and the baseline.

    difference: the arm minus the baseline, over the seeds that count. adjusted: its p-value for new seeds and new
                examples, adjusted for all arms that were compared (Holm 1979); NaN without a verdict.
    others:     how they compare at the other values that a sweep tried for the worse arm; None if it was not tuned.
                Then `adjusted` is for all of these values together.
    here:       the adjusted p-value at the chosen values alone; None: the same as `adjusted`.
    charge:     what all these p-values contain for leaving out values.
    family:     the number of comparisons that are adjusted together.
    direction:  1 if a higher value of the metric is better, -1 if a lower one is.
    by_seed:    the difference of each seed. no_verdict: the reason if there is no verdict.
    is_silent:  whether no claim is made at all, not even the estimate, because planned runs are unfinished or because
                the models have not learned the task (`analysis.cautions`).
    left_out:   the seeds that do not count, with the reasons, as a sentence; may be empty.
    cautions:   what makes the interval too narrow or the runs unusual, as sentences (`analysis.cautions`).
    digits:     those after the point with which scores are written.
    speed:      the tokens per second of the arm over those of the baseline, see `speed_ratio`.
    """

    label: str
    baseline: str
    metric: str
    difference: Difference
    adjusted: float
    by_seed: dict[int, float]
    no_verdict: str | None
    is_silent: bool = False
    left_out: str = ""
    cautions: tuple[str, ...] = ()
    family: int = 1
    direction: int = 1
    others: OtherValues | None = None
    here: float | None = None
    charge: float = 0.0
    digits: int = 2
    speed: float | None = None

    @property
    def strict_level(self) -> float:
        """The level of an interval that excludes zero only if the difference is shown, whatever the other arms are."""
        return 1 - (FALSE_CALLS - self.charge) / self.family

    @property
    def detectable(self) -> float:
        """The smallest true difference that at least 80 % of such experiments show; NaN without a verdict."""
        return nan if self.no_verdict else detectable(self.difference.variances, level=self.strict_level)

    @property
    def is_shown(self) -> bool:
        """Whether the difference is shown: its adjusted p-value is below 0.05."""
        return self.no_verdict is None and self.adjusted < FALSE_CALLS

    @property
    def word(self) -> str:
        """The verdict in short: "shown", "shown at these rates only", "not shown" or "no verdict"."""
        if self.no_verdict is not None or self.is_shown:
            return "no verdict" if self.no_verdict is not None else "shown"
        return AT_THESE_RATES if self.p_value < FALSE_CALLS else "not shown"

    @property
    def p_value(self) -> float:
        """The adjusted p-value to print: at the chosen values alone, unless the difference is shown at all of them."""
        return self.adjusted if self.is_shown or self.here is None else self.here

    @property
    def interval(self) -> Interval:
        """The interval for new seeds and new examples. If the difference is shown, the end next to zero is the closest
        one over all values of the worse arm."""
        ends = self.difference.new_seeds_and_examples
        if not self.is_shown or self.others is None:
            return ends
        more = [difference.new_seeds_and_examples for difference in self.others.differences.values()]
        if self.difference.estimate > 0:
            return Interval(min(each.low for each in (ends, *more)), ends.high)
        return Interval(ends.low, max(each.high for each in (ends, *more)))

    def sentence(self) -> str:
        """The verdict in words, with the unadjusted interval and the difference that could have been detected."""
        difference, digits = self.difference, self.digits
        name, arms = NAMES.get(self.metric, self.metric), on_one_line(f"{self.label} minus {self.baseline}")
        start = f"{arms}: {difference.estimate:+.{digits}f} {name}"
        sizes = counted(difference.seeds, "seed")
        sizes += f", {counted(difference.examples, 'example')}" if difference.examples > 1 else ""
        if difference.clusters != difference.examples:
            sizes += f" in {counted(difference.clusters, 'group')}"
        if self.is_silent:
            return f"{arms}: no verdict, because {self.no_verdict}."
        rates = ""
        if self.others is not None and self.word in ("shown", AT_THESE_RATES):
            rates = self.others.sentence(self.is_shown, difference.estimate)
        speed = f"Speed: {self.speed:.2f} times the tokens/s of {self.baseline}." if self.speed else ""
        more = "".join(f" {clause}" for clause in (rates, speed, self.left_out, *self.cautions) if clause)
        if self.no_verdict is not None:
            return f"{start} ({sizes}): no verdict, {self.no_verdict}.{more}"
        low, high = self.interval.low, self.interval.high
        interval = f"{difference.level * 100:g} % interval {low:.{digits}f} to {high:.{digits}f}"
        adjusted = f"adjusted p {p_is(self.p_value)}"
        better = " (lower is better)" if self.direction < 0 else ""
        return (
            f"{start}{better}, {interval} for new seeds and new examples ({sizes}): {self.word}, {adjusted}. "
            f"Detectable with 80 % power: a difference of {self.detectable:.{digits}f} {name}.{more}"
        )

    def claim_for_this_test_set(self) -> str | None:
        """The weaker claim in words, for new seeds on the same examples; None if it cannot be made."""
        difference, digits = self.difference, self.digits
        if self.is_silent or isnan(difference.p_value_new_seeds):
            return None
        low, high = difference.new_seeds.low, difference.new_seeds.high
        interval = f"{difference.level * 100:g} % interval {low:.{digits}f} to {high:.{digits}f}"
        return f"For new seeds on these examples only: {interval}, p {p_is(difference.p_value_new_seeds)} (unadjusted)."


def decimals(metric: str) -> int:
    """The digits after the point with which a metric is written: losses in nats are small."""
    return 4 if metric in NATS_OR_BITS else 2


def p_is(p: float) -> str:
    """A p-value as the end of a sentence: "= 0.012", or "< 0.001"."""
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


def listed_seeds(seeds: Sequence[int]) -> str:
    """Seeds in words: "seed 1", "seeds 1, 2 and 5"."""
    *most, last = map(str, seeds)
    return f"seeds {', '.join(most)} and {last}" if most else f"seed {last}"


def adjusted(verdicts: Sequence[Verdict], left_out: int = 0) -> list[Verdict]:
    """The verdicts with p-values that are adjusted for all of them together.

    left_out: further arms that were to be compared and could not be; they belong to the family too.
    """
    here = [nan if verdict.no_verdict is not None else verdict.difference.p_value for verdict in verdicts]
    p_values = [
        p if of.others is None or isnan(p) else max(p, of.others.p_value(of.difference.estimate))
        for p, of in zip(here, verdicts, strict=True)
    ]
    charge = DISMISSAL if any(verdict.others is not None for verdict in verdicts) else 0.0
    every = [[charged(p, charge) for p in holm([*these, *[nan] * left_out])] for these in (p_values, here)]
    return [
        replace(verdict, adjusted=p, here=p_here, family=len(every[0]), charge=charge)
        for verdict, p, p_here in zip(verdicts, *every, strict=False)
    ]


def charged(p_value: float, charge: float) -> float:
    """A p-value plus what leaving out values may cost, at most 1."""
    return p_value + charge if isnan(p_value) else min(1.0, p_value + charge)
