"""Simulated experiments of two arms, whose true difference is known. coverage.py measures intervals with them."""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy import special

from attnorm.analysis.statistics.corpus import perplexity, pseudo_values

PORTION = 250_000  # numbers of a table drawn at a time
SPREADS = (0.1, 0.3, 0.3)  # of seeds, examples and noise in the latent quality of an arm; that of questions is 1
BASE = -0.2  # the mean quality of arm B


@dataclass(frozen=True)
class Cell:
    """One simulated kind of experiment.

    kind: of the scores. seeds, examples: the size. spread: what the standard deviations of seeds, examples and noise
    are multiplied by. gap: the advantage of arm A in latent quality; zero for equal arms.
    """

    kind: str
    seeds: int
    examples: int
    spread: tuple[float, float, float]
    gap: float = 0.0


def normal_scores(rng: np.random.Generator, cell: Cell, draws: int) -> tuple:
    """Differences (draws, k, n), their true mean, and their true mean on each test set (draws,).

    With a spread of 1, seeds, examples and noise contribute equally to the variance of the mean.
    """
    seed, example, noise = deviations(cell)
    k, n = cell.seeds, cell.examples
    examples = example * rng.standard_normal((draws, 1, n))
    table = seed * rng.standard_normal((draws, k, 1)) + examples + noise * rng.standard_normal((draws, k, n))
    return table + cell.gap, cell.gap, cell.gap + examples.mean((-2, -1))


def deviations(cell: Cell) -> tuple[float, float, float]:
    """The standard deviations of the normal effects of seeds, examples and noise."""
    seed, example, noise = cell.spread
    return seed, example * (cell.examples / cell.seeds) ** 0.5, noise * cell.examples**0.5


def rare_scores(rng: np.random.Generator, cell: Cell, draws: int) -> tuple:
    """As `normal_scores`: all seeds differ on the same few examples, by 1, or in equal arms by 1 or -1.

    The expected number of these examples stands in the place of the spread of examples.
    """
    share, shape = cell.spread[1] / cell.examples, (draws, 1, cell.examples)
    sign = 1 if cell.gap else np.where(rng.random(shape) < 0.5, 1, -1)
    table = np.repeat((rng.random(shape) < share) * sign * 1.0, cell.seeds, axis=1)
    return table, share if cell.gap else 0.0, table.mean((-2, -1))


def exact_match(mean: np.ndarray, deviation: float) -> np.ndarray:
    """The probability that a normal quality is above zero."""
    return special.ndtr(mean / deviation) if deviation else (mean > 0).astype(float)


def rouge(mean: np.ndarray, deviation: float) -> np.ndarray:
    """The mean of 25 times a normal quality, cut off at 0 and 100."""

    def excess(over: float) -> np.ndarray:
        if not deviation:
            return np.maximum(mean - over, 0)
        score = (mean - over) / deviation
        return deviation * (score * special.ndtr(score) + np.exp(-np.square(score) / 2) / (2 * np.pi) ** 0.5)

    return 25 * (excess(0) - excess(4))


SCORES: dict[str, tuple[Callable, Callable]] = {  # score of a quality; mean score of a normal quality
    "exact match": (lambda quality: (quality > 0).astype(np.float32), exact_match),
    "rouge": (lambda quality: 25 * np.clip(quality, 0, 4), rouge),
}


def bounded_scores(rng: np.random.Generator, cell: Cell, draws: int) -> tuple:
    """As `normal_scores`, of scores that are bounded, and whose differences are mostly zero.

    The quality of an answer is the ease of its question, which both arms share, plus effects of the arm on the
    question, of the seed, and of both.
    """
    score, mean_score = SCORES[cell.kind]
    seed, example, noise = np.array(cell.spread, dtype=np.float32) * np.array(SPREADS, dtype=np.float32)
    k, n = cell.seeds, cell.examples

    def effect(size: np.float32, *shape: int) -> np.ndarray:
        return size * rng.standard_normal((draws, *shape), dtype=np.float32) if size else np.zeros(1, np.float32)

    ease, arms = effect(np.float32(1), 1, n), []
    for base in (BASE + cell.gap, BASE):
        known = np.float32(base) + ease + effect(example, 1, n)
        quality = known + effect(seed, k, 1) + effect(noise, k, n)
        on_test_set = mean_score(known, (seed**2 + noise**2) ** 0.5).mean((-2, -1), dtype=np.float64)
        everywhere = mean_score(np.array(base), float(1 + seed**2 + example**2 + noise**2) ** 0.5)
        arms.append((score(np.broadcast_to(quality, (draws, k, n))), everywhere, on_test_set))
    table, *truths = (a - b for a, b in zip(*arms, strict=True))
    return table.astype(np.float64), *truths


