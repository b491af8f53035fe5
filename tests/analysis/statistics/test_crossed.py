"""Differences over seeds and examples, against explicit loops and the tests of scipy."""

import math
from dataclasses import astuple

import numpy as np
import pytest
from scipy import stats

from attnorm.analysis.statistics.crossed import Interval, paired_difference
from attnorm.analysis.statistics.power import detectable
from attnorm.analysis.statistics.variances import effective_number, variances_of

UNEQUAL = ["a"] * 5 + ["b"] * 2 + ["c"] + ["d"] * 4  # clusters of 12 examples


def table(seeds=4, examples=30, shift=0.3, seed=0):
    """Differences with effects of seeds, of examples and of both."""
    rng = np.random.default_rng(seed)
    effects = rng.standard_normal((seeds, 1)) / 5 + rng.standard_normal((1, examples))
    return effects + rng.standard_normal((seeds, examples)) / 2 + shift


def ends(interval):
    return interval.low, interval.high


def numbers(found):
    """What a comparison says for new seeds and examples."""
    return [*ends(found.new_seeds_and_examples), found.p_value, detectable(found.variances)]


def test_mean_squares_are_those_of_a_two_way_analysis_of_variance():
    found, d = variances_of(table(4, 7)), table(4, 7)
    mean = sum(d[s, i] for s in range(4) for i in range(7)) / 28
    of_seed = [sum(d[s, i] for i in range(7)) / 7 for s in range(4)]
    of_example = [sum(d[s, i] for s in range(4)) / 4 for i in range(7)]
    seeds = 7 * sum((m - mean) ** 2 for m in of_seed) / 3
    examples = 4 * sum((m - mean) ** 2 for m in of_example) / 6
    rest = [(d[s, i] - of_seed[s] - of_example[i] + mean) ** 2 for s in range(4) for i in range(7)]
    squares = (found.mean_square_seeds, found.mean_square_examples, found.mean_square_noise)
    assert squares == pytest.approx((seeds, examples, sum(rest) / 18))
    assert found.between_seeds == pytest.approx(max(seeds - sum(rest) / 18, 0) / 7)
    assert found.between_examples == pytest.approx(max(examples - sum(rest) / 18, 0) / 4)


def test_tables_are_evaluated_together_as_one_by_one():
    tables = np.stack([table(seed=seed) for seed in range(3)])
    labels = [example % 7 for example in range(30)]
    for groups in (None, labels):
        together = variances_of(tables, groups).half_widths(0.9)
        alone = [variances_of(one, groups).half_widths(0.9) for one in tables]
        assert np.transpose(together) == pytest.approx(np.array(alone))


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_new_seeds_are_a_t_test_over_their_means_and_without_spread_over_seeds_one_over_examples(level):
    found, reference = paired_difference(table(), level=level), stats.ttest_1samp(table().mean(1), 0)
    assert ends(found.new_seeds) == pytest.approx(reference.confidence_interval(level))
    assert found.p_value_new_seeds == pytest.approx(reference.pvalue)
    row = table()[:1]
    found, reference = paired_difference(np.repeat(row, 3, 0), level=level), stats.ttest_1samp(row[0], 0)
    assert ends(found.new_seeds_and_examples) == pytest.approx(reference.confidence_interval(level))
    assert found.p_value == pytest.approx(reference.pvalue)


def test_the_interval_for_both_adds_the_variance_of_examples_without_the_noise():
    d = table(5, 2000)
    found, v = paired_difference(d), variances_of(d)
    examples = max(v.mean_square_examples - v.mean_square_noise, 0)
    square = (stats.t.ppf(0.975, 4) ** 2 * v.mean_square_seeds + stats.norm.ppf(0.975) ** 2 * examples) / d.size
    # Student's quantile with 1,999 degrees of freedom exceeds the normal one by a factor of (1 + z^2) / 4 / 1,999.
    assert found.new_seeds_and_examples.high - found.estimate == pytest.approx(math.sqrt(square), rel=7e-4)
    assert found.new_seeds_and_examples.low < found.new_seeds.low < found.estimate == pytest.approx(d.mean())


@pytest.mark.long
@pytest.mark.parametrize("groups", [None, UNEQUAL * 5])
@pytest.mark.parametrize("shift", [0.0, 0.1, 0.5, 3.0, 1e4])
@pytest.mark.parametrize("seeds", [3, 10, 200])
def test_the_p_value_is_where_the_interval_ends_at_zero(seeds, shift, groups):
    labels = groups and [f"{label}{example // 12}" for example, label in enumerate(groups)]
    d = table(seeds, 60, shift)
    p = paired_difference(d, labels).p_value
    assert 0 < p <= 1
    if 1e-14 < p < 1:  # 1 - p is exact enough as a level
        low, high = ends(paired_difference(d, labels, level=1 - p).new_seeds_and_examples)
        assert min(abs(low), abs(high)) < (high - low) * max(1e-6, 1e-15 / p)
    low, high = ends(paired_difference(d, labels).new_seeds_and_examples)
    assert (p < 0.05) == (low > 0 or high < 0)


def test_swapping_the_arms_swaps_the_signs_and_units_do_not_matter():
    found, swapped, scaled = (paired_difference(factor * table()) for factor in (1, -1, 100))
    low, high, p, least = numbers(found)
    assert swapped.estimate == -found.estimate and numbers(swapped) == pytest.approx([-high, -low, p, least])
    assert numbers(scaled) == pytest.approx([100 * low, 100 * high, p, 100 * least])


