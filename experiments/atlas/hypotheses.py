"""Decides the hypotheses of the atlas (README.md) from its results.

python experiments/atlas/hypotheses.py --out logs/atlas
"""

import argparse
import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from math import isnan, nan
from pathlib import Path

import measured
import numpy as np
import torch
from claims import LEVEL, Atlas, Part, above, below, fact
from scipy import stats
from torch import Tensor

from attnorm.analysis.probes.verdicts import mean_of_finite, six_digits
from attnorm.analysis.statistics.multiple import holm

MARGIN = 0.02
COST = 0.75  # of the time of hnas
PARENTS = ("softmax", "dnas")
ASKED = ("demand", "share", "skew", "needle", "max")  # the probes of H4, whose queries ask for keys
ERROR = 0.001  # between the mass of converged sinkhorn and K/M


def first(atlas: Atlas) -> list[Part]:
    cells = ["match", "hub 0.9", "hub 0.45", "hub 0"]
    parts = [above("H1", f"{cell}: dnas > softmax", atlas.difference(cell, "dnas", "softmax")) for cell in cells]
    most, least = (atlas.difference(cell, "dnas", "softmax") for cell in ("hub 0.9", "hub 0"))
    contrast = None if most is None or least is None else most - least
    return [*parts, above("H1", "hub: dnas - softmax grows with the shift", contrast)]


def second(atlas: Atlas) -> list[Part]:
    return [
        below("H2", "demand 4: dnas < softmax", atlas.difference("demand 4", "dnas", "softmax")),
        below("H2", "skew 0.8: dnas < softmax", atlas.difference("skew 0.8", "dnas", "softmax")),
        below("H2", "needle with 1,024 keys: dnas < softmax", atlas.difference("needle", "dnas", "softmax", 1024)),
    ]


def third(atlas: Atlas) -> list[Part]:
    parts = not_worse(atlas, "H3", "hnas", PARENTS)
    for cell in ("demand 12", "demand 8"):
        parts += [above("H3", f"{cell}: hnas > {arm}", atlas.difference(cell, "hnas", arm)) for arm in PARENTS]
    return parts


def not_worse(atlas: Atlas, hypothesis: str, arm: str, others: Sequence[str]) -> list[Part]:
    """That an arm is at most MARGIN below others, in all cells in which hnas and both parents are defined."""
    return [
        above(hypothesis, f"{cell}: {arm} > {other} - {MARGIN:g}", atlas.difference(cell, arm, other), -MARGIN)
        for cell in atlas.with_arms("hnas", *PARENTS)
        for other in others
    ]


def fourth(atlas: Atlas) -> list[Part]:
    """The mass of converged sinkhorn on wanted keys, with trained scores; and which number predicts dnas."""
    cells = {title: found for title, found in atlas.cells.items() if found.cell.short in ASKED}
    results = {"dnas", "sinkhorn"}
    missing = [title for title, found in cells.items() if not results <= found.tests.keys()]
    if missing:
        return [Part("H4", f"{title}: |mass - K/M| < {ERROR:g}", reason="no results yet") for title in missing]
    parts, rows = [], []
    for title, found in cells.items():
        for size, scores, is_wanted in measured.sinkhorn_scores(found):
            parts.append(mass_part(f"{title}, {size} keys", scores, is_wanted))
            accuracy = float(found.tests["dnas"].scores[size].mean())
            rows.append((found.cell.short, float(is_wanted.mean()), size, accuracy))
    errors = {name: left_out_error(rows, column) for name, column in (("K/M", 1), ("n", 2))}
    claim = f"error of a prediction of dnas: {errors['K/M']:.3f} from K/M, {errors['n']:.3f} from n"
    gain = errors["n"] - errors["K/M"]
    return [*parts, fact("H4", claim, gain, gain > 0)]


def mass_part(name: str, scores: Tensor, is_wanted: Tensor) -> Part:
    """The claim that the weights of converged sinkhorn have the mass K/M on the wanted keys, in every example.

    scores: (B, 1, N, M). is_wanted: 1 for a key that some query wants, and 0 for the others, (B, M).
    """
    claim = f"{name}: |mass - K/M| < {ERROR:g}"
    mass, error = measured.converged_mass(scores, is_wanted)
    if mass is None:
        last = measured.ITERATIONS[-1]
        return Part("H4", claim, reason=f"not converged: marginal error {error:.2g} after {last:,} iterations")
    worst = float((mass - is_wanted.mean(-1)).abs().max())
    return fact("H4", claim, worst, worst < ERROR)


def left_out_error(rows: Sequence[tuple[str, float, float, float]], column: int) -> float:
    """The root mean square error of a linear regression on the logarithm of one column, each probe left out once."""
    errors = []
    for name in dict.fromkeys(row[0] for row in rows):
        rest, own = [row for row in rows if row[0] != name], [row for row in rows if row[0] == name]
        slope, start = np.polyfit([np.log(row[column]) for row in rest], [row[3] for row in rest], 1)
        errors += [row[3] - (start + slope * np.log(row[column])) for row in own]
    return float(np.sqrt(np.mean(np.square(errors))))


