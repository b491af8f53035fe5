"""The intervals contain the true difference as often as they say, in simulated experiments."""

import math
import sys

import numpy as np
import pytest
from scripts import ROOT, load

from attnorm.analysis.statistics.power import detectable
from attnorm.analysis.statistics.tuned import candidates
from attnorm.analysis.statistics.variances import Variances, variances_of

COVERAGE, EQUAL = 0.945, 0.055  # at least, at most


@pytest.fixture(scope="module")
def coverage():
    sys.path.append(str(ROOT / "benchmarks"))  # for the file beside it that simulates scores
    return load("benchmarks/coverage")


def check(coverage, cells, draws, errors=0.0):
    """Fails with a line per cell whose shares are worse than allowed, by more than so many standard errors."""
    wrong, allowed = [], errors * math.sqrt(0.05 * 0.95 / draws)
    for cell in cells:
        found = coverage.cover(cell, draws)
        if min(found.seeds, found.both) < COVERAGE - allowed or (not cell.gap and found.called > EQUAL + allowed):
            wrong.append(f"{cell}: {found}")
    assert not wrong, "\n".join(["", *wrong])


@pytest.mark.long
@pytest.mark.parametrize("kind", ["normal", "exact match", "rouge"])
def test_intervals_cover_the_true_difference(coverage, kind):
    spreads = ((0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 1, 1))
    cells = [cell for cell in coverage.grid((kind,)) if cell.seeds == 3 and cell.spread in spreads]
    check(coverage, cells, 1000, errors=4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "exact match", "rouge"])
def test_intervals_cover_the_true_difference_in_every_cell(coverage, kind):
    """With more seeds, tables are larger. Few draws still show a wrong quantile: with 10 seeds, an interval with the
    normal one covers 91.8 %."""
    for cell in coverage.grid((kind,)):
        check(coverage, [cell], *((20_000, 0) if cell.seeds == 3 else (4000, 2)))


@pytest.mark.parametrize(("kind", "clusters"), [("equal", 30), ("log-normal", 30), ("Zipf", 100)])
def test_intervals_cover_with_clusters_that_ignoring_them_would_miss(coverage, kind, clusters):
    draws, rng = 1000, np.random.default_rng(0)
    groups = np.repeat(np.arange(clusters), coverage.sizes_of(kind, clusters))
    table = coverage.clustered_scores(rng, coverage.Cell("normal", 3, len(groups), (0, 1, 0)), groups, draws)
    error = np.abs(table.mean((-2, -1)))
    covered = (error <= variances_of(table, groups).half_widths(0.95)[1]).mean()
    ignored = (error <= variances_of(table).half_widths(0.95)[1]).mean()
    assert covered > COVERAGE - 4 * math.sqrt(0.05 * 0.95 / draws)
    assert ignored < 0.7


@pytest.mark.parametrize("spread", [(1, 0, 0), (0, 1, 0), (1, 1, 1)])
def test_a_detectable_difference_is_found_four_times_in_five(coverage, spread):
    draws, cell = 2000, coverage.Cell("normal", 5, 100, spread)
    seed, example, noise = (deviation**2 for deviation in coverage.deviations(cell))
    squares = (100 * seed + noise, 5 * example + noise, noise)
    size = detectable(Variances(*squares, seeds=5, examples=100, clusters=100, effective_clusters=100.0))
    found = coverage.cover(coverage.Cell("normal", 5, 100, spread, size), draws).called
    assert found == pytest.approx(0.8, abs=4 * math.sqrt(0.8 * 0.2 / draws))


def test_differences_of_perplexity_are_covered(coverage):
    draws, rng, hits = 300, np.random.default_rng(0), []
    for _ in range(draws):
        table, truth = coverage.perplexity_experiment(rng, 3, 200, 0.02)
        hits.append(abs(table.mean() - truth) <= variances_of(table).half_widths(0.95)[1])
    assert np.mean(hits) > COVERAGE - 4 * math.sqrt(0.05 * 0.95 / draws)


@pytest.mark.parametrize("arms", [2, 3])
def test_equal_arms_with_tuned_rates_are_not_called_different(arms):
    tuned = load("benchmarks/tuned")
    found, more = tuned.shares(tuned.Cell(arms, 10, 4, curve=1.0, best=1.0), 5000)
    assert found["chosen"] > 0.12 and found["attnorm"] <= found["every"] < 0.045 and 0.04 < found["nested"] < 0.06
    assert 0 < more < 1


@pytest.mark.parametrize("better", [0, 2])
def test_the_best_rate_of_an_arm_is_left_out_as_rarely_as_promised(better):
    rng = np.random.default_rng(0)
    means = np.array([0.0, 0.0, -4.0, -30.0]) + better * np.array([0, 1, 0, 0])
    kept = candidates(means[:, None] + rng.standard_normal((20_000, 3, 4, 3)), 0.05)
    assert (~kept[..., 1]).any(-1).mean() < 0.05, "the second rate is the best one, or as good as the first"
    assert not kept[..., 3].any() and kept[..., 2].mean() < 0.2


def test_rates_with_failures_are_left_out_and_a_single_seed_leaves_none_out():
    scores = np.array([[[3.0, 3.1], [1.0, 1.1], [9.0, np.nan]], [[1.0, 1.0], [1.0, 1.1], [-50, -50]]])
    assert candidates(scores).tolist() == [[True, False, False], [True, True, False]]
    assert candidates(scores[..., :1]).tolist() == [[True] * 3] * 2
    assert candidates(np.full((1, 2, 2), np.nan)).tolist() == [[False, False]]


@pytest.mark.parametrize("kind", ["seeds", "common", "unequal", "tails", "examples"])
def test_ladders_of_equal_arms_are_called_different_as_rarely_as_they_say(kind):
    ladder, draws = load("benchmarks/ladder"), 2000
    found = ladder.ladders(kind, 4, 3, 50, draws, np.zeros_like)
    allowed = 4 * math.sqrt(0.05 * 0.95 / draws)
    assert max(found[name] for name in ("trend", "largest", "any", "deviation")) < 0.055 + allowed
    assert min(found[name] for name in ("projection", "held")) > COVERAGE - allowed
    line = ladder.ladders(kind, 4, 3, 50, draws, lambda x: -0.05 * x)
    assert line["projection"] == found["projection"] and line["held"] == found["held"]
    assert line["trend"] > 0.6