def test_groups_of_equal_size_count_by_their_means_and_those_of_one_example_are_no_groups():
    plain, grouped = paired_difference(table()), paired_difference(table(), [f"q{n}" for n in range(30)])
    assert astuple(plain)[:6] == pytest.approx(astuple(grouped)[:6])
    assert numbers(plain) == pytest.approx(numbers(grouped))
    d = table(4, 60)
    shuffled = np.random.default_rng(1).permutation(60)
    grouped = paired_difference(d[:, shuffled], [f"passage {example // 3}" for example in shuffled])
    means = paired_difference(d.reshape(4, 20, 3).mean(-1))
    assert (grouped.examples, grouped.clusters, means.clusters) == (60, 20, 20)
    assert numbers(grouped) == pytest.approx(numbers(means))


def test_groups_of_unequal_size_are_left_out_one_by_one():
    d, labels = table(4, 12), np.array(UNEQUAL)
    found = variances_of(d, UNEQUAL)
    moved = np.array([d[:, labels != label].mean(1) - d.mean(1) for label in "abcd"])  # clusters, seeds
    jackknife = 3 / 4 * (moved.mean(1) ** 2).sum()
    noise = 3 / 4 * ((moved - moved.mean(1, keepdims=True)) ** 2).sum() / (4 * 3)
    assert found.mean_square_examples / (4 * 4) == pytest.approx(jackknife)
    assert found.mean_square_noise / (4 * 4) == pytest.approx(noise)
    assert found.of_seeds == pytest.approx(d.mean(1).var(ddof=1) / 4)


@pytest.mark.parametrize("sizes", [[1] * 6, [5, 5, 5], [5, 2, 1, 4], [50, 1, 1, 1, 1]])
def test_the_effective_number_of_groups_follows_from_the_eigenvalues_of_the_jackknife(sizes):
    sizes = np.array(sizes)
    share, n = sizes / sizes.sum(), sizes.sum()
    # The mean without cluster c minus the mean, as a linear map of the cluster means, scaled to unit variance.
    moved = np.array([np.where(np.arange(len(sizes)) == c, 0, sizes) / (n - sizes[c]) for c in range(len(sizes))])
    root = (moved - share) / np.sqrt(sizes)
    eigenvalues = np.linalg.eigvalsh(root.T @ root)
    assert effective_number(share) - 1 == pytest.approx(eigenvalues.sum() ** 2 / (eigenvalues**2).sum())
    assert effective_number(share) <= len(sizes) * (1 + 1e-12)
    if len(set(sizes)) == 1:
        assert effective_number(share) == pytest.approx(len(sizes))


FEW = "at least 10 groups are needed (found"
SPARSE = np.zeros((3, 100))
SPARSE[:, :9] = [[1.0], [1.0], [-1.0]]

CHANCE = np.array([np.roll([1.0] * 12 + [-1.0] * 5 + [0.0] * 13, shift) for shift in (0, 10, 20)])  # equal means


@pytest.mark.parametrize(
    ("differences", "groups", "reason"),
    [
        (table(1), None, "at least 3 seeds are needed (found 1)"),
        (table(2), None, "at least 3 seeds are needed (found 2)"),
        (np.zeros((3, 20)), None, "all differences are zero"),
        (np.full((3, 20), 2.0), None, "all differences are equal"),
        (CHANCE, None, "the means of all seeds are equal, although seeds differ on single examples"),
        (table(3, 9), None, "at least 10 examples are needed (found 9)"),
        (table(3, 1), None, "at least 10 examples are needed (found 1)"),
        (table(3, 30), [n // 5 for n in range(30)], f"{FEW} 6)"),
        (table(3, 30), [max(n, 14) for n in range(30)], f"{FEW} 3.18, to which 16 of such unequal sizes amount)"),
        (SPARSE, None, "only 9 of 100 examples differ at all, fewer than 10"),
    ],
)
def test_why_there_is_no_verdict(differences, groups, reason):
    found = paired_difference(differences, groups)
    assert found.no_verdict == reason
    assert found.estimate == pytest.approx(np.mean(differences))
    assert np.isnan([found.p_value, *ends(found.new_seeds_and_examples)]).all()
    of_seeds = [found.p_value_new_seeds, *ends(found.new_seeds)]
    assert np.isnan(of_seeds).all() == (len(differences) < 3 or reason.split()[0] in ("all", "the"))


def test_there_is_a_verdict_at_the_limits():
    enough = SPARSE.copy()
    enough[0, 9] = 1
    assert paired_difference(enough).no_verdict is None
    assert paired_difference(table(3, 10)).no_verdict is None
    assert paired_difference(table(3, 30), [n // 3 for n in range(30)]).no_verdict is None
    found = paired_difference(np.repeat(np.tile([2.0, 0.0], 10)[None], 3, 0))  # seeds without any spread
    assert (found.new_seeds, found.p_value_new_seeds) == (Interval(1, 1), 0) and found.p_value > 0


@pytest.mark.parametrize(
    ("differences", "options", "message"),
    [
        (np.zeros(5), {}, r"shape \(seeds, examples\), not \(5,\)"),
        (np.zeros((3, 0)), {}, "shape"),
        ([[1.0, math.nan]] * 3, {}, "finite"),
        (table(), {"groups": ["a"]}, "one label for each of the 30 examples, not 1"),
        (table(), {"level": 95}, "level=95: must be between 0 and 1"),
    ],
)
def test_what_is_no_table_is_refused(differences, options, message):
    with pytest.raises(ValueError, match=message):
        paired_difference(differences, **options)
