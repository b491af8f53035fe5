"""How often the intervals of attnorm.analysis.statistics contain the true difference, by simulation.

    python benchmarks/coverage.py
    python benchmarks/coverage.py --parts clusters --draws 100000

Each cell simulates many experiments of two arms, which are trained with the same seeds and evaluated on the same
examples. "spread" says which of seeds, examples and noise vary. Coverage is that of 95 % intervals: "seeds" for new
seeds on the same test set, "both" for new seeds and new examples. "wide" is the mean width of the latter relative to
that of an oracle that knows the variance of the estimate, and "silent" the share of experiments without a verdict,
which coverage leaves out. "equal" is the share of all experiments in which equal arms are called different.

Parts:
  grid        3, 5 and 10 seeds x seven spreads x three kinds of scores, of equal arms and of different ones
  small       test sets of 5 to 30 examples, and test sets of 1,000 on which few examples differ
  skewed      effects that are not normal, which the verdicts warn of: how often they cover, and how often they warn
  rejected    other methods on the normal scores of the grid: lowest and highest coverage
  clusters    clusters of equal and of unequal size with an intraclass correlation of 0.7, and other methods for them
  perplexity  differences between the perplexities of two arms
  holm        three arms equal to a baseline: how often at least one is called different
  detectable  how often a true difference of the size reported as detectable is found
"""

import argparse
import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy import stats
from simulated_scores import PORTION, Cell, clustered_scores, deviations, experiments, perplexity_experiment, sizes_of

from attnorm.analysis.statistics.crossed import MIN_CLUSTERS, MIN_DIFFERING, p_value
from attnorm.analysis.statistics.multiple import holm
from attnorm.analysis.statistics.power import design, detectable
from attnorm.analysis.statistics.shape import outlying_seeds, skewed_examples
from attnorm.analysis.statistics.variances import Variances, cluster_means, student, variances_of

LEVEL = 0.95
SEEDS = (3, 5, 10)
CLUSTERS = [("equal", 5), ("one half", 30), *itertools.product(("equal", "log-normal", "Zipf"), (10, 30, 100))]
MIXES = tuple(mix for mix in itertools.product((0, 1), repeat=3) if any(mix))
KINDS = ("normal", "exact match", "rouge")
Z = stats.norm.isf((1 - LEVEL) / 2)
ROUNDING = 1e-6  # of intervals without any width


@dataclass(frozen=True)
class Found:
    """What became of many experiments of a cell: see the columns."""

    seeds: float
    both: float
    wide: float
    silent: float
    called: float  # the share called different, which is "equal" for equal arms


def cover(cell: Cell, draws: int) -> Found:
    """Simulates experiments and looks at their intervals."""
    rows = []
    for table, truth, on_test_set in experiments(cell, draws):
        narrow, wide = variances_of(table).half_widths(LEVEL)
        estimate, differing = table.mean((-2, -1)), (table != 0).any(-2).sum(-1)
        silent = differing < min(MIN_DIFFERING, cell.examples / 2)
        rows.append(np.stack([estimate, estimate - truth, estimate - on_test_set, narrow, wide, silent]))
    estimate, error, error_on_test_set, narrow, wide, silent = np.concatenate(rows, axis=1)
    spoken = silent == 0 if not silent.all() else silent == 1  # all without a verdict: coverage had there been one
    return Found(
        seeds=(np.abs(error_on_test_set) <= narrow + ROUNDING)[spoken].mean(),
        both=(np.abs(error) <= wide + ROUNDING)[spoken].mean(),
        wide=wide.mean() / (Z * error.std()),
        silent=silent.mean(),
        called=((silent == 0) & (np.abs(estimate) > wide + ROUNDING)).mean(),
    )


def grid(kinds: tuple[str, ...] = KINDS) -> Iterator[Cell]:
    """All cells; those of normal scores have no gap, because it moves an interval and the truth alike."""
    for kind, k, spread in itertools.product(kinds, SEEDS, MIXES):
        for gap in (0.0,) if kind == "normal" else (0.0, 0.15):
            yield Cell(kind, k, 100 if kind == "normal" else 300, spread, gap)


def small() -> Iterator[Cell]:
    """Test sets that are small, or on which few examples differ."""
    for n, k, spread in itertools.product((5, 10, 20, 30), (3, 10), ((0, 1, 0), (0, 1, 1), (1, 1, 1))):
        yield Cell("normal", k, n, spread)
    for differing, gap in itertools.product((2, 5, 10, 15, 20, 40), (0.0, 1.0)):
        yield Cell("rare", 3, 1000, (0, differing, 0), gap)


def show_cells(cells: Iterator[Cell], draws: int) -> None:
    heads = "".join(f"{head:>8}" for head in ("seeds", "both", "wide", "silent", "equal"))
    print(f"{'scores':<12}{'k':>3}{'n':>6}  {'spread':<8}{'arms':<9}{heads}")
    for cell in cells:
        found, arms = cover(cell, draws), "unequal" if cell.gap else "equal"
        equal = "" if cell.gap else f"{found.called:8.1%}"
        print(f"{cell.kind:<12}{cell.seeds:>3}{cell.examples:>6}  {shown(cell.spread):<8}{arms:<9}", end="")
        print(f"{found.seeds:8.1%}{found.both:8.1%}{found.wide:8.2f}{found.silent:8.1%}{equal}", flush=True)


