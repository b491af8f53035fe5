"""Is the difference between two arms real? Intervals for its mean over seeds and over test examples.

The derivation, the measured coverage and the references are in docs/statistics.md.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from math import log, nan, sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats

from attnorm.analysis.statistics.variances import Variances, cluster_means, student, variances_of

MIN_SEEDS = 3
MIN_CLUSTERS = 10  # fewer independent examples say too little about others: see docs/statistics.md
MIN_DIFFERING = 10  # fewer of them that differ at all are too few for a normal approximation
ROUNDING = 1e-12  # mean squares this much smaller than others are zero
SMALLEST = 1e-300  # p-values are not told apart below


@dataclass(frozen=True)
class Interval:
    """A confidence interval, in the units of the score. Both ends are NaN if it is not defined."""

    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """The mean difference between two arms, and what it says about seeds and examples that were not seen.

    estimate: the mean over seeds and examples of arm A minus arm B, in the units of the score.
    seeds, examples, clusters: the size of the table. Without groups, every example is a cluster.
    effective_clusters: the number of clusters of equal size that tell as much about new ones.
    level: the level of both intervals, such as 0.95.
    new_seeds: the interval for the mean difference over all seeds on this test set.
    new_seeds_and_examples: the interval for the mean difference over all seeds and all examples of this kind.
    p_value: two-sided, of no difference for new seeds and new examples. It is the level at which that interval would
        end at zero: p_value < 1 - level exactly if the interval does not contain zero.
    p_value_new_seeds: the same for new seeds on this test set.
    no_verdict: why there is no verdict, as a sentence; None if there is one. Without a verdict, `p_value` and
        `new_seeds_and_examples` are NaN. `new_seeds` and `p_value_new_seeds` are NaN too, unless it is the test set
        that is too small.
    variances: the mean squares, from which `power.detectable` and `power.plan` judge this and further experiments.
    """

    estimate: float
    seeds: int
    examples: int
    clusters: int
    effective_clusters: float
    level: float
    new_seeds: Interval
    new_seeds_and_examples: Interval
    p_value: float
    p_value_new_seeds: float
    no_verdict: str | None
    variances: Variances


def paired_difference(
    differences: ArrayLike, groups: Sequence[Hashable] | None = None, level: float = 0.95
) -> Difference:
    """Compares two arms that were trained with the same seeds and evaluated on the same examples.

    Args:
        differences: (seeds, examples), the score of arm A minus that of arm B.
        groups: for each example, the label of the cluster to which it belongs, such as its image or its passage.
            Examples of one cluster may depend on each other; clusters are taken as independent.
        level: the level of the intervals, between 0 and 1.

    Raises ValueError if `differences` is not a table of finite numbers, or if `groups` has another length.
    """
    table = np.asarray(differences, dtype=np.float64)
    if table.ndim != 2 or not table.size:
        raise ValueError(f"differences: must have the shape (seeds, examples), not {table.shape}")
    if not np.isfinite(table).all():
        raise ValueError("differences: must be finite")
    if groups is not None and len(groups) != table.shape[1]:
        raise ValueError(
            f"groups: must have one label for each of the {table.shape[1]:,} examples, not {len(groups):,}"
        )
    if not 0 < level < 1:
        raise ValueError(f"level={level}: must be between 0 and 1")
    variances = variances_of(table, groups)
    estimate = float(table.mean())
    seeds_fail, examples_fail = weakness_of_seeds(table, variances), weakness_of_examples(table, variances, groups)
    narrow, wide = variances.half_widths(level)
    verdict = seeds_fail is None and examples_fail is None
    return Difference(
        estimate=estimate,
        seeds=variances.seeds,
        examples=variances.examples,
        clusters=variances.clusters,
        effective_clusters=variances.effective_clusters,
        level=level,
        new_seeds=around(estimate, nan if seeds_fail else float(narrow)),
        new_seeds_and_examples=around(estimate, float(wide) if verdict else nan),
        p_value=p_value(estimate, variances) if verdict else nan,
        p_value_new_seeds=nan if seeds_fail else p_value_of_seeds(estimate, variances),
        no_verdict=seeds_fail or examples_fail,
        variances=variances,
    )


def without_claims(difference: Difference) -> Difference:
    """The same estimate without intervals and p-values, for runs of which nothing can be claimed."""
    return replace(
        difference,
        new_seeds=Interval(nan, nan),
        new_seeds_and_examples=Interval(nan, nan),
        p_value=nan,
        p_value_new_seeds=nan,
    )


def around(estimate: float, half_width: float) -> Interval:
    return Interval(estimate - half_width, estimate + half_width)


def weakness_of_seeds(table: np.ndarray, variances: Variances) -> str | None:
    """Why the table allows neither claim."""
    if len(table) < MIN_SEEDS:
        return f"at least {MIN_SEEDS} seeds are needed (found {len(table)})"
    if np.ptp(table) == 0:
        return "all differences are zero" if table[0, 0] == 0 else "all differences are equal"
    noise = variances.mean_square_noise
    if variances.mean_square_seeds < ROUNDING * noise and noise > ROUNDING * np.square(table).max():
        return "the means of all seeds are equal, although seeds differ on single examples"  # by chance
    return None


def weakness_of_examples(table: np.ndarray, variances: Variances, groups: Sequence[Hashable] | None) -> str | None:
    """Why the table says nothing about new examples."""
    kind = "examples" if groups is None else "groups"
    if variances.effective_clusters < MIN_CLUSTERS - 1e-6:  # the number of equal clusters, up to rounding
        count = (
            f"{variances.clusters:,}" if variances.clusters < MIN_CLUSTERS else f"{variances.effective_clusters:.3g}"
        )
        unequal = (
            ""
            if variances.clusters < MIN_CLUSTERS
            else f", to which {variances.clusters:,} of such unequal sizes amount"
        )
        return f"at least {MIN_CLUSTERS} {kind} are needed (found {count}{unequal})"
    differing = (cluster_means(np.abs(table), groups)[0] > 0).any(axis=0).sum()
    if differing < min(MIN_DIFFERING, variances.clusters / 2):
        return f"only {differing} of {variances.clusters:,} {kind} differ at all, fewer than {MIN_DIFFERING}"
    return None


def p_value_of_seeds(estimate: float, variances: Variances) -> float:
    if variances.of_seeds == 0:
        return 0.0 if estimate else 1.0
    return float(2 * stats.t.sf(abs(estimate) / sqrt(variances.of_seeds), variances.seeds - 1))


def p_value(estimate: float, variances: Variances) -> float:
    """One minus the level at which an end of the interval for new seeds and new examples is zero."""
    if estimate == 0:
        return 1.0
    degrees = (variances.seeds - 1, variances.effective_clusters - 1)
    score = abs(estimate) / sqrt(variances.of_seeds + variances.of_examples)
    # The interval lies between those that use either number of degrees of freedom for both terms.
    low, high = sorted(max(2 * float(stats.t.sf(score, of)), SMALLEST) for of in degrees)

    def excess(log_p: float) -> float:
        quantiles = student(np.exp(log_p) / 2, degrees)
        return float(quantiles[0] ** 2 * variances.of_seeds + quantiles[1] ** 2 * variances.of_examples - estimate**2)

    low, high = log(low) - 1e-9, min(log(high) + 1e-9, 0.0)
    if excess(low) <= 0:  # smaller than any number that is told apart
        return float(np.exp(low))
    return float(np.exp(optimize.brentq(excess, low, high, xtol=1e-12)))
