r"""Metrics of a whole corpus, such as perplexity, as one value per example.

A metric like perplexity is no mean over examples, so that it has no score per example. Its jackknife pseudo-values
(Quenouille 1956, Tukey 1958) play this part: their mean is the metric up to a term of order 1/n, and their spread over
examples is that of the metric.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def pseudo_values(statistics: ArrayLike, metric: Callable[[Array], Array]) -> Array:
    r"""The jackknife pseudo-values of a metric that depends on sums over examples.

    Pseudo-value i is :math:`n\theta - (n-1)\theta_{-i}`, where :math:`\theta` is the metric of all n examples and
    :math:`\theta_{-i}` that of all but example i. If the metric is a mean, the pseudo-values are the values of the
    examples. Compute them for each arm and each seed, and compare their differences.

    Args:
        statistics: (n, s), for each example the s numbers whose sums determine the metric, such as the sum of its
            losses and the number of its tokens.
        metric: maps sums (..., s) to values (...), for any leading dimensions.

    Returns:
        float64 (n,), in the units of the metric.

    Raises ValueError for fewer than two examples, and if the metric is not finite for all examples or for all but one.
    """
    parts = np.asarray(statistics, dtype=np.float64)
    if parts.ndim != 2 or len(parts) < 2:
        raise ValueError(
            f"statistics: must have the shape (examples, sums) with two examples or more, not {parts.shape}"
        )
    n, total = len(parts), parts.sum(0)
    whole, without = metric(total), metric(total - parts)
    if np.shape(whole) != () or np.shape(without) != (n,):
        raise ValueError(f"metric: must map (..., {parts.shape[1]}) to (...), not {parts.shape} to {np.shape(without)}")
    if not np.isfinite(whole):
        raise ValueError(f"metric: {whole} for all examples")
    if len(wrong := np.flatnonzero(~np.isfinite(without))):
        raise ValueError(f"metric: {without[wrong[0]]} for all examples but number {wrong[0]}")
    return whole + (n - 1) * (whole - without)


def mean_loss(totals: Array) -> Array:
    """The mean loss per token, from (..., 2): the sum of the losses, and the number of tokens."""
    loss, tokens = np.moveaxis(totals, -1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):  # no tokens left: reported by `pseudo_values`
        return loss / tokens


def perplexity(totals: Array) -> Array:
    """exp of the mean loss per token in nats, from (..., 2): the sum of the losses, and the number of tokens."""
    with np.errstate(over="ignore"):  # reported by `pseudo_values`
        return np.exp(mean_loss(totals))