def skewed() -> Iterator[Cell]:
    """Effects of seeds alone, normal and skewed, and effects of examples alone."""
    for kind, k in itertools.product(("normal", "lognormal seeds", "diverging seeds"), SEEDS):
        yield Cell(kind, k, 100, (1, 0, 0))
    for kind, n in itertools.product(("normal", "lognormal examples", "heavy examples"), (30, 100, 300, 1000)):
        yield Cell(kind, 5, n, (0, 1, 0))


def show_skewed(draws: int) -> None:
    heads = ("both", "seeds far", "skewed", "both, unwarned")
    print(f"{'effects':<20}{'k':>3}{'n':>6}  {'spread':<8}" + "".join(f"{head:>16}" for head in heads))
    for cell in skewed():
        parts = []
        for table, truth, _ in experiments(cell, draws):
            covered = np.abs(table.mean((-2, -1)) - truth) <= variances_of(table).half_widths(LEVEL)[1] + ROUNDING
            parts.append(np.stack([covered, outlying_seeds(table.mean(-1)), skewed_examples(table)]))
        covered, outlying, are_skewed = np.concatenate(parts, axis=1)
        unwarned = covered[~(outlying | are_skewed)]
        shares = (covered.mean(), outlying.mean(), are_skewed.mean(), unwarned.mean())
        print(f"{cell.kind:<20}{cell.seeds:>3}{cell.examples:>6}  {shown(cell.spread):<8}", end="")
        print("".join(f"{share:16.1%}" for share in shares), flush=True)


def shown(spread: tuple) -> str:
    return " ".join(f"{part:g}" for part in spread)


def by_components(v: Variances, n: int) -> np.ndarray:
    seeds = np.maximum(v.mean_square_seeds - v.mean_square_noise, 0)
    noise = np.minimum(v.mean_square_seeds, v.mean_square_noise)
    examples = np.maximum(v.mean_square_examples - v.mean_square_noise, 0)
    return np.sqrt((student((1 - LEVEL) / 2, v.seeds - 1) ** 2 * seeds + Z**2 * (noise + examples)) / (v.seeds * n))


def by_satterthwaite(v: Variances, n: int) -> np.ndarray:
    squares = (v.mean_square_seeds, v.mean_square_examples, v.mean_square_noise)
    degrees = (v.seeds - 1, n - 1, (v.seeds - 1) * (n - 1))
    total = v.mean_square_seeds + np.maximum(v.mean_square_examples - v.mean_square_noise, 0)
    joint = total**2 / sum(square**2 / of for square, of in zip(squares, degrees, strict=True))
    return student((1 - LEVEL) / 2, joint) * np.sqrt(total / (v.seeds * n))


REJECTED: dict[str, Callable[[Variances, int], np.ndarray]] = {
    "attnorm": lambda v, n: v.half_widths(LEVEL)[1],
    "t over the means of seeds": lambda v, n: v.half_widths(LEVEL)[0],
    "normal over the means of examples": lambda v, n: Z * np.sqrt(v.mean_square_examples / (v.seeds * n)),
    "t and normal by variance component": by_components,
    "Satterthwaite's t": by_satterthwaite,
}


