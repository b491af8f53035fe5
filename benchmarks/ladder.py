"""How often the contrasts of a ladder are wrong, and what they find, by simulation.

    python benchmarks/ladder.py
    python benchmarks/ladder.py --parts bent --draws 100000

Each row simulates many ladders: an arm and a baseline on several rungs, each of four times the compute of the one
before, with the same seeds and examples. A seed moves the difference on a rung by a standard deviation of 0.01 nats.

Errors:
  seeds      effects of seeds, one for each rung, and noise of single examples that adds a tenth to their variance
  common     the same, and effects of seeds that all rungs share, as large
  unequal    the effects of seeds fall from rung to rung, from 0.03 on the first one to 0.01 on the last
  tails      effects of seeds and noise with Student's t of 3 degrees of freedom
  examples   effects of examples that all rungs share, and others for each rung, each with a standard error of 0.005

The parts after "level" have 50 examples: the errors are scaled so that their number matters little.

Columns, in percent of the ladders:
  trend, largest   a trend, or a difference at the largest rung, is called shown on its own
  any              either is shown after the adjustment for both (Holm)
  deviation        the interval of the deviation from the line excludes zero
  projection       the interval of the projection to the next rung contains the true difference there
  held             the interval of the rung beyond, of 3 seeds, minus the projection contains zero

Parts:
  level       equal arms: "any" is the probability of a false claim
  constant    a difference of -0.02 on every rung: "trend" is the probability of a false claim
  power       a difference that changes by -0.01 per factor of ten in compute, and is zero at the first rung
  bent        a difference that falls to -0.02 from the first rung to the middle of the ladder, and then stays
  multiplier  how often the interval of the compute multiplier contains the true one, if the slope of the loss of the
              baseline is estimated from its rungs, and how often it is withheld
"""

import argparse
import itertools
import zlib
from collections.abc import Callable, Iterator

import numpy as np

from attnorm.analysis.statistics.contrasts import (
    STANDARD_ERRORS,
    deviation_weights,
    held_weights,
    projection_weights,
    slope_weights,
    trend_weights,
)
from attnorm.analysis.statistics.variances import variances_of

LEVEL, HOLM = 0.95, 0.975  # of an interval, and of the smaller of two p-values that are adjusted together
SEED, SPACING = 0.01, np.log10(4)
PORTION = 2_000_000  # numbers that are drawn at a time
ERRORS = ("seeds", "common", "unequal", "tails", "examples")
BEYOND_SEEDS = 3
Table = np.ndarray


def errors(rng: np.random.Generator, kind: str, draws: int, rungs: int, seeds: int, examples: int) -> Table:
    """The errors of the differences, (draws, rungs, seeds, examples)."""

    def effects(*shape: int) -> Table:
        return rng.standard_t(3, (draws, *shape)) if kind == "tails" else rng.standard_normal((draws, *shape))

    scale = np.linspace(3, 1, rungs)[:, None, None] if kind == "unequal" else 1.0
    table = SEED * (scale * effects(rungs, seeds, 1) + (0.1 * examples) ** 0.5 * effects(rungs, seeds, examples))
    if kind == "common":
        table += SEED * effects(1, seeds, 1)
    if kind == "examples":
        table += 0.005 * examples**0.5 * (effects(1, 1, examples) + effects(rungs, 1, examples))
    return table


