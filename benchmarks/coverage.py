"""How often the intervals of attnorm.analysis.statistics contain the true difference, by simulation.

    python benchmarks/coverage.py
    python benchmarks/coverage.py --parts clusters detectable --draws 100000

Each cell simulates many experiments of two arms, which are trained with the same seeds and evaluated on the same
examples. Columns: "seeds" is the coverage of the 95 % interval for new seeds on this test set, "both" that of the
interval for new seeds and new examples. "wide" is the mean width of the latter relative to that of the oracle, which
knows the variance of the estimate. "equal" is the share of experiments in which two arms without a true difference are
called different (p < 0.05, new seeds and new examples), and "silent" the share without a verdict.
Parts:
  grid        seeds x the variances of seeds, examples and noise, each zero or not x three kinds of scores
  small       test sets of 10 to 30 examples, and exact match where few examples differ
  rejected    other methods on the normal scores of the grid: lowest and highest coverage
  clusters    clusters of equal and of unequal size, intraclass correlation 0.7
  perplexity  differences between the pseudo-values of perplexities
  holm        three arms that equal the baseline: how often any of them is called different
  detectable  how often a difference of the size printed as detectable is found
"""

import argparse
import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from attnorm.analysis.statistics.corpus import perplexity, pseudo_values
from attnorm.analysis.statistics.crossed import MIN_CLUSTERS, MIN_DIFFERING, paired_difference
from attnorm.analysis.statistics.multiple import holm
from attnorm.analysis.statistics.power import detectable
from attnorm.analysis.statistics.variances import Variances, student, variances_of

LEVEL = 0.95
SEEDS = (3, 5, 10)
CHUNK = 4_000_000  # numbers drawn at a time
KINDS = ("normal", "exact match", "rouge")
SPREADS = (0.05, 0.3, 0.3)  # of seeds, examples and noise in the latent quality of an arm; that of questions is 1


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
    base: float = -0.2  # the latent quality of arm B


@dataclass(frozen=True)
class Found:
    """What became of many experiments of a cell: see the columns."""

    seeds: float
    both: float
    wide: float
    silent: float
    wrong: float  # share of all experiments whose verdict excludes the true difference


def normal_scores(rng: np.random.Generator, cell: Cell, draws: int) -> tuple:
    """Differences (draws, k, n), their true mean, and their true mean on each test set (draws,).

    With a spread of 1, seeds, examples and noise contribute equally to the variance of the mean.
    """
    k, n = cell.seeds, cell.examples
    seed, example, noise = np.array(cell.spread) * (1, (n / k) ** 0.5, n**0.5)
    examples = example * rng.standard_normal((draws, 1, n))
    table = seed * rng.standard_normal((draws, k, 1)) + examples + noise * rng.standard_normal((draws, k, n))
    return table + cell.gap, cell.gap, cell.gap + examples.mean((-2, -1))


def exact_match(mean: np.ndarray, deviation: float) -> np.ndarray:
    """The probability that a normal quality is above zero."""
    return stats.norm.cdf(mean / deviation) if deviation else (mean > 0).astype(float)


def rouge(mean: np.ndarray, deviation: float) -> np.ndarray:
    """The mean of 25 times a normal quality, cut off at 0 and 100."""

    def excess(over: float) -> np.ndarray:
        if not deviation:
            return np.maximum(mean - over, 0)
        score = (mean - over) / deviation
        return deviation * (score * stats.norm.cdf(score) + stats.norm.pdf(score))

    return 25 * (excess(0) - excess(4))


SCORES: dict[str, tuple[Callable, Callable]] = {  # score of a quality; mean score of a normal quality
    "exact match": (lambda quality: (quality > 0).astype(np.float64), exact_match),
    "rouge": (lambda quality: 25 * np.clip(quality, 0, 4, dtype=np.float64), rouge),
}


def bounded_scores(rng: np.random.Generator, cell: Cell, draws: int) -> tuple:
    """As `normal_scores`, of scores that are bounded, and zero for most examples.

    The quality of an answer is the ease of its question, which both arms share, plus effects of the arm on the
    question, of the seed and of both. The differences are zero for most examples.
    """
    score, mean_score = SCORES[cell.kind]
    seed, example, noise = np.array(cell.spread) * SPREADS
    k, n = cell.seeds, cell.examples

    def drawn(*shape: int) -> np.ndarray:
        return rng.standard_normal((draws, *shape), dtype=np.float32)

    ease, arms = drawn(1, n), []
    for base in (cell.base + cell.gap, cell.base):
        known = base + ease + example * drawn(1, n)
        quality = known + seed * drawn(k, 1) + noise * drawn(k, n)
        on_test_set = mean_score(known, (seed**2 + noise**2) ** 0.5).mean((-2, -1))
        everywhere = mean_score(np.array(base), (1 + seed**2 + example**2 + noise**2) ** 0.5)
        arms.append((score(quality), everywhere, on_test_set))
    return tuple(a - b for a, b in zip(*arms, strict=True))


def experiments(cell: Cell, draws: int) -> Iterator[tuple]:
    """The experiments of a cell in portions; the same ones in every process."""
    rng = np.random.default_rng(zlib.crc32(repr(cell).encode()))
    simulate = normal_scores if cell.kind == "normal" else bounded_scores
    portion = max(1, CHUNK // (cell.seeds * cell.examples))
    for start in range(0, draws, portion):
        yield simulate(rng, cell, min(portion, draws - start))


def cover(cell: Cell, draws: int) -> Found:
    """Simulates experiments and looks at their intervals."""
    rows = []
    for table, truth, on_test_set in experiments(cell, draws):
        narrow, wide = variances_of(table).half_widths(LEVEL)
        estimate, differing = table.mean((-2, -1)), (table != 0).any(-2).sum(-1)
        silent = differing < min(MIN_DIFFERING, cell.examples / 2)
        rows.append(np.stack([estimate - truth, estimate - on_test_set, narrow, wide, silent]))
    error, error_on_test_set, narrow, wide, silent = np.concatenate(rows, axis=1)
    spoken, rounding = silent == 0, 1e-9  # of intervals without any width
    within = np.abs(error) <= wide + rounding
    return Found(
        seeds=(np.abs(error_on_test_set) <= narrow + rounding)[spoken].mean(),
        both=within[spoken].mean(),
        wide=wide.mean() / (stats.norm.isf((1 - LEVEL) / 2) * error.std()),
        silent=silent.mean(),
        wrong=(spoken & ~within).mean(),
    )


def grid(seeds: tuple[int, ...] = SEEDS, kinds: tuple[str, ...] = KINDS) -> Iterator[Cell]:
    """All cells; those of normal scores have no gap, because adding one changes no interval relative to the truth."""
    for kind, k in itertools.product(kinds, seeds):
        for spread in itertools.product((0, 1), repeat=3):
            if any(spread):
                examples = 100 if kind == "normal" else 500
                for gap in (0.0,) if kind == "normal" else (0.0, 0.15):
                    yield Cell(kind, k, examples, spread, gap)


def main() -> None:
    import sys, time
    for cell in grid():
        t = time.time()
        f = cover(cell, int(sys.argv[1]))
        print(cell.kind, cell.seeds, cell.spread, cell.gap, f"{f.seeds:.4f} {f.both:.4f} {f.wide:.2f} {f.silent:.3f} {f.wrong:.4f}  {time.time()-t:.1f}s", '<<<' if min(f.seeds,f.both)<.945 else '', flush=True)


if __name__ == "__main__":
    main()
