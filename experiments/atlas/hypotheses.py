"""Decides the hypotheses of the atlas (README.md) from its results.

python experiments/atlas/hypotheses.py --out logs/atlas
"""

import argparse
import csv
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from pathlib import Path

import numpy as np
import torch
from run import run
from scipy import stats

from attnorm.analysis.statistics.crossed import paired_difference
from attnorm.analysis.statistics.multiple import holm
from attnorm.attention import build_normalizer
from attnorm.attention.normalizers.base import dot_scores
from attnorm.attention.normalizers.sinkhorn import marginal_error
from attnorm.probes.arm import Arm
from attnorm.probes.ensemble import batches, train
from attnorm.probes.experiment import Found
from attnorm.probes.jobs import MEASURED

MARGIN = 0.02
LEVEL = 0.95
PARENTS = ("softmax", "dnas")


@dataclass(frozen=True)
class Part:
    """One claim of a hypothesis. p_value: one-sided, of its opposite; NaN if it cannot be decided."""

    hypothesis: str
    claim: str
    estimate: float
    low: float
    high: float
    p_value: float


class Atlas:
    """The results of all cells. `difference` gives those of two arms as a table (seeds, examples)."""

    def __init__(self, cells: Iterable[Found]):
        self.cells = {found.cell.title: found for found in cells}

    def difference(self, cell: str, one: str, other: str, size: int = 0) -> np.ndarray | None:
        """The scores of an arm minus those of another one; None if a result is missing."""
        found = self.cells.get(cell)
        if found is None or not {one, other} <= found.tests.keys():
            return None
        size = size or found.cell.probe().size
        scores = [found.tests[arm].scores[size].astype(float) for arm in (one, other)]
        return np.asarray(scores[0] - scores[1])

    def with_arms(self, *arms: str) -> list[str]:
        """The cells in which something is trained and these arms are defined, whether they have results or not."""
        probes = {title: found.cell.probe() for title, found in self.cells.items()}
        return [
            title
            for title, probe in probes.items()
            if probe.updates and all(Arm(arm).unfit(probe.site) is None for arm in arms)
        ]


def above(hypothesis: str, claim: str, table: np.ndarray | None, margin: float = 0.0) -> Part:
    """The claim that the mean of a table of differences is above `margin`."""
    if table is None:
        return Part(hypothesis, claim, nan, nan, nan, nan)
    shifted = paired_difference(table - margin)
    p_value = shifted.p_value / 2 if shifted.estimate > 0 else 1 - shifted.p_value / 2
    interval = paired_difference(table).new_seeds_and_examples
    return Part(hypothesis, claim, float(table.mean()), interval.low, interval.high, p_value)


def below(hypothesis: str, claim: str, table: np.ndarray | None, margin: float = 0.0) -> Part:
    """The claim that the mean of a table of differences is below `margin`. The estimate keeps its sign."""
    part = above(hypothesis, claim, None if table is None else -table, -margin)
    return Part(hypothesis, claim, -part.estimate, -part.high, -part.low, part.p_value)


def first(atlas: Atlas) -> list[Part]:
    cells = ["match", "hub 0.9", "hub 0.45", "hub 0"]
    parts = [above("H1", f"{cell}: dnas > softmax", atlas.difference(cell, "dnas", "softmax")) for cell in cells]
    most, least = (atlas.difference(cell, "dnas", "softmax") for cell in ("hub 0.9", "hub 0"))
    contrast = None if most is None or least is None else most - least
    return [*parts, above("H1", "hub: dnas - softmax grows with the shift", contrast)]


def second(atlas: Atlas) -> list[Part]:
    cells = [("demand 4", 0), ("skew 0.8", 0), ("needle", 1024)]
    return [
        below("H2", f"{cell} {size or ''}: dnas < softmax", atlas.difference(cell, "dnas", "softmax", size))
        for cell, size in cells
    ]


def third(atlas: Atlas) -> list[Part]:
    parts = not_worse(atlas, "H3", "hnas", PARENTS)
    for cell in ("demand 12", "demand 8"):
        parts += [above("H3", f"{cell}: hnas > {arm}", atlas.difference(cell, "hnas", arm)) for arm in PARENTS]
    return parts


def not_worse(atlas: Atlas, hypothesis: str, arm: str, others: Sequence[str]) -> list[Part]:
    """That an arm is at most MARGIN below others, in all cells in which all are defined."""
    return [
        above(hypothesis, f"{cell}: {arm} > {other} - {MARGIN:g}", atlas.difference(cell, arm, other), -MARGIN)
        for cell in atlas.with_arms(arm, *others)
        for other in others
    ]


def fourth(atlas: Atlas) -> list[Part]:
    """The mass of converged sinkhorn on wanted keys, with trained scores; and which number predicts dnas."""
    parts, rows = [], []
    for title, found in atlas.cells.items():
        if found.cell.short not in ("demand", "share", "skew", "needle", "max"):
            continue
        if not {"dnas", "sinkhorn"} <= found.tests.keys():
            return [Part("H4", f"{title}: no results yet", nan, nan, nan, nan)]
        worst = converged_excess(found)
        parts.append(Part("H4", f"{title}: |mass - K/M| < 0.001", worst, nan, nan, 0.0 if worst < 0.001 else 1.0))
        for size, scores in found.tests["dnas"].scores.items():
            rows.append((found.cell.short, share_of_wanted(found, size), size, float(scores.mean())))
    if len({row[0] for row in rows}) > 2:
        errors = {name: left_out_error(rows, column) for name, column in (("K/M", 1), ("n", 2))}
        claim = f"error of a prediction of dnas: {errors['K/M']:.3f} from K/M, {errors['n']:.3f} from n"
        gain = errors["n"] - errors["K/M"]
        parts.append(Part("H4", claim, gain, nan, nan, 0.0 if gain > 0 else 1.0))
    return parts


