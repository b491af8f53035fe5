"""Claims about the results of the atlas, and the one-sided tests that decide them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import nan

import numpy as np

from attnorm.analysis.statistics.crossed import paired_difference
from attnorm.probes.arm import Arm
from attnorm.probes.experiment import CellOutcome

LEVEL = 0.95


@dataclass(frozen=True)
class Part:
    """One claim of a hypothesis.

    p_value:   one-sided, of the opposite of the claim; NaN if it cannot be decided, and `reason` says why.
    low, high: the two-sided interval for new seeds and new examples.
    bound:     the end of the one-sided interval on the side where the claim may fail.
    """

    hypothesis: str
    claim: str
    estimate: float = nan
    low: float = nan
    high: float = nan
    bound: float = nan
    p_value: float = nan
    reason: str = ""


class Atlas:
    """The results of all cells. `difference` gives those of two arms as a table (seeds, examples)."""

    def __init__(self, cells: Iterable[CellOutcome]):
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
    """The claim that the mean of a table of differences (seeds, examples) is above `margin`.

    It is shown at 5 % exactly if `bound`, the lower one-sided 95 % bound, is above `margin`. Where the differences have
    no interval for new seeds and new examples, the claim has no p-value either.
    """
    if table is None:
        return Part(hypothesis, claim, reason="no results yet")
    if not np.isfinite(table).all():
        return Part(hypothesis, claim, reason="scores that are not finite")
    found = paired_difference(table, level=LEVEL)
    shifted = paired_difference(table - margin) if margin else found
    if reason := found.no_verdict or shifted.no_verdict:
        return Part(hypothesis, claim, found.estimate, reason=reason)
    interval = found.new_seeds_and_examples
    bound = found.estimate - float(found.variances.half_widths(2 * LEVEL - 1)[1])
    p_value = shifted.p_value / 2 if shifted.estimate > 0 else 1 - shifted.p_value / 2
    return Part(hypothesis, claim, found.estimate, interval.low, interval.high, bound, p_value)


def below(hypothesis: str, claim: str, table: np.ndarray | None, margin: float = 0.0) -> Part:
    """The claim that the mean of a table of differences is below `margin`. The numbers keep their signs."""
    part = above(hypothesis, claim, None if table is None else -table, -margin)
    return replace(part, estimate=-part.estimate, low=-part.high, high=-part.low, bound=-part.bound)


def fact(hypothesis: str, claim: str, estimate: float, holds: bool) -> Part:
    """A claim that is decided by a number, without a test."""
    return Part(hypothesis, claim, estimate, p_value=0.0 if holds else 1.0)
