"""Which differences an experiment can show, and how large an experiment a difference needs."""

from dataclasses import dataclass
from functools import cache
from math import ceil, inf, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from attnorm.analysis.statistics.variances import Variances, student

Array = NDArray[np.float64]

MIN_SEEDS, MAX_SEEDS = 3, 1000  # of a plan
STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # test sets of a plan, in multiples of the one at hand
ENOUGH = 10  # the multiple up to which a plan always looks
NODES = 128


@dataclass(frozen=True)
class PlanRow:
    """One size of test set in a plan.

    examples: the number of examples. seeds: the smallest number of seeds per arm, at least 3, for which the difference
    is detected with the power asked for; None if not even 1,000 seeds are enough.
    detectable: the smallest difference detected with that many seeds; that of arbitrarily many seeds if `seeds` is
    None. It shows why: a difference below this limit needs more examples, whatever the number of seeds.
    hours: the time for training both arms; None if `hours_per_run` or `seeds` is None.
    """

    examples: int
    seeds: int | None
    detectable: float
    hours: float | None


@dataclass(frozen=True)
class Design:
    """The variance of a mean difference, in the parts of `Variances.of_seeds` and `of_examples`, and their degrees."""

    of_seeds: float
    of_examples: float
    seed_degrees: float
    cluster_degrees: float

    def power(self, difference: float, level: float) -> float:
        r"""The probability that the interval for new seeds and new examples excludes zero.

        The estimate is normal, the part of seeds in the squared half width is proportional to a chi-squared variable
        with k - 1 degrees of freedom, that of examples nearly to one with C - 1, and the three are independent. If
        either part is zero, this is the power of a t-test, given by the noncentral t distribution. With many examples
        and no spread over seeds it is that of a test with known variance.
        """
        deviation = sqrt(self.of_seeds + self.of_examples)
        squares, weights = np.zeros((1, 1)), np.ones((1, 1))
        for axis, variance, degrees in (
            (0, self.of_seeds, self.seed_degrees),
            (1, self.of_examples, self.cluster_degrees),
        ):
            if variance:
                spread, weight = chi_squared(degrees)
                term = student((1 - level) / 2, degrees) ** 2 * variance * spread
                squares = squares + np.expand_dims(term, 1 - axis)
                weights = weights * np.expand_dims(weight, 1 - axis)
        half_width = np.sqrt(squares)
        above = special.ndtr((difference - half_width) / deviation)
        below = special.ndtr((-half_width - difference) / deviation)
        return float((weights * (above + below)).sum())

    def detectable(self, power: float, level: float) -> float:
        """The difference for which `power` has this value; zero if even no difference is called one that often."""
        deviation = sqrt(self.of_seeds + self.of_examples)
        if not deviation or self.power(0, level) >= power:
            return 0.0
        high = deviation
        while self.power(high, level) < power:
            high *= 2
        return float(optimize.brentq(lambda x: self.power(x, level) - power, 0, high, rtol=1e-6))


@cache
def chi_squared(degrees: float) -> tuple[Array, Array]:
    """Nodes and weights that integrate over a chi-squared variable divided by its degrees of freedom."""
    if degrees == inf:
        return np.ones(1), np.ones(1)
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return stats.chi2.ppf((nodes + 1) / 2, degrees) / degrees, weights / 2


def design(pilot: Variances, seeds: float, examples: float) -> Design:
    """An experiment of this size, if its effects have the variances of a pilot."""
    growth = examples / pilot.examples
    clusters = pilot.clusters * growth
    noise = pilot.mean_square_noise / clusters
    return Design(
        of_seeds=(pilot.between_seeds + noise) / seeds,
        of_examples=pilot.between_examples / clusters,
        seed_degrees=seeds - 1,
        cluster_degrees=pilot.effective_clusters * growth - 1,
    )


def detectable(
    pilot: Variances,
    power: float = 0.8,
    level: float = 0.95,
    seeds: float | None = None,
    examples: int | None = None,
) -> float:
    """The smallest true difference for which the interval for new seeds and new examples excludes zero this often.

    Args:
        pilot: the variances of a comparison, as in `Difference.variances`.
        power: the share of experiments that show the difference.
        level: the level of the interval.
        seeds, examples: the size of the experiment; by default that of the pilot. `math.inf` seeds give the limit that
            no number of seeds passes.

    Returns:
        The difference, in the units of the score. It is as uncertain as the variances of the pilot: with three seeds,
        their part over seeds is known within a factor of about five only.

    Raises ValueError for a pilot with fewer than two seeds or two examples, or for shares outside (0, 1).
    """
    _check(pilot, power, level)
    asked = design(pilot, pilot.seeds if seeds is None else seeds, pilot.examples if examples is None else examples)
    return asked.detectable(power, level)


def plan(
    pilot: Variances, difference: float, power: float = 0.8, level: float = 0.95, hours_per_run: float | None = None
) -> list[PlanRow]:
    """How many seeds and examples show a difference, judging by the variances of a pilot.

    The first row is the pilot's test set. Larger test sets of the same kind follow, up to ten times as many examples,
    or more if even those are too few. If the first row has `seeds=None`, no number of seeds shows the difference on the
    examples at hand.

    Args:
        pilot: the variances of a comparison, as in `Difference.variances`.
        difference: the true difference to be shown, in the units of the score; its sign does not matter.
        power: the share of experiments that are to show it.
        level: the level of the interval.
        hours_per_run: the time for training one arm with one seed.

    Raises ValueError for a pilot with fewer than two seeds or two examples or without any spread, for a difference of
    zero, or for shares outside (0, 1).
    """
    _check(pilot, power, level)
    difference = abs(difference)
    if not 0 < difference < inf:
        raise ValueError(f"difference={difference}: must not be zero, and must be finite")
    rows: list[PlanRow] = []
    for step in STEPS:
        examples = step * pilot.examples
        needed = seeds_for(pilot, examples, difference, power, level)
        shown = detectable(pilot, power, level, needed or inf, examples)
        hours = None if hours_per_run is None or needed is None else 2 * needed * hours_per_run
        rows.append(PlanRow(examples, needed, shown, hours))
        if needed == MIN_SEEDS or (needed and step >= ENOUGH):
            break
    return rows


def seeds_for(pilot: Variances, examples: int, difference: float, power: float, level: float) -> int | None:
    """The smallest number of seeds from 3 to 1,000 for which the difference is detected; None if more are needed."""

    def enough(seeds: int) -> bool:
        return design(pilot, seeds, examples).power(difference, level) >= power

    low, high = MIN_SEEDS - 1, MAX_SEEDS  # not enough, enough
    if not enough(high):
        return None
    while high - low > 1:
        middle = ceil((low + high) / 2)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _check(pilot: Variances, power: float, level: float) -> None:
    """Raises ValueError for a pilot that cannot be planned with, and for shares outside (0, 1)."""
    if not np.isfinite(pilot.mean_square_noise):
        raise ValueError(
            f"pilot: {pilot.seeds} seeds and {pilot.clusters} independent examples; two of each are needed"
        )
    for name, share in (("power", power), ("level", level)):
        if not 0 < share < 1:
            raise ValueError(f"{name}={share}: must be between 0 and 1")