def share_of_wanted(found: Found, size: int) -> float:
    """The share K/M of the keys that some query wants, mean over test examples."""
    [batch] = batches(found.cell.probe(), "test", size, MEASURED, 1, pieces=1)
    wanted = torch.zeros(batch.keys.shape[:-1]).scatter(-1, batch.wanted, 1.0)
    return float(wanted.mean())


@torch.no_grad()
def converged_excess(found: Found) -> float:
    """The largest |mass on wanted keys - K/M| with converged sinkhorn on the scores of a trained model."""
    probe, job_rate = found.cell.probe(), found.rate["sinkhorn"]
    with torch.enable_grad():
        trained = train(probe, Arm("sinkhorn"), [110], [job_rate], probe.updates)
    [batch] = batches(probe, "test", probe.size, MEASURED, 1, pieces=1)
    (q, _), (k, _) = trained.model.q(batch.queries), trained.model.k(batch.keys)
    scores = dot_scores(q, k, q.shape[-1] ** -0.5).transpose(0, 1).double()
    weights = build_normalizer("sinkhorn", n_iters=5000)(scores)
    assert float(marginal_error(weights).max()) < 0.001, "not converged"
    wanted = torch.zeros_like(weights[:, 0, 0]).scatter(-1, batch.wanted[0], 1.0)
    mass = (weights[:, 0].mean(-2) * wanted).sum(-1)
    return float((mass - wanted.mean(-1)).abs().max())


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
    pairs = []
    for cell in atlas.with_arms("softmax", "dnas", "hnas"):
        difference = atlas.difference(cell, "dnas", "softmax")
        tested = atlas.cells[cell].tests.get("hnas")
        shares = None if tested is None else tested.scalars.get("hybrid_weights")
        if difference is None or shares is None:
            return [Part("H7", f"{cell}: no results yet", nan, nan, nan, nan)]
        pairs.append((float(shares.mean()), float(difference.mean())))
    share, gain = np.array(pairs).T

    def tau(x: np.ndarray) -> float:
        return float(stats.kendalltau(x, gain).statistic)

    test = stats.permutation_test(
        (share,), tau, permutation_type="pairings", alternative="greater", n_resamples=9999, rng=0
    )
    return [Part("H7", f"Kendall's tau over {len(pairs)} cells", tau(share), nan, nan, float(test.pvalue))]


def eighth(atlas: Atlas) -> list[Part]:
    parts = not_worse(atlas, "H8", "dnas_slack_u", ("softmax", "dnas", "hnas"))
    seconds = cost()
    ratio = seconds["dnas_slack_u"] / seconds["hnas"]
    others = ", ".join(f"{name} {value * 1000:.1f} ms" for name, value in seconds.items())
    claim = f"time of dnas_slack_u / hnas <= 0.75 ({others})"
    return [*parts, Part("H8", claim, ratio, nan, nan, 0.0 if ratio <= 0.75 else 1.0)]


def cost(size: int = 512, rounds: int = 9) -> dict[str, float]:
    """Median seconds of forward and backward of attention, alternating between the arms."""
    q, k, v, u = (torch.randn(4, 4, size, 32, requires_grad=True) for _ in range(4))
    times: dict[str, list[float]] = {}
    arms = {"softmax": "softmax", "hnas": "hnas", "dnas_slack_u": "dnas_slack"}
    normalizers = {label: build_normalizer(name) for label, name in arms.items()}
    for _ in range(rounds):
        for label, normalizer in normalizers.items():
            begin = time.perf_counter()
            prior = u.mean(-1)[:, :, None, :] if label == "dnas_slack_u" else None  # a score per key
            normalizer.attend(q, k, v, log_prior=prior).sum().backward()
            times.setdefault(label, []).append(time.perf_counter() - begin)
    return {label: statistics.median(values) for label, values in times.items()}


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
    """All parts, and the adjusted p-value of each hypothesis: the largest p-value of its parts, after Holm."""
    parts = {name: make(atlas) for name, make in FAMILY.items()}
    largest = [
        max((nan if any(isnan(it.p_value) for it in of) else it.p_value for it in of), default=nan)
        for of in parts.values()
    ]
    return [part for of in parts.values() for part in of], dict(zip(parts, holm(largest), strict=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("logs/atlas"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    parts, adjusted = decide(Atlas(run(options.out, False, 0)))
    with open(Path(__file__).with_name("hypotheses.csv"), "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["hypothesis", "claim", "estimate", "low", "high", "p_value"])
        for part in parts:
            numbers = ["" if isnan(x) else f"{x:.4g}" for x in (part.estimate, part.low, part.high, part.p_value)]
            writer.writerow([part.hypothesis, part.claim, *numbers])
    for name, p_value in adjusted.items():
        word = "not decided" if isnan(p_value) else "shown" if p_value < 1 - LEVEL else "not shown"
        print(f"{name}: {word}" + ("" if isnan(p_value) else f", adjusted p {p_value:.3g}"))