def fifth(atlas: Atlas) -> list[Part]:
    return [
        below("H5", "coverage: dnas < softmax", atlas.difference("coverage", "dnas", "softmax")),
        above("H5", "coverage: hnas > softmax", atlas.difference("coverage", "hnas", "softmax")),
    ]


def sixth(atlas: Atlas) -> list[Part]:
    alike = atlas.difference("slots distinct", "dnas", "softmax")
    exchangeable = atlas.difference("slots exchangeable", "dnas", "softmax")
    return [
        above("H6", "exchangeable slots: dnas finds more of the smallest", exchangeable),
        above("H6", "distinct slots: dnas > softmax - 0.02", alike, -MARGIN),
        below("H6", "distinct slots: dnas < softmax + 0.02", alike, MARGIN),
    ]


def seventh(atlas: Atlas) -> list[Part]:
    """Kendall's tau between the share of dnas in hnas and the difference dnas - softmax over cells."""
    cells = atlas.with_arms("hnas", *PARENTS)
    pairs, missing = [], []
    for cell in cells:
        difference = atlas.difference(cell, "dnas", "softmax")
        tested = atlas.cells[cell].tests.get("hnas")
        if difference is None or tested is None:
            missing.append(cell)
        else:
            pairs.append((mean_of_finite(tested.scalars["hybrid_weights"]), float(difference.mean())))
    claim = f"Kendall's tau over {len(cells)} cells > 0"
    if missing:
        return [Part("H7", claim, reason=f"no results yet: {', '.join(missing)}")]
    share, gain = np.array(pairs).T

    def tau(x: np.ndarray) -> float:
        return float(stats.kendalltau(x, gain).statistic)

    if isnan(tau(share)):  # a permutation test of it would be significant
        return [Part("H7", claim, reason="Kendall's tau is not defined: equal shares, or scores that are not numbers")]
    test = stats.permutation_test(
        (share,), tau, permutation_type="pairings", alternative="greater", n_resamples=9999, rng=0
    )
    return [Part("H7", claim, tau(share), p_value=float(test.pvalue))]


def eighth(atlas: Atlas) -> list[Part]:
    parts = not_worse(atlas, "H8", "dnas_slack_u", ("softmax", "dnas", "hnas"))
    if any(part.reason for part in parts):
        return parts  # nothing to decide, so nothing is timed
    seconds = measured.cost()
    ratio = seconds["dnas_slack_u"] / seconds["hnas"]
    others = ", ".join(f"{name} {value * 1000:.1f} ms" for name, value in seconds.items())
    return [*parts, fact("H8", f"time of dnas_slack_u / hnas <= {COST:g} ({others})", ratio, ratio <= COST)]


FAMILY: Mapping[str, Callable[[Atlas], list[Part]]] = {
    "H1": first,
    "H2": second,
    "H3": third,
    "H4": fourth,
    "H5": fifth,
    "H6": sixth,
    "H7": seventh,
    "H8": eighth,
}


def decide(atlas: Atlas) -> tuple[list[Part], dict[str, float]]:
    """All parts, and the p-value of each hypothesis: the largest one of its parts, adjusted with the method of Holm.

    It is NaN if it is not decided. Such a hypothesis still counts as one of the family.
    """
    parts = {name: make(atlas) for name, make in FAMILY.items()}
    largest = [largest_p_value(of) for of in parts.values()]
    return [part for of in parts.values() for part in of], dict(zip(parts, holm(largest), strict=True))


def largest_p_value(parts: Sequence[Part]) -> float:
    """The p-value of a hypothesis. Parts without one cannot make it smaller, so they matter only if all others hold."""
    known = [part.p_value for part in parts if not isnan(part.p_value)]
    decided = len(known) == len(parts) or max(known, default=0.0) >= 1 - LEVEL
    return max(known) if decided else nan


def verdict(name: str, p_value: float, parts: Sequence[Part]) -> str:
    """One line: the hypothesis, what is decided, and why it is not."""
    if not isnan(p_value):
        return f"{name}: {'shown' if p_value < 1 - LEVEL else 'not shown'}, adjusted p {p_value:.3g}"
    undecided = [part for part in parts if part.hypothesis == name and isnan(part.p_value)]
    others = f", and {len(undecided) - 1} more" if len(undecided) > 1 else ""
    return f"{name}: not decided ({undecided[0].claim}: {undecided[0].reason}{others})"


def write(parts: Sequence[Part], path: Path) -> None:
    """Writes one line per part."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, [it.name for it in fields(Part)])
        writer.writeheader()
        for part in parts:
            writer.writerow({name: six_digits(value) for name, value in asdict(part).items()})


def main() -> None:
    """Decides all hypotheses, and writes hypotheses.csv beside this file."""
    from run import run  # beside this file

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("logs/atlas"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = run(options.out, "primary", 0)
    if not any(it.tests for it in found):
        raise SystemExit(f"{options.out}: no results; experiments/atlas/run.py computes them")
    parts, adjusted = decide(Atlas(found))
    write(parts, Path(__file__).with_name("hypotheses.csv"))
    for name, p_value in adjusted.items():
        print(verdict(name, p_value, parts))


if __name__ == "__main__":
    main()
