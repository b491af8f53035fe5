"""Holm's adjusted p-values, against examples worked by hand and the closure of Bonferroni's test."""

import math
from itertools import combinations

import numpy as np
import pytest

from attnorm.analysis.statistics.multiple import holm


@pytest.mark.parametrize(
    ("p_values", "adjusted"),
    [
        ([], []),
        ([0.03], [0.03]),
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),
        ([0.02, 0.02, 0.02], [0.06, 0.06, 0.06]),
        ([0.7, 0.6, 0.0], [1.0, 1.0, 0.0]),
        ([0.01, math.nan, 0.02], [0.03, math.nan, 0.04]),  # a comparison without a verdict still counts
    ],
)
def test_worked_examples(p_values, adjusted):
    assert holm(p_values) == pytest.approx(adjusted, nan_ok=True)


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_closure_of_bonferroni(seed):
    """A hypothesis is rejected by Holm if Bonferroni rejects each intersection of hypotheses that it is part of."""
    p = np.random.default_rng(seed).random(5) ** 3
    subsets = [subset for size in range(1, 6) for subset in combinations(range(5), size)]
    closed = [max(min(1, len(s) * min(p[list(s)])) for s in subsets if index in s) for index in range(5)]
    assert holm(list(p)) == pytest.approx(closed)


def test_what_is_no_p_value_is_refused():
    with pytest.raises(ValueError, match=r"1\.5 is not between 0 and 1"):
        holm([0.1, 1.5])
