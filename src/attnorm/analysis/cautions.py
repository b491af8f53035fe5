"""Warnings that belong to a verdict: what makes its interval too narrow, or its runs unusual."""

from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import median

import numpy as np

from attnorm.analysis.arms import TrainedRun
from attnorm.analysis.statistics.shape import distances, outlying_seeds, skewed_examples
from attnorm.wording import counted

WORSE = 1.5  # times the median loss of the other runs: a run whose loss rose to this has diverged
EFFECT = "so the interval may miss the true difference more often than it says"


def cautions_of(
    rows: np.ndarray, seeds: Sequence[int], groups: Sequence[str] | None, runs: Sequence[tuple[str, TrainedRun]]
) -> tuple[str, ...]:
    """The warnings about a comparison of two arms, as sentences.

    rows: the differences (seeds, examples). groups: see `skewed_examples`. runs: those of both arms, with their names.
    """
    found = [*about_runs(runs)]
    means = rows.mean(1)
    if outlying_seeds(means):
        apart = np.abs(means - np.median(means))
        largest, usual = distances(means)
        differ = usual > largest * 1e-6  # otherwise they are equal up to rounding
        ratio = f"{largest / usual:,.0f} times as far as usual" if differ else "and the others are equal"
        seed, value = seeds[int(apart.argmax())], means[apart.argmax()]
        middle = f"the median of all seeds, {np.median(means):+.4g}"
        found.append(f"the difference of seed {seed}, {value:+.4g}, is far from {middle} ({ratio}), {EFFECT}")
    if skewed_examples(rows, groups):
        kind = "examples" if groups is None else "groups"
        found.append(f"the differences of the {kind} are skewed, and there are too few of them, {EFFECT}")
    return tuple(f"Caution: {it}." for it in found)


def about_runs(runs: Sequence[tuple[str, TrainedRun]]) -> list[str]:
    """What happened in the training of these runs that a reader of their scores has to know, as clauses."""
    losses = {name: run.validation_losses for name, run in runs if run.validation_losses}
    found = []
    for name, run in runs:
        if clause := divergence(name, losses):
            found.append(f"{name} has diverged{clause}")
        skipped = run.summary.get("skipped_updates")
        if isinstance(skipped, int) and skipped > 0:
            found.append(f"{name} skipped {counted(skipped, 'update')} whose loss or gradient was not finite")
    return found


def divergence(name: str, losses: Mapping[str, Sequence[float]]) -> str | None:
    """Whether a run has diverged, as the end of a sentence; None if it has not.

    A run has diverged if its last validation loss is not finite, or if it has risen since the first validation, to at
    least WORSE times the median of the other runs. Such a rise may also mean that the run has overfitted.

    losses: those of all runs by name.
    """
    own, others = losses.get(name, []), [its[-1] for key, its in losses.items() if key != name and isfinite(its[-1])]
    if not own:
        return None
    if not isfinite(own[-1]):
        return ": its last validation loss is not finite"
    if len(others) > 1 and own[-1] > own[0] and own[-1] >= WORSE * median(others) > 0:
        rose = f" or overfitted: its validation loss rose from {own[0]:.3g} to {own[-1]:.3g}"
        return f"{rose}, and the median of the other runs is {median(others):.3g}"
    return None
