"""Predictions as bounds on the difference between two arms, and what the results say about them."""

import csv
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sweeps import Run, table

from attnorm.analysis.arms import find_runs
from attnorm.analysis.scores import SplitName, example_table, shared_examples
from attnorm.analysis.statistics.crossed import MIN_SEEDS, paired_difference

BELOW, ABOVE = (-math.inf, 0.0), (0.0, math.inf)
Scored = tuple[str, str]  # an arm and a metric
# scores or pseudo-values of examples, (seeds, examples), or (1, examples) for an arm without seeds
Tables = Mapping[Scored, np.ndarray]


@dataclass(frozen=True)
class Claim:
    """A part of a prediction: the score `first` minus the score `second` is within `bounds`."""

    prediction: str
    first: Scored
    second: Scored
    bounds: tuple[float, float]


def claim(prediction: str, arm: str, other: str, metric: str, bounds: tuple[float, float]) -> Claim:
    """A claim about two arms on one metric."""
    return Claim(prediction, (arm, metric), (other, metric), bounds)


def decide(claims: Sequence[Claim], tables: Tables, groups: Sequence[Hashable] | None = None) -> list[dict[str, str]]:
    """A row per claim: its bounds, the difference, its 95 % interval for new seeds and new examples, and the verdict.

    A claim is shown if the interval is within its bounds, refuted if it is outside of them, and open otherwise. It is
    not compared if an arm has no scores, and there is no verdict if there is no interval. groups: the cluster of each
    example, if there are clusters.
    """
    rows = []
    for it in claims:
        least, most = it.bounds
        row = {"prediction": it.prediction, "score": ", ".join(it.first), "minus": ", ".join(it.second)}
        numbers, verdict = {"least": least, "most": most}, "not compared"
        if it.first in tables and it.second in tables:
            found = paired_difference(tables[it.first] - tables[it.second], groups)
            interval, verdict = found.new_seeds_and_examples, "open"
            if found.no_verdict:
                verdict = "no verdict"
            elif least <= interval.low and interval.high <= most:
                verdict = "shown"
            elif interval.high < least or interval.low > most:
                verdict = "refuted"
            numbers |= {"difference": found.estimate, "low": interval.low, "high": interval.high}
        rows.append({**row, **{name: f"{value:.5g}" for name, value in numbers.items()}, "verdict": verdict})
    return rows


def tables_of(arms: Mapping[str, Sequence[Run]], metrics: Sequence[str], split: SplitName) -> dict[Scored, np.ndarray]:
    """The scores of the examples that all runs have, by arm and metric, over the seeds that all arms have.

    An arm with scores for fewer than MIN_SEEDS seeds is left out, as in a comparison.
    """
    found = {}
    for arm, runs in arms.items():
        trained = find_runs([run.folder for run in runs]) if runs else []
        by_seed = {run.seed: example for run in trained if (example := example_table(run, split)) is not None}
        if len(by_seed) >= MIN_SEEDS:
            found[arm] = by_seed
    seeds = sorted(set.intersection(*map(set, found.values()))) if found else []
    if len(seeds) < MIN_SEEDS:
        return {}  # there is no interval
    tables = {}
    for metric in metrics:
        named = {f"{arm}, seed {seed}": by_seed[seed] for arm, by_seed in found.items() for seed in seeds}
        ids, _ = shared_examples(named, metric)
        for arm, by_seed in found.items():
            tables[arm, metric] = np.stack([by_seed[seed].values(metric, ids) for seed in seeds])
    return tables


def write_claims(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Writes and prints what the results say about the predictions."""
    header = ("prediction", "score", "minus", "least", "most", "difference", "low", "high", "verdict")
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, header, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    cells = [[row.get(name, "") for name in header] for row in rows]
    print(f"\npredictions, written to {path}\n\n{table(header, cells)}")
