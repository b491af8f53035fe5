"""Several comparisons at once."""

from collections.abc import Sequence
from math import isnan


def holm(p_values: Sequence[float]) -> list[float]:
    """The adjusted p-values of Holm (1979), in the order given.

    Calling the comparisons different whose adjusted p-value is below 0.05 makes any false call at all with a
    probability of at most 5 %, however the comparisons depend on each other. The smallest of m p-values is multiplied
    by m, the next one by m - 1, and so on, and none becomes smaller than the one before it.

    A comparison without a verdict has the p-value NaN. It stays NaN and counts among the m: it was one of the questions
    asked. Raises ValueError for a p-value outside [0, 1].
    """
    if wrong := [p for p in p_values if not (isnan(p) or 0 <= p <= 1)]:
        raise ValueError(f"p_values: {wrong[0]} is not between 0 and 1")
    adjusted, floor = [float("nan")] * len(p_values), 0.0
    decided = [index for index, p in enumerate(p_values) if not isnan(p)]
    for rank, index in enumerate(sorted(decided, key=lambda index: p_values[index])):
        floor = max(floor, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = floor
    return adjusted
