r"""The spread of paired differences over seeds, over test examples, and from one pair of the two to the next.

Two arms are trained with the same :math:`k` seeds and evaluated on the same :math:`n` examples. The difference between
their scores follows a two-way random-effects model,

.. math:: D_{si} = \delta + a_s + b_i + e_{si},

in which the seed effects :math:`a_s`, the example effects :math:`b_i` and the noise :math:`e_{si}` are independent and
have mean zero. Three mean squares carry all that the data say about their variances:

.. math::
    \mathrm{MS}_S &= n \sum_s (\bar D_{s\cdot} - \bar D)^2 / (k-1),
        & \mathrm{E}\,\mathrm{MS}_S &= n\sigma_a^2 + \sigma_e^2 \\
    \mathrm{MS}_I &= k \sum_i (\bar D_{\cdot i} - \bar D)^2 / (n-1),
        & \mathrm{E}\,\mathrm{MS}_I &= k\sigma_b^2 + \sigma_e^2 \\
    \mathrm{MS}_E &= \sum_{si} (D_{si} - \bar D_{s\cdot} - \bar D_{\cdot i} + \bar D)^2 / ((k-1)(n-1)),
        & \mathrm{E}\,\mathrm{MS}_E &= \sigma_e^2

Examples that belong together, such as the questions on one image, form a cluster. Then clusters take the place of
examples: C clusters with :math:`n_c` examples each enter as jackknife pseudo-values of the mean over examples.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Array = NDArray[np.float64]
Values: TypeAlias = Any  # a float, or a float64 array with one number per table


@dataclass(frozen=True)
class Variances:
    """The mean squares of a table of differences, as numbers or as arrays of any one shape.

    mean_square_seeds, mean_square_examples, mean_square_noise: see the module. They are NaN with fewer than two seeds,
    and the last two also with fewer than two clusters, because nothing varies then.
    seeds: the number of seeds. examples: the number of examples. clusters: the number of clusters, which is the number
    of examples if every example stands for itself.
    effective_clusters: the number of clusters of equal size that determine the variance between clusters equally well.
    """

    mean_square_seeds: Values
    mean_square_examples: Values
    mean_square_noise: Values
    seeds: int
    examples: int
    clusters: int
    effective_clusters: float

    @property
    def between_seeds(self) -> Values:
        """The variance of the seed effects, truncated at zero."""
        return np.maximum(self.mean_square_seeds - self.mean_square_noise, 0) / self.clusters

    @property
    def between_examples(self) -> Values:
        """The variance of the effects of examples, or of clusters, truncated at zero."""
        return np.maximum(self.mean_square_examples - self.mean_square_noise, 0) / self.seeds

    @property
    def of_seeds(self) -> Values:
        """The part of the variance of the mean difference that new seeds on the same examples bring, noise included."""
        return self.mean_square_seeds / (self.seeds * self.clusters)

    @property
    def of_examples(self) -> Values:
        """The part of the variance of the mean difference that only new examples bring."""
        return self.between_examples / self.clusters

    def half_widths(self, level: float) -> tuple[Array, Array]:
        r"""The half widths of the intervals for new seeds, and for new seeds and new examples.

        They are :math:`t_{k-1} \sqrt{\mathrm{MS}_S / kn}` and
        :math:`\sqrt{(t_{k-1}^2 \mathrm{MS}_S + t_{n-1}^2 \max(\mathrm{MS}_I - \mathrm{MS}_E, 0)) / kn}`, where t is the
        quantile of Student's distribution at 1 - (1 - level) / 2. Subtracting :math:`\mathrm{MS}_E` keeps the noise
        from being counted twice, because :math:`\mathrm{MS}_S` contains it.
        """
        seeds = student((1 - level) / 2, self.seeds - 1) ** 2 * self.of_seeds
        examples = student((1 - level) / 2, self.effective_clusters - 1) ** 2 * self.of_examples
        return np.sqrt(seeds), np.sqrt(seeds + examples)


def student(tail: ArrayLike, degrees: ArrayLike) -> Array:
    """The value that Student's t exceeds with probability `tail`, at most one half."""
    return np.abs(special.stdtrit(degrees, tail))


def variances_of(differences: Array, groups: Sequence[Hashable] | None = None) -> Variances:
    """The mean squares of float64 differences (..., seeds, examples); leading dimensions hold independent tables.

    groups: for each example, the label of its cluster.
    """
    *_, seeds, examples = differences.shape
    means, sizes = cluster_means(differences, groups)
    clusters, share = len(sizes), sizes / examples
    nothing = np.full(differences.shape[:-2], np.nan)[()]
    per_seed = differences.mean(-1, keepdims=True)
    between = clusters * per_seed[..., 0].var(-1, ddof=1) if seeds > 1 else nothing
    if seeds < 2 or clusters < 2:
        return Variances(between, nothing, nothing, seeds, examples, clusters, float(clusters))
    # Without cluster c, the mean moves by -n_c / (n - n_c) times the distance of the cluster's mean from it.
    moved = (clusters - 1) * share / (1 - share) * (means - per_seed)
    shared = moved.mean(-2, keepdims=True)
    across = seeds * np.square(shared).sum((-2, -1)) / (clusters - 1)
    noise = np.square(moved - shared).sum((-2, -1)) / ((seeds - 1) * (clusters - 1))
    return Variances(between, across, noise, seeds, examples, clusters, effective_number(share))


def cluster_means(differences: Array, groups: Sequence[Hashable] | None) -> tuple[Array, NDArray[np.intp]]:
    """The mean of each cluster (..., seeds, clusters), and the number of its examples (clusters,)."""
    examples = differences.shape[-1]
    if groups is None:
        return differences, np.ones(examples, dtype=np.intp)
    numbers: dict[Hashable, int] = {}
    cluster = np.array([numbers.setdefault(group, len(numbers)) for group in groups], dtype=np.intp)
    sizes = np.bincount(cluster)
    first = np.cumsum(sizes) - sizes
    return np.add.reduceat(differences[..., np.argsort(cluster, kind="stable")], first, axis=-1) / sizes, sizes


def effective_number(share: Array) -> float:
    r"""The effective number of clusters, from the share of the examples that each has.

    It is one more than the degrees of freedom of Bell and McCaffrey (2002) for the jackknife variance of a mean. With
    equal variances of all examples, that variance is a quadratic form with the eigenvalues :math:`\lambda`, and
    :math:`(\sum\lambda)^2 / \sum\lambda^2` are its degrees of freedom in Satterthwaite's approximation. Both sums have
    closed forms in :math:`g_c = p_c / (1 - p_c)`. For C clusters of equal size the result is C.
    """
    g = share / (1 - share)
    squares = np.square(g).sum()
    return float(1 + g.sum() ** 2 / (squares + squares**2 - np.power(g, 4).sum()))