def bootstrap(rng: np.random.Generator, table: np.ndarray, resamples: int = 400) -> tuple[float, float]:
    """The percentile interval of means over resampled seeds and resampled examples."""
    k, n = table.shape
    seeds, examples = (rng.multinomial(size, np.full(size, 1 / size), resamples) / size for size in (k, n))
    return tuple(np.quantile(((seeds @ table) * examples).sum(1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))


def show_rejected(draws: int) -> None:
    coverage: dict[tuple[str, int], list[float]] = {}
    for cell in grid(("normal",)):
        hits: dict[str, list] = {name: [] for name in (*REJECTED, "percentile bootstrap")}
        rng = np.random.default_rng(0)
        for table, truth, _ in experiments(cell, draws):
            error, found = np.abs(table.mean((-2, -1)) - truth), variances_of(table)
            for name, half_width in REJECTED.items():
                hits[name].extend(error <= half_width(found, cell.examples))
            for one in table[: max(1, len(table) // 10)]:  # fewer, because they take long
                low, high = bootstrap(rng, one)
                hits["percentile bootstrap"].append(low <= truth <= high)
        for name, hit in hits.items():
            coverage.setdefault((name, cell.seeds), []).append(float(np.mean(hit)))
    print(f"{'method':<36}" + "".join(f"{f'{k} seeds':>18}" for k in SEEDS))
    for name in (*REJECTED, "percentile bootstrap"):
        ranges = (coverage[name, k] for k in SEEDS)
        print(f"{name:<36}" + "".join(f"{f'{min(found):.1%} to {max(found):.1%}':>18}" for found in ranges))


def linearised(table: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The half width from linearised totals of clusters and t with C - 1 degrees of freedom."""
    means, sizes = cluster_means(table, groups)
    grand = table.mean((-2, -1), keepdims=True)
    return variances_of(len(sizes) * sizes / table.shape[-1] * (means - grand) + grand).half_widths(LEVEL)[1]


def show_clusters(draws: int) -> None:
    methods = ("attnorm", "linearised", "ignored")
    print(f"{'sizes':<12}{'C':>4}{'effective':>11}{'k':>4}  {'spread':<8}" + "".join(f"{m:>12}" for m in methods))
    for (kind, clusters), k, spread in itertools.product(CLUSTERS, (3, 10), ((0, 1, 0), (0, 1, 1), (1, 1, 1))):
        groups = np.repeat(np.arange(clusters), sizes_of(kind, clusters))
        cell, hits = Cell("normal", k, len(groups), spread), []
        rng = np.random.default_rng(zlib.crc32(repr((kind, cell)).encode()))
        for _ in range(0, draws, rows := max(1, PORTION // (k * len(groups)))):
            table = clustered_scores(rng, cell, groups, rows)
            found, error = variances_of(table, groups), np.abs(table.mean((-2, -1)))
            ignored = variances_of(table).half_widths(LEVEL)[1]
            half_widths = (found.half_widths(LEVEL)[1], linearised(table, groups), ignored)
            hits.append(error <= np.stack(half_widths))
        silent = "" if found.effective_clusters >= MIN_CLUSTERS - 1e-6 else "   no verdict"
        print(f"{kind:<12}{clusters:>4}{found.effective_clusters:>11.1f}{k:>4}  {shown(spread):<8}", end="")
        print("".join(f"{hit:12.1%}" for hit in np.concatenate(hits, axis=1).mean(1)) + silent, flush=True)


def show_perplexity(draws: int) -> None:
    print(f"{'k':>3}{'n':>6}{'difference':>12}{'both':>8}")
    for k, n, gap in itertools.product((3, 5), (100, 1000), (0.0, 0.02)):
        rng, hits = np.random.default_rng(k * n), []
        for _ in range(draws // 4):
            table, truth = perplexity_experiment(rng, k, n, gap)
            hits.append(abs(table.mean() - truth) <= variances_of(table).half_widths(LEVEL)[1])
        print(f"{k:>3}{n:>6}{truth:>12.2f}{np.mean(hits):8.1%}", flush=True)


def show_holm(draws: int, arms: int = 3) -> None:
    print(f"{'k':>3}{'any p < 0.05':>14}{'any adjusted p < 0.05':>23}")
    for k in SEEDS:
        rng, called = np.random.default_rng(k), []
        for _ in range(draws // 8):
            scores = rng.standard_normal((arms + 1, k, 1)) + 10 * rng.standard_normal((arms + 1, 1, 100))
            tables = scores[1:] + rng.standard_normal((arms, k, 100)) - scores[0]
            p = [p_value(float(table.mean()), variances_of(table)) for table in tables]
            called.append((min(p) < 1 - LEVEL, min(holm(p)) < 1 - LEVEL))
        print("{:>3}{:>14.1%}{:>23.1%}".format(k, *np.mean(called, axis=0)), flush=True)


def show_detectable(draws: int, pilots: int = 300) -> None:
    print(
        f"{'k':>3}  {'spread':<8}{'known variances':>16}{'pilots, mean':>14}{'10 % to 90 % of pilots':>24}{'size':>8}"
    )
    for k, spread in itertools.product(SEEDS, MIXES):
        cell = Cell("normal", k, 100, spread)
        seed, example, noise = (deviation**2 for deviation in deviations(cell))
        squares = (100 * seed + noise, k * example + noise, noise)
        known = Variances(*squares, seeds=k, examples=100, clusters=100, effective_clusters=100.0)
        size, truth = detectable(known), design(known, k, 100)
        table = next(experiments(cell, pilots))[0]
        powers = [truth.power(detectable(variances_of(one)), LEVEL) for one in table[:pilots]]
        found = cover(Cell("normal", k, 100, spread, size), draws).called
        low, high = np.quantile(powers, [0.1, 0.9])
        ratio, spreads = size / (truth.of_seeds + truth.of_examples) ** 0.5, f"{low:.0%} to {high:.0%}"
        print(f"{k:>3}  {shown(spread):<8}{found:16.1%}{np.mean(powers):14.1%}{spreads:>24}{ratio:8.2f}", flush=True)


PARTS: dict[str, Callable[[int], None]] = {
    "grid": lambda draws: show_cells(grid(), draws),
    "small": lambda draws: show_cells(small(), draws),
    "skewed": show_skewed,
    "rejected": show_rejected,
    "clusters": show_clusters,
    "perplexity": show_perplexity,
    "holm": show_holm,
    "detectable": show_detectable,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--draws", type=int, default=20_000, help="experiments per cell; slow parts use a fraction")
    asked = parser.parse_args()
    for number, part in enumerate(asked.parts):
        print(f"{chr(10) if number else ''}{part}")
        PARTS[part](asked.draws)


if __name__ == "__main__":
    main()
