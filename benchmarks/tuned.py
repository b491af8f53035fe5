"""How often equal arms are called different if their learning rates are tuned, and how often a difference is found.

    python benchmarks/tuned.py
    python benchmarks/tuned.py --draws 100000

Each cell simulates many experiments. Every arm tries the same rates with its own tuning seeds, and has another score at
each rate: it falls with the square of the distance from the best one, so that neighbouring rates are `curve` standard
deviations of a seed worse. The grid has four rates and is extended at most three times at each end while an arm is best
there, as by `attnorm sweep tune=...`. Then the arms are compared with the baseline, paired by seed, with the method of
Holm at 5 %. "best" is the place of the best rate of all arms in the grid, from 0 to 3.

Rules:
  chosen    the verdict at the chosen rates, as if they had been given
  every     the better arm has to be above the worse one at every rate of its grid
  attnorm   the same without the rates that tuning shows to be worse
  nested    every comparison seed has tuning seeds of its own, which costs as many times the tuning
  nested 1  the same with a single tuning seed each

"more" is the number of rates at which `attnorm` trains the worse arm, per experiment.

Parts:
  level     equal arms: how often any of them is called different
  spread    the same if the spread over seeds grows by half, or falls, from rate to rate
  power     the first arm is better, by what the rule `chosen` detects with 80 % power: how often this is shown
"""

import argparse
import itertools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import stats

from attnorm.analysis.statistics.tuned import DISMISSAL, candidates

ADDED, RATES = 3, 4  # rates that may be added at each end, and rates of the grid
PLACES = np.arange(-ADDED, RATES + ADDED)
SIZES = ((5, 2), (10, 4))  # comparison seeds and tuning seeds
CURVES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
BESTS = (1.0, 1.5, 3.0)
LEVEL = 0.05
PORTION = 5000  # experiments at a time
RULES = ("chosen", "every", "attnorm", "nested", "nested 1")


@dataclass(frozen=True)
class Cell:
    """One simulated kind of experiment.

    arms: with the baseline. seeds, tuning: the numbers of comparison and tuning seeds. curve: how much worse the
    neighbours of the best rate are, in standard deviations of a seed. best: its place. growth: of the standard
    deviation from rate to rate. gap: how much better the first arm is than the others.
    """

    arms: int
    seeds: int
    tuning: int
    curve: float
    best: float
    growth: float = 1.0
    gap: float = 0.0


def draw(rng: np.random.Generator, cell: Cell, draws: int, seeds: int) -> np.ndarray:
    """Scores (draws, arms, rates, seeds)."""
    means = np.zeros((cell.arms, len(PLACES), 1)) - cell.curve * np.square(PLACES - cell.best)[:, None]
    means[1] += cell.gap
    spread = cell.growth ** np.clip(PLACES - 1.0, -1, 3)[:, None]
    return means + spread * rng.standard_normal((draws, cell.arms, len(PLACES), seeds))


