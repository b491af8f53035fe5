r"""Do the differences have the shape that the intervals assume? Outliers among seeds, and skewness over examples.

The intervals are exact for normal effects. If the effects of the seeds or of the examples are skewed, they miss the
true difference more often than they say: docs/statistics.md states the measured coverage.
"""

from collections.abc import Hashable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from attnorm.analysis.statistics.variances import Array, cluster_means

MIN_SEEDS = 3
ALARM = 0.05  # how often seeds with normal effects are called outlying
SAMPLES = 50_000  # simulated experiments from which the limit of outliers is taken
COCHRAN = 25  # the number of examples must exceed this multiple of the squared skewness
MIN_TESTED, SURE = 8, 0.01  # examples that the test of skewness needs, and its level


def outlying_seeds(means: Array) -> NDArray[np.bool_]:
    """Which tables have a seed whose difference is far from those of the others.

    The largest distance from the median is compared with the median distance from it. The median is robust: with ten
    seeds, four outliers cannot hide each other. The limit is the one that normal effects exceed in 5 % of the
    experiments with so many seeds, see `limit`. With three seeds, only an outlier that is 33 times as far away as the
    other two are from each other can be told from normal noise.

    means: (..., k), the mean difference of each seed. Returns bool (...); False with fewer than three seeds.
    """
    if means.shape[-1] < MIN_SEEDS:
        return np.zeros(means.shape[:-1], bool)
    largest, usual = distances(means)
    return largest > limit(means.shape[-1]) * usual


def distances(means: Array) -> tuple[Array, Array]:
    """The largest and the median distance of seeds from their median, (...)."""
    apart = np.abs(means - np.median(means, -1, keepdims=True))
    return apart.max(-1), np.median(apart, -1)


@cache
def limit(seeds: int) -> float:
    """The ratio of the two distances that normal effects exceed with probability ALARM, by simulation."""
    largest, usual = distances(np.random.default_rng(seeds).standard_normal((SAMPLES, seeds)))
    return float(np.quantile(largest / usual, 1 - ALARM))


def skewed_examples(differences: Array, groups: Sequence[Hashable] | None = None) -> NDArray[np.bool_]:
    r"""Which tables have too few examples for the skewness of their differences.

    By the rule of Cochran (1977, Sec. 2.15), the mean of n values with the skewness g is close enough to normal for a
    95 % interval if :math:`n > 25 g^2`. A table is called skewed if it breaks this rule and if normal values rarely
    have such a skewness (D'Agostino 1970, at the level SURE), because g varies much in small samples.

    differences: (..., seeds, examples). groups: for each example, the label of its cluster; clusters then take the
    place of examples. Returns bool (...).
    """
    values = cluster_means(differences, groups)[0].mean(-2)
    n = values.shape[-1]
    if n < MIN_TESTED:
        return np.zeros(values.shape[:-1], bool)
    varied = np.ptp(values, axis=-1) > 0
    safe = np.where(varied[..., None], values, np.arange(n))  # a constant has no skewness
    return varied & (n < COCHRAN * stats.skew(safe, axis=-1) ** 2) & (stats.skewtest(safe, axis=-1).pvalue < SURE)
