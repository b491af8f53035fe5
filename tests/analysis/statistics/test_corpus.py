"""Pseudo-values of corpus metrics, against leaving out one example after the other."""

import numpy as np
import pytest

from attnorm.analysis.statistics.corpus import mean_loss, perplexity, pseudo_values


def losses(n=50):
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 40, n)
    return np.stack([tokens * rng.gamma(3, 1, n), tokens], axis=1)


def f1(totals):
    hits, given, expected = np.moveaxis(totals, -1, 0)
    return 2 * hits / (given + expected)


COUNTS = np.random.default_rng(1).integers(1, 9, (40, 3))


@pytest.mark.parametrize(("statistics", "metric"), [(losses(), perplexity), (losses(), mean_loss), (COUNTS, f1)])
def test_each_example_is_left_out_once(statistics, metric):
    n, values = len(statistics), []
    for left_out in range(n):
        rest = [row for index, row in enumerate(statistics) if index != left_out]
        values.append(n * metric(np.sum(statistics, axis=0)) - (n - 1) * metric(np.sum(rest, axis=0)))
    found = pseudo_values(statistics, metric)
    assert found.dtype == np.float64
    # Of numbers of size n times the metric, rounded to 2^-53 of it, after sums of n numbers.
    assert found == pytest.approx(values, rel=0, abs=4 * n * n * 2**-53 * metric(statistics.sum(0)))


def test_a_mean_has_its_examples_as_pseudo_values_and_weights_by_tokens():
    values = np.random.default_rng(2).standard_normal(30)
    assert pseudo_values(np.stack([values, np.ones(30)], axis=1), mean_loss) == pytest.approx(values)
    statistics = losses()
    mean = np.average(statistics[:, 0] / statistics[:, 1], weights=statistics[:, 1])
    assert mean_loss(statistics.sum(0)) == pytest.approx(mean)
    assert perplexity(statistics.sum(0)) == pytest.approx(np.exp(mean))


@pytest.mark.parametrize(
    ("statistics", "metric", "message"),
    [
        (losses(1), perplexity, "two examples or more"),
        (losses()[:, 0], perplexity, r"shape \(examples, sums\)"),
        (np.array([[3.0, 2], [0, 0]]), mean_loss, "for all examples but number 0"),
        (np.zeros((3, 2)), mean_loss, "nan for all examples"),
        (losses(), lambda totals: totals, "must map"),
    ],
)
def test_what_has_no_pseudo_values_is_refused(statistics, metric, message):
    with pytest.raises(ValueError, match=message):
        pseudo_values(statistics, metric)
