r"""Arms that are compared at tuned values: which other values may still be the best one of an arm.

That A is better than B means that the largest of the expected scores of A over the grid is above that of B. It is shown
if A at its chosen value beats B at every value of its grid, because the best value of B, whichever it is, is among
them: an intersection-union test (Berger 1982). Its p-value is the largest of those of the single comparisons. Values
that the tuning seeds show to be worse than another one may be left out (Gupta 1965), at a level that is part of the 5
%.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

DISMISSAL = 0.005  # the probability that the best value of any arm is left out, as a part of the 5 %


def candidates(scores: ArrayLike, level: float = DISMISSAL) -> NDArray[np.bool_]:
    """The values of each arm that may be its best one, (..., arms, values).

    A value is left out if its mean is below the largest one of its arm by more than a margin. The margin has the
    variance of all arms and values around their means, and the quantile of Student's t at the level divided by the
    number of arms and by the number of other values of the arm (Bonferroni), so that the best value of any arm is left
    out with a probability of at most `level`.

    Args:
        scores: (..., arms, values, seeds) of the tuning seeds, higher is better. A value with a score that is not
            finite is left out: the arm has diverged there, or has not tried it.
        level: the probability that the best value of any arm is left out.
    """
    table = np.asarray(scores, dtype=np.float64)
    arms, seeds = table.shape[-3], table.shape[-1]
    known: Any = np.isfinite(table).all(-1)
    table = np.where(known[..., None], table, 0.0)
    means = table.mean(-1)
    degrees: Any = np.asarray(known.sum((-2, -1)) * (seeds - 1))
    squares = np.square(table - means[..., None]).sum((-3, -2, -1))
    spread = np.sqrt(2 * squares / np.maximum(degrees, 1) / seeds)  # of the difference between two means
    others = np.maximum(known.sum(-1) - 1, 1)
    quantile = stats.t.isf(level / arms / others, np.maximum(degrees, 1)[..., None])
    margin = np.where(degrees > 0, spread, np.inf)[..., None] * quantile
    means = np.where(known, means, -np.inf)
    return known & (means >= means.max(-1, keepdims=True) - margin[..., None])
