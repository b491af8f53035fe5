r"""Does a difference between two arms survive scale? Contrasts over the rungs of a ladder, from the smallest to the
largest model.

:math:`d_{sri}` is the score of an arm minus that of the baseline on rung s, seed r and example i, and :math:`x_s` is
the logarithm to base 10 of the compute of the rung. Every question is a contrast :math:`\sum_s c_s d_{sri}`: one number
per seed and example, to which `paired_difference` applies as it stands, whatever the variances of the rungs and their
correlations are. The simulation is in docs/statistics.md.
"""

from collections.abc import Hashable, Sequence
from math import sqrt
from typing import TypeAlias

import numpy as np

from attnorm.analysis.statistics.crossed import Difference, paired_difference
from attnorm.analysis.statistics.variances import Array, variances_of

Points: TypeAlias = Sequence[float] | Array
MIN_RUNGS = 3  # of a trend: two rungs are always on a line
STANDARD_ERRORS = 2  # by which the slope of the baseline has to differ from zero for a compute multiplier


def trend_weights(x: Points) -> Array:
    """The weights (rungs,) of the slope of the least-squares line: the change of the difference per factor of ten in
    compute. x: (rungs,), log10 of the compute, with two different values or more."""
    points = np.asarray(x, dtype=np.float64)
    centred = points - points.mean()
    if not np.any(centred):
        raise ValueError(f"x={x!r}: a line needs two rungs of different compute or more")
    return centred / np.square(centred).sum()


def projection_weights(x: Points, at: float) -> Array:
    """The weights (rungs,) of the value of the least-squares line at log10 compute `at`."""
    weights = trend_weights(x)
    return 1 / len(weights) + weights * (at - np.asarray(x).mean())


def deviation_weights(x: Points) -> Array:
    """The weights (rungs,) of the last rung minus the line through the others, the only check of straightness."""
    points = np.asarray(x, dtype=np.float64)
    return np.append(-projection_weights(points[:-1], points[-1]), 1.0)


def held_weights(x: Points, beyond: float) -> Array:
    """The weights (rungs + 1,) of a new rung, which comes last, minus the projection of the others to its compute."""
    return np.append(-projection_weights(x, beyond), 1.0)


def slope_weights(x: Points, at: float) -> Array:
    """The weights (rungs,) of the slope at `at` of the least-squares parabola through three rungs or more."""
    centred = np.asarray(x, dtype=np.float64) - at
    if len(np.unique(centred)) < MIN_RUNGS:
        raise ValueError(f"x={x!r}: a parabola needs {MIN_RUNGS} rungs of different compute or more")
    return np.linalg.pinv(np.vander(centred, 3, increasing=True))[1]


def contrast(
    weights: Array, differences: Array, groups: Sequence[Hashable] | None = None, level: float = 0.95
) -> Difference:
    """The interval of a contrast for new seeds and new examples.

    weights: (rungs,). differences: (rungs, seeds, examples), arm minus baseline. groups, level: see
    `paired_difference`, whose errors it raises.
    """
    return paired_difference(np.tensordot(weights, differences, 1), groups, level)


def baseline_slope(
    scores: Array, x: Points, at: float, better: int = -1, groups: Sequence[Hashable] | None = None
) -> float | None:
    """By how much the baseline's score changes per factor of ten in compute at log10 compute `at`.

    scores: (rungs, seeds, examples) of the baseline. better: 1 if higher scores are better, -1 if lower ones are.
    Returns None unless the slope is better than zero by STANDARD_ERRORS, for new seeds and new examples, and if a
    parabola cannot be fitted.
    """
    if len(np.unique(np.asarray(x))) < MIN_RUNGS or scores.shape[1] < 2:
        return None
    table = np.tensordot(slope_weights(x, at), scores, 1)
    spread, slope = variances_of(table, groups), float(table.mean())
    error = sqrt(spread.of_seeds + np.nan_to_num(spread.of_examples))
    return slope if better * slope > STANDARD_ERRORS * error else None


def compute_multiplier(difference: float, slope: float) -> float:
    """How many times as much compute the baseline needs to be as good as the arm, above 1 if the arm is better; inf if
    it is too large for a number. slope: see `baseline_slope`."""
    with np.errstate(over="ignore"):
        return float(np.float64(10.0) ** (difference / slope))