def ladders(kind: str, rungs: int, seeds: int, examples: int, draws: int, truth: Callable[[Table], Table]) -> dict:
    """The shares of simulated ladders of each column. truth: the true differences at compute x."""
    rng = np.random.default_rng(zlib.crc32(repr((kind, rungs, seeds, examples)).encode()))
    x = SPACING * np.arange(rungs + 1)  # the last rung lies beyond
    true, fitted, beyond = truth(x), x[:-1], x[-1]
    contrasts = {
        "trend": trend_weights(fitted),
        "largest": np.eye(rungs)[-1],
        "deviation": deviation_weights(fitted),
        "projection": projection_weights(fitted, beyond),
    }
    found: dict[str, list[Table]] = {}
    for start in range(0, draws, portion := max(1, PORTION // ((rungs + 1) * seeds * examples))):
        table = errors(rng, kind, min(portion, draws - start), rungs + 1, seeds, examples) + true[:, None, None]
        called, some = {}, []
        for name, weights in contrasts.items():
            scores = np.einsum("s,dsri->dri", weights, table[:, :-1])
            spread, estimate = variances_of(scores), scores.mean((-2, -1))
            if name == "projection":
                called[name] = np.abs(estimate - true[-1]) <= spread.half_widths(LEVEL)[1]
                continue
            called[name] = np.abs(estimate) > spread.half_widths(LEVEL)[1]
            if name in ("trend", "largest"):
                some.append(np.abs(estimate) > spread.half_widths(HOLM)[1])
        called["any"] = some[0] | some[1]
        scores = np.einsum("s,dsri->dri", held_weights(fitted, beyond), table[:, :, :BEYOND_SEEDS])
        called["held"] = np.abs(scores.mean((-2, -1))) <= variances_of(scores).half_widths(LEVEL)[1]
        for name, share in called.items():
            found.setdefault(name, []).append(share)
    return {name: float(np.concatenate(shares).mean()) for name, shares in found.items()}


COLUMNS = ("trend", "largest", "any", "deviation", "projection", "held")


def rows(*examples: int) -> Iterator[tuple[str, int, int, int]]:
    """The rows of a part: all errors and sizes with so many examples."""
    return itertools.product(ERRORS, (3, 4, 5, 6), (3, 5), examples)


def show(truth: Callable[[Table], Table], draws: int, *examples: int) -> None:
    print(f"{'errors':<10}{'rungs':>6}{'seeds':>6}{'examples':>9}" + "".join(f"{name:>11}" for name in COLUMNS))
    for kind, rungs, seeds, number in rows(*examples):
        found = ladders(kind, rungs, seeds, number, draws, truth)
        print(f"{kind:<10}{rungs:>6}{seeds:>6}{number:>9,}", end="")
        print("".join(f"{found[name]:11.1%}" for name in COLUMNS), flush=True)


def saturated(x: Table) -> Table:
    """A gain that grows up to the middle of the ladder, whose last rung lies beyond."""
    return -0.02 * np.minimum(1, x / x[:-1].mean())


def show_multiplier(draws: int) -> None:
    """The loss of the baseline falls by 0.25, and in a second half of the rows by 0.05, per factor of ten, and bends by
    a tenth of that; the arm is better by 0.02."""
    print(f"{'slope':<10}{'rungs':>6}{'seeds':>6}{'examples':>9}{'covered':>11}{'withheld':>11}")
    for slope, rungs, seeds, examples in itertools.product((-0.25, -0.05), (3, 4, 5, 6), (3, 5), (50, 1000)):
        rng = np.random.default_rng(zlib.crc32(repr((slope, rungs, seeds, examples)).encode()))
        x = SPACING * np.arange(rungs)
        curve, difference = slope * (x - x[-1]) - 0.1 * slope * np.square(x - x[-1]), -0.02
        covered, withheld = [], []
        for start in range(0, draws, portion := max(1, PORTION // (2 * rungs * seeds * examples))):
            size = min(portion, draws - start)
            losses = errors(rng, "examples", size, rungs, seeds, examples) + curve[:, None, None]
            gains = errors(rng, "seeds", size, rungs, seeds, examples)[:, -1] + difference
            slopes = np.einsum("s,dsri->dri", slope_weights(x, x[-1]), losses)
            spread, at = variances_of(slopes), slopes.mean((-2, -1))
            known = -at > STANDARD_ERRORS * np.sqrt(spread.of_seeds + spread.of_examples)
            half = variances_of(gains).half_widths(LEVEL)[1]
            # the multiplier is 10 to the power of this; dividing by a negative slope turns the ends round
            covered.append(np.abs(difference / slope - gains.mean((-2, -1)) / at)[known] <= -half[known] / at[known])
            withheld.append(~known)
        shares = [float(np.concatenate(each).mean()) for each in (covered, withheld)]
        print(
            f"{slope:<10}{rungs:>6}{seeds:>6}{examples:>9,}" + "".join(f"{share:11.1%}" for share in shares), flush=True
        )


PARTS: dict[str, Callable[[int], None]] = {
    "level": lambda draws: show(np.zeros_like, draws, 50, 1000),
    "constant": lambda draws: show(lambda x: np.full_like(x, -0.02), draws, 50),
    "power": lambda draws: show(lambda x: -0.01 * x, draws, 50),
    "bent": lambda draws: show(saturated, draws, 50),
    "multiplier": show_multiplier,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--draws", type=int, default=10_000, help="ladders per row")
    asked = parser.parse_args()
    for number, part in enumerate(asked.parts):
        print(f"{chr(10) if number else ''}{part}")
        PARTS[part](asked.draws)


if __name__ == "__main__":
    main()