def lognormal(rng: np.random.Generator, sigma: float, *shape: int) -> np.ndarray:
    """Skewed effects with the mean zero: exp of a normal variable with this standard deviation, minus its mean."""
    return np.exp(sigma * rng.standard_normal(shape)) - np.exp(sigma**2 / 2)


def skewed_scores(rng: np.random.Generator, cell: Cell, draws: int) -> tuple:
    """As `normal_scores`, with skewed effects of seeds or of examples, or seeds that diverge.

    "lognormal seeds", "lognormal examples", "heavy examples": these effects are lognormal, with sigma = 1, 1 and 1.5.
    "diverging seeds": each seed diverges with a probability of 10 %, which costs 20 standard deviations of the seeds.
    The true mean contains that.
    """
    seed, example, noise = deviations(cell)
    k, n, truth = cell.seeds, cell.examples, 0.0
    seeds = lognormal(rng, 1.0, draws, k, 1) if cell.kind == "lognormal seeds" else rng.standard_normal((draws, k, 1))
    if cell.kind == "diverging seeds":
        seeds, truth = seeds - 20 * (rng.random((draws, k, 1)) < 0.1), -2 * seed
    sigma = {"lognormal examples": 1.0, "heavy examples": 1.5}.get(cell.kind)
    examples = example * (lognormal(rng, sigma, draws, 1, n) if sigma else rng.standard_normal((draws, 1, n)))
    table = seed * seeds + examples + (noise * rng.standard_normal((draws, k, n)) if noise else 0.0)
    return table, truth, truth + examples.mean((-2, -1))


SKEWED = ("lognormal seeds", "diverging seeds", "lognormal examples", "heavy examples")
SIMULATORS = {"normal": normal_scores, "rare": rare_scores, **dict.fromkeys(SKEWED, skewed_scores)}


def experiments(cell: Cell, draws: int) -> Iterator[tuple]:
    """The experiments of a cell in portions, the same ones whenever they are simulated."""
    rng = np.random.default_rng(zlib.crc32(repr(cell).encode()))
    portion = max(1, PORTION // (cell.seeds * cell.examples))
    for start in range(0, draws, portion):
        yield SIMULATORS.get(cell.kind, bounded_scores)(rng, cell, min(portion, draws - start))


def sizes_of(kind: str, clusters: int) -> np.ndarray:
    """The numbers of examples per cluster: 10 on average, or in the largest of two kinds far more."""
    if kind == "log-normal":
        sizes = 10 * np.exp(np.random.default_rng(5).standard_normal(clusters))
    elif kind == "Zipf":
        sizes = 20 * clusters / np.log(clusters + 1) / np.arange(1, clusters + 1)
    else:
        sizes = np.full(clusters, 10.0)
        if kind == "one half":
            sizes[0] = sizes[1:].sum()
    return np.maximum(sizes.round(), 1).astype(int)


def clustered_effects(
    rng: np.random.Generator, groups: np.ndarray, draws: int, each: int, correlation: float = 0.7
) -> np.ndarray:
    """Standard normal effects (draws, each, examples) with this correlation within a cluster."""
    between = rng.standard_normal((draws, each, groups.max() + 1))[..., groups]
    return correlation**0.5 * between + (1 - correlation) ** 0.5 * rng.standard_normal((draws, each, len(groups)))


def clustered_scores(rng: np.random.Generator, cell: Cell, groups: np.ndarray, draws: int) -> np.ndarray:
    """Differences (draws, k, n) with the mean zero."""
    seed, example, noise = deviations(cell)
    table = np.zeros((draws, cell.seeds, len(groups))) + seed * rng.standard_normal((draws, cell.seeds, 1))
    table += example * clustered_effects(rng, groups, draws, 1)
    return table + noise * clustered_effects(rng, groups, draws, cell.seeds) if noise else table


def perplexity_experiment(rng: np.random.Generator, k: int, n: int, gap: float, seed: float = 0.01) -> tuple:
    """The differences (k, n) between the pseudo-values of two arms, and the true difference between perplexities."""
    tokens, ease, arms = rng.integers(5, 100, n), rng.standard_normal(n) / 2, []
    for base in (3 + gap, 3.0):
        mean = base + ease + 0.1 * rng.standard_normal(n) + seed * rng.standard_normal((k, 1))
        loss = tokens * (mean + rng.standard_normal((k, n)) / tokens**0.5)
        values = [pseudo_values(np.stack([run, tokens], axis=1), perplexity) for run in loss]
        arms.append((np.array(values), np.exp(base + seed**2 / 2)))
    return arms[0][0] - arms[1][0], arms[0][1] - arms[1][1]
