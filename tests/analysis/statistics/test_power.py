"""Detectable differences, against the noncentral t distribution, and plans, against the definition."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq

from attnorm.analysis.statistics.crossed import paired_difference
from attnorm.analysis.statistics.power import Design, detectable, plan
from attnorm.analysis.statistics.variances import Variances, variances_of


def pilot(seeds=1.0, examples=1.0, noise=1.0, k=5, n=200):
    """The mean squares expected from effects with these variances."""
    squares = (n * seeds + noise, k * examples + noise, noise)
    return Variances(*squares, seeds=k, examples=n, clusters=n, effective_clusters=float(n))


def of_a_t_test(degrees, power=0.8, level=0.95):
    """The detectable difference in standard errors, by the noncentral t distribution."""
    critical = stats.t.isf((1 - level) / 2, degrees)
    return brentq(lambda shift: stats.nct.sf(critical, degrees, shift) - power, 0.1, 8)


@pytest.mark.parametrize("power", [0.5, 0.8, 0.9])
@pytest.mark.parametrize("k", [3, 5, 10])
def test_with_seeds_and_noise_it_is_a_t_test_over_seeds_and_noise_shrinks_with_examples(k, power):
    seeds, noisy = pilot(0.04, 0, 0, k), pilot(0.04, 0, 4, k, 200)
    of_seeds = of_a_t_test(k - 1, power) / math.sqrt(k)
    assert detectable(seeds, power) == pytest.approx(of_seeds * 0.2, rel=1e-4)
    for examples in (200, 800):
        expected = of_seeds * math.sqrt(0.04 + 4 / examples)
        assert detectable(noisy, power, examples=examples) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("n", [10, 200, 10_000])
def test_with_examples_alone_it_is_a_t_test_over_examples(n):
    found = detectable(pilot(0, 4, 0, 5, n))
    assert found == pytest.approx(of_a_t_test(n - 1) * 2 / math.sqrt(n), rel=1e-4)
    normal = (stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) * 2 / math.sqrt(n)
    assert found == pytest.approx(normal, rel=2 / n)
    unequal = replace(pilot(0, 4, 0, 5, n), effective_clusters=0.4 * n)  # groups that count as fewer
    for factor in (1, 2):
        expected = of_a_t_test(0.4 * factor * n - 1) * 2 / math.sqrt(factor * n)
        assert detectable(unequal, examples=factor * n) == pytest.approx(expected, rel=1e-4)


def test_in_between_it_is_what_a_simulation_shows():
    rng, draws, design = np.random.default_rng(0), 200_000, Design(1.0, 2.0, 2, 19)
    size = design.detectable(0.8, 0.95)
    seeds, examples = (rng.chisquare(degrees, draws) / degrees for degrees in (2, 19))
    squares = stats.t.ppf(0.975, 2) ** 2 * seeds + stats.t.ppf(0.975, 19) ** 2 * 2 * examples
    shown = np.abs(rng.normal(size, math.sqrt(3), draws)) > np.sqrt(squares)
    assert shown.mean() == pytest.approx(0.8, abs=5 * math.sqrt(0.8 * 0.2 / draws))
    assert design.power(0, 0.95) < 0.05


def test_more_of_anything_detects_smaller_differences():
    found = pilot()
    base = detectable(found)
    assert detectable(found, seeds=6) < base
    assert detectable(found, examples=300) < base
    assert detectable(found, power=0.7) < base < detectable(found, level=0.99)
    assert detectable(found, level=0.1) == 0  # without any difference, 90 % of experiments would show one
    limit = detectable(found, seeds=math.inf)
    assert limit == pytest.approx(of_a_t_test(199) / math.sqrt(200), rel=1e-4)
    assert limit < detectable(found, seeds=1000) < 1.2 * limit


@pytest.mark.parametrize("difference", [0.9, -0.5, 0.25])
def test_a_plan_has_the_fewest_seeds_that_are_enough(difference):
    found = pilot(0.1, 1, 1)
    rows = plan(found, difference, hours_per_run=1.5)
    assert rows[0].examples == 200
    for row in rows:
        assert row.detectable == pytest.approx(detectable(found, seeds=row.seeds, examples=row.examples))
        assert row.detectable <= abs(difference) * (1 + 1e-6)
        assert row.seeds == 3 or detectable(found, seeds=row.seeds - 1, examples=row.examples) > abs(difference)
        assert row.hours == 2 * row.seeds * 1.5
    assert rows[-1].seeds == 3 or rows[-1].examples >= 2000


def test_a_plan_says_when_no_number_of_seeds_is_enough():
    found = pilot(0.01, 1, 1)
    first, *rest = plan(found, 0.15, hours_per_run=1)
    assert (first.examples, first.seeds, first.hours) == (200, None, None)
    assert first.detectable == pytest.approx(detectable(found, seeds=math.inf)) and first.detectable > 0.15
    assert rest[-1].seeds and rest[-1].detectable <= 0.15
    far = plan(found, 0.02)  # needs a test set that is far larger than ten times the pilot's
    assert far[-1].examples > 2000 and far[-1].seeds and all(row.seeds is None for row in far[:-1])


def test_a_plan_keeps_the_sizes_of_groups():
    differences = np.random.default_rng(0).standard_normal((4, 60)).repeat(5, axis=1)
    grouped = plan(paired_difference(differences, [n // 5 for n in range(300)]).variances, 0.3)
    means = plan(paired_difference(differences[:, ::5]).variances, 0.3)
    assert [row.seeds for row in grouped] == [row.seeds for row in means]
    assert [row.examples for row in grouped] == [5 * row.examples for row in means]


@pytest.mark.parametrize(
    ("found", "options", "message"),
    [
        (variances_of(np.ones((1, 20))), {}, "1 seeds and 20 independent examples"),
        (pilot(), {"power": 80}, "power=80: must be between 0 and 1"),
        (pilot(), {"level": 0.0}, "level=0.0: must be between 0 and 1"),
        (pilot(), {"difference": 0.0}, "must not be zero"),
    ],
)
def test_what_cannot_be_planned_is_refused(found, options, message):
    with pytest.raises(ValueError, match=message):
        plan(found, **{"difference": 0.5, **options})