def tune(means: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The place of the best rate of each arm, (draws, arms), and which rates were tried, (draws, rates).

    means: over the tuning seeds, (draws, arms, rates).
    """
    low, high, places = np.full(len(means), ADDED), np.full(len(means), ADDED + RATES - 1), np.arange(len(PLACES))
    while True:
        tried = (places >= low[:, None]) & (places <= high[:, None])
        best = np.where(tried[:, None], means, -np.inf).argmax(-1)
        lower = (best == low[:, None]).any(-1) & (low > 0)
        higher = (best == high[:, None]).any(-1) & (high < len(PLACES) - 1)
        if not (lower | higher).any():
            return best, tried
        low, high = low - lower, high + higher


def at(scores: np.ndarray, best: np.ndarray) -> np.ndarray:
    """The scores (draws, arms, seeds) at a rate of each arm."""
    return np.take_along_axis(scores, best[:, :, None, None], 2)[:, :, 0]


def compared(differences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The means and the p-values of differences (..., seeds)."""
    count, means = differences.shape[-1], differences.mean(-1)
    error = differences.std(-1, ddof=1) / count**0.5
    return means, 2 * stats.t.sf(np.abs(means) / error, count - 1)


def adjusted(p_values: np.ndarray) -> np.ndarray:
    """The p-values (draws, arms) after the method of Holm."""
    order, count = p_values.argsort(-1), p_values.shape[-1]
    steps = np.take_along_axis(p_values, order, -1) * (count - np.arange(count))
    found = np.empty_like(steps)
    np.put_along_axis(found, order, np.maximum.accumulate(steps, -1), -1)
    return found


def experiments(cell: Cell, rng: np.random.Generator, draws: int) -> tuple[dict[str, tuple], np.ndarray]:
    """By rule: which arms are shown to differ from the baseline, and by how much they do, (draws, arms - 1). Then the
    number of further rates that are trained, (draws,)."""
    tuning, scores = draw(rng, cell, draws, cell.tuning), draw(rng, cell, draws, cell.seeds)
    best, tried = tune(tuning.mean(-1))
    chosen = at(scores, best)
    estimates, here = compared(chosen[:, 1:] - chosen[:, :1])
    # the better arm minus the worse one at each of its rates
    over, p_over = compared(chosen[:, 1:, None] - scores[:, :1])
    under, p_under = compared(chosen[:, :1, None] - scores[:, 1:])
    is_above = estimates > 0
    beaten, p_values = np.where(is_above[..., None], over, under) > 0, np.where(is_above[..., None], p_over, p_under)
    p_values = np.where(beaten, p_values, 1.0)

    def over_all(kept: np.ndarray) -> np.ndarray:
        """The largest p-value over the rates of the worse arm. kept: (draws, arms, rates)."""
        of_worse = np.where(is_above[..., None], kept[:, :1], kept[:, 1:])
        return np.maximum(here, np.where(of_worse, p_values, 0.0).max(-1))

    everywhere = np.broadcast_to(tried[:, None], (*beaten.shape[:1], cell.arms, len(PLACES)))
    kept = candidates(np.where(everywhere[..., None], tuning, np.nan))
    found = {
        "chosen": (adjusted(here) < LEVEL, estimates),
        "every": (adjusted(over_all(everywhere)) < LEVEL, estimates),
        "attnorm": (adjusted(over_all(kept)) + DISMISSAL < LEVEL, estimates),
    }
    for rule, count in (("nested", cell.tuning), ("nested 1", 1)):
        rows = []
        for seed in range(cell.seeds):
            own = tune(draw(rng, cell, draws, count).mean(-1))[0]
            rows.append(at(scores[..., seed : seed + 1], own))
        nested = np.concatenate(rows, -1)
        means, p = compared(nested[:, 1:] - nested[:, :1])
        found[rule] = (adjusted(p) < LEVEL, means)
    needed = np.zeros((draws, cell.arms), bool)
    would_be_shown = adjusted(here) + DISMISSAL < LEVEL
    needed[:, 0] = (would_be_shown & is_above).any(-1)
    needed[:, 1:] = would_be_shown & ~is_above
    return found, ((kept.sum(-1) - 1) * needed).sum(-1)


def shares(cell: Cell, draws: int) -> tuple[dict[str, float], float]:
    """By rule: how often any arm is shown to differ, or, with a gap, the first arm to be better. Then the mean number
    of further rates."""
    rng = np.random.default_rng(zlib.crc32(repr(cell).encode()))
    shown: dict[str, list[np.ndarray]] = {rule: [] for rule in RULES}
    more = []
    for start in range(0, draws, PORTION):
        found, further = experiments(cell, rng, min(PORTION, draws - start))
        more.append(further)
        for rule, (calls, means) in found.items():
            shown[rule].append((calls[:, 0] & (means[:, 0] > 0)) if cell.gap else calls.any(-1))
    return {rule: float(np.concatenate(of).mean()) for rule, of in shown.items()}, float(np.concatenate(more).mean())


def equal_arms() -> Iterator[Cell]:
    for arms, size, curve, best in itertools.product((2, 3), SIZES, CURVES, BESTS):
        yield Cell(arms, *size, curve, best)


def unequal_spread() -> Iterator[Cell]:
    for arms, size, curve, best, growth in itertools.product(
        (2, 3), SIZES, (0.5, 1.0, 2.0), (1.0, 3.0), (1.5, 1 / 1.5)
    ):
        yield Cell(arms, *size, curve, best, growth)


def better_arm() -> Iterator[Cell]:
    for (seeds, tuning), curve, best in itertools.product(SIZES, CURVES, BESTS):
        yield Cell(2, seeds, tuning, curve, best, gap={5: 2.38, 10: 1.41}[seeds])


PARTS = {"level": equal_arms, "spread": unequal_spread, "power": better_arm}


def show(cells: Iterator[Cell], draws: int) -> None:
    heads = "".join(f"{rule:>10}" for rule in RULES)
    print(f"{'arms':>4}{'seeds':>6}{'tuning':>7}{'curve':>7}{'best':>6}{'growth':>8}{heads}{'more':>7}")
    for cell in cells:
        found, more = shares(cell, draws)
        print(
            f"{cell.arms:>4}{cell.seeds:>6}{cell.tuning:>7}{cell.curve:>7g}{cell.best:>6g}{cell.growth:>8.2f}", end=""
        )
        print("".join(f"{found[rule]:10.1%}" for rule in RULES) + f"{more:7.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--draws", type=int, default=20_000, help="experiments per cell")
    asked = parser.parse_args()
    for number, part in enumerate(asked.parts):
        print(f"{chr(10) if number else ''}{part}")
        show(PARTS[part](), asked.draws)


if __name__ == "__main__":
    main()
