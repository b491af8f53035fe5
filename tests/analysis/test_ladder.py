"""Ladders: contrasts over rungs, what runs and tables of scores say about them, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_up_runs import make_run
from scipy import stats

from attnorm.analysis.arms import find_runs
from attnorm.analysis.ladder.comparison import compare_ladder
from attnorm.analysis.ladder.record import sentences, table_of, write_comparison
from attnorm.analysis.ladder.runs import scores_of_runs
from attnorm.analysis.ladder.tables import scores_of_tables, write_scores
from attnorm.analysis.statistics.ladder import (
    baseline_slope,
    compute_multiplier,
    contrast,
    deviation_weights,
    held_weights,
    projection_weights,
    slope_weights,
    trend_weights,
)
from attnorm.errors import ConfigError, DataError, RunError
from attnorm.run.run import Run
from attnorm.tasks.results import Predictions

EXAMPLES, ARTICLES = 60, 20
WIDTHS = {1: 48, 2: 64, 3: 96, 4: 128, 5: 192, 6: 256}
GAIN = {"softmax": 0.0, "dnas": -0.05}
KEYS = ["model.d_model", "optimizer.lr", "task.max_steps"]
DEFAULT_SEEDS = (110, 111, 112, 113, 114)


def tokens_of(example: int) -> int:
    return 20 + example % 7


def losses_of(arm: str, rung: int, seed: int) -> np.ndarray:
    """The mean loss of each example of a run."""
    shared = np.random.default_rng(0).normal(0, 0.5, EXAMPLES)
    own = np.random.default_rng([sum(map(ord, arm)), rung, seed])
    gain = GAIN.get(arm, -0.02) * (1 + 0.3 * rung)
    return 6 - 0.3 * rung + 0.01 * rung**2 + gain + shared + own.normal(0, 0.01) + own.normal(0, 0.05, EXAMPLES)


def record_of(rung: int, **more) -> dict:
    size = {"rung": rung, "parameters": 50 * WIDTHS[rung] ** 2, "train_tokens": 250.0 * WIDTHS[rung] ** 2}
    return {**size, "flops_per_token": 300.0 * WIDTHS[rung] ** 2, "beyond": rung == 6, "keys": KEYS, **more}


def make_ladder_run(folder: Path, arm: str, rung: int, seed: int, *, settings=None, state="finished", **more) -> Path:
    """A run on a rung. more: changes to its record of the ladder."""
    sizes = {"model.d_model": WIDTHS[rung], "optimizer.lr": 0.1 / WIDTHS[rung], "task.max_steps": 100 * WIDTHS[rung]}
    speed = {"softmax": 1.0, "dnas": 0.8}.get(arm, 0.5) * 1e6 / WIDTHS[rung] + seed
    summary = {"ladder": record_of(rung, **more), "tokens_per_second": speed}
    options = {"settings": {**sizes, **(settings or {})}, "summary": summary, "state": state, "task": "causal_lm"}
    made = make_run(folder, arm, seed, examples=1, **options)
    if state == "finished":
        tokens = [tokens_of(example) for example in range(EXAMPLES)]
        Predictions(
            ids=[f"p{example}" for example in range(EXAMPLES)],
            groups=[f"article {example % ARTICLES}" for example in range(EXAMPLES)],
            references=["text"] * EXAMPLES,
            outputs=[""] * EXAMPLES,
            scores={},
            loss_sum=(losses_of(arm, rung, seed) * tokens).tolist(),
            n_tokens=tokens,
            input_hashes=[f"{example:016x}" for example in range(EXAMPLES)],
            selecting=set(),
        ).write(Run(made).predictions_file())
    return made


def make_ladder(place: Path, arms=("softmax", "dnas"), rungs=(1, 2, 3, 4), seeds=DEFAULT_SEEDS, **more) -> Path:
    for arm in arms:
        for rung in rungs:
            for seed in seeds:
                make_ladder_run(place / f"{arm}_{rung}_{seed}", arm, rung, seed, **more)
    return place


@pytest.fixture(scope="module")
def ladder(tmp_path_factory) -> Path:
    return make_ladder(tmp_path_factory.mktemp("ladder"), rungs=(1, 2, 3, 4, 6))


def compared(place, **options):
    return compare_ladder(scores_of_runs(find_runs([place])), **options)


# the contrasts


X = np.array([0.0, 0.5, 1.1, 1.7])


def test_weights_give_a_line_and_a_parabola_back():
    line = 3.0 - 0.2 * X
    assert trend_weights(X) @ line == pytest.approx(-0.2)
    assert projection_weights(X, 2.6) @ line == pytest.approx(3 - 0.2 * 2.6)
    assert deviation_weights(X) @ line == pytest.approx(0, abs=1e-12)
    assert deviation_weights(X) @ (line + [0, 0, 0, 0.07]) == pytest.approx(0.07)
    assert held_weights(X, 2.6) @ [*line, 3 - 0.2 * 2.6 + 0.01] == pytest.approx(0.01)
    assert slope_weights(X, 1.7) @ (line + 0.3 * X**2) == pytest.approx(-0.2 + 0.6 * 1.7)
    with pytest.raises(ValueError, match="a line needs two rungs"):
        trend_weights([1.0, 1.0])
    with pytest.raises(ValueError, match="a parabola needs 3 rungs"):
        slope_weights([1.0, 2.0, 2.0], 1.0)


def test_a_multiplier_says_how_much_more_compute_the_baseline_needs():
    assert compute_multiplier(-0.01, -0.1) == pytest.approx(1.2589254)
    assert compute_multiplier(0.01, -0.1) == pytest.approx(1 / 1.2589254)
    assert compute_multiplier(-1000, -0.01) == np.inf
    falling = (5 - 0.1 * X)[:, None, None] + np.random.default_rng(0).normal(0, 1e-3, (4, 3, 20))
    assert baseline_slope(falling, X, 1.7) == pytest.approx(-0.1, abs=0.01)
    assert baseline_slope(-falling, X, 1.7) is None  # rising
    assert baseline_slope(-falling, X, 1.7, better=1) == pytest.approx(0.1, abs=0.01)
    assert baseline_slope(falling[:2], X[:2], 0.5) is None
    assert baseline_slope(falling + np.random.default_rng(1).normal(0, 1, (4, 3, 1)), X, 1.7) is None


# an independent recomputation, from the predictions alone


def pseudo(path: Path) -> np.ndarray:
    rows = pd.read_parquet(path)
    loss, tokens = rows["loss_sum"].to_numpy(), rows["n_tokens"].to_numpy()
    n, whole = len(rows), loss.sum() / tokens.sum()
    return n * whole - (n - 1) * (loss.sum() - loss) / (tokens.sum() - tokens)


def crossed(table: np.ndarray) -> tuple[float, float]:
    """The mean of a table (seeds, examples) in articles of one size, and the half width of its interval."""
    clusters = table.reshape(len(table), EXAMPLES // ARTICLES, ARTICLES).mean(1)
    k, n = clusters.shape
    mean, rows, columns = clusters.mean(), clusters.mean(1), clusters.mean(0)
    seeds = n * ((rows - mean) ** 2).sum() / (k - 1)
    examples = k * ((columns - mean) ** 2).sum() / (n - 1)
    noise = ((clusters - rows[:, None] - columns + mean) ** 2).sum() / (k - 1) / (n - 1)
    t_seeds, t_examples = stats.t.ppf(0.975, k - 1), stats.t.ppf(0.975, n - 1)
    return mean, np.sqrt((t_seeds**2 * seeds + t_examples**2 * max(examples - noise, 0)) / k / n)


def test_the_numbers_of_a_ladder_are_those_of_the_predictions(ladder):
    d = {
        rung: np.stack(
            [
                np.subtract(*(pseudo(ladder / f"{arm}_{rung}_{seed}/predictions/validation.parquet") for arm in arms))
                for seed in DEFAULT_SEEDS
            ]
        )
        for rung in (1, 2, 3, 4, 6)
        for arms in [("dnas", "softmax")]
    }
    x = {rung: np.log10(250 * WIDTHS[rung] ** 2 * 300 * WIDTHS[rung] ** 2) for rung in d}
    [arm] = compared(ladder).arms
    fitted = np.array([x[rung] for rung in (1, 2, 3, 4)])
    lines = np.stack([d[rung] for rung in (1, 2, 3, 4)])
    slope, level = np.polyfit(fitted, lines.reshape(4, -1), 1).reshape(2, *lines.shape[1:])
    others = np.polyfit(fitted[:3], lines[:3].reshape(3, -1), 1).reshape(2, *lines.shape[1:])
    expected = {
        "largest": (d[4], arm.largest.difference),
        "trend": (slope, arm.trend.difference),
        "projection": (slope * (x[4] + 1) + level, arm.projection),
        "deviation": (d[4] - others[0] * x[4] - others[1], arm.deviation),
        "held": (d[6] - slope * x[6] - level, arm.held),
    }
    expected |= {f"rung {r.rung.number}": (d[r.rung.number], r.difference) for r in arm.rungs}
    assert len(expected) == 9
    for name, (table, difference) in expected.items():
        mean, half = crossed(table)
        ends = difference.new_seeds_and_examples
        assert (difference.estimate, ends.low, ends.high) == pytest.approx(
            (mean, mean - half, mean + half), abs=1e-9
        ), name
    assert arm.projected == pytest.approx(10 ** (x[4] + 1))
    losses = [
        np.mean([pseudo(ladder / f"softmax_{rung}_{seed}/predictions/validation.parquet") for seed in DEFAULT_SEEDS])
        for rung in (1, 2, 3, 4)
    ]
    at = np.polyval(np.polyder(np.polyfit(fitted, losses, 2)), x[4])
    top = arm.rungs[-1]
    assert top.multiplier[0] == pytest.approx(10 ** (d[4].mean() / at), rel=1e-9)
    seconds = [np.median([1 / (s * 1e6 / WIDTHS[4] + seed) for seed in DEFAULT_SEEDS]) for s in (0.8, 1.0)]
    assert top.net[0] == pytest.approx(top.multiplier[0] / (seconds[0] / seconds[1]), rel=1e-9)
