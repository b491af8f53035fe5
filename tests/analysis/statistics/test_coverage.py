"""The intervals contain the true difference as often as they say, in simulated experiments."""

import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from attnorm.analysis.statistics.power import detectable
from attnorm.analysis.statistics.variances import Variances, variances_of

ROOT = Path(__file__).parents[3]
COVERAGE, EQUAL = 0.945, 0.055  # at least, at most


@pytest.fixture(scope="module")
def coverage():
    sys.path.append(str(ROOT / "benchmarks"))  # for the file beside it that simulates scores
    spec = importlib.util.spec_from_file_location("coverage_benchmark", ROOT / "benchmarks" / "coverage.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(coverage, cells, draws, allowed=0.0):
    """Fails with a line per cell whose shares are worse than allowed."""
    wrong = []
    for cell in cells:
        found = coverage.cover(cell, draws)
        if min(found.seeds, found.both) < COVERAGE - allowed or (not cell.gap and found.called > EQUAL + allowed):
            wrong.append(f"{cell}: {found}")
    assert not wrong, "\n".join(["", *wrong])


@pytest.mark.long
@pytest.mark.parametrize("kind", ["normal", "exact match", "rouge"])
def test_intervals_cover_the_true_difference(coverage, kind):
    draws = 1000
    spreads = ((0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 1, 1))
    cells = [cell for cell in coverage.grid((kind,)) if cell.seeds == 3 and cell.spread in spreads]
    check(coverage, cells, draws, allowed=4 * math.sqrt(0.05 * 0.95 / draws))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "exact match", "rouge"])
def test_intervals_cover_the_true_difference_in_every_cell(coverage, kind):
    check(coverage, coverage.grid((kind,)), 20_000)


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
