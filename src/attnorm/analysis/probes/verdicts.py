"""Scores of probes as rows: means, differences to the baseline with intervals, and what they depend on."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import floor, isfinite, isnan, log10, nan
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from attnorm.analysis.probes.rates import flipping_rates, other_rates
from attnorm.analysis.statistics.crossed import Difference, Interval, paired_difference
from attnorm.analysis.statistics.multiple import holm
from attnorm.analysis.statistics.tuned import DISMISSAL
from attnorm.analysis.verdict import AT_THESE_RATES, FALSE_CALLS, charged
from attnorm.probes.arm import NULLS, Arm
from attnorm.probes.experiment import CellOutcome
from attnorm.probes.model import generator

LEVEL = 0.95


@dataclass(frozen=True)
class Row:
    """An arm in a cell at one size.

    trained:    whether this is the size at which rates are chosen.
    score, spread: mean over seeds and examples, and the standard deviation over seeds.
    normalized: (score - null) / (ceiling - null); NaN without a null arm or a ceiling.
    difference, low, high: to the baseline, with the interval for new seeds and new examples. If it is shown,
                the end next to zero is the closest one over the rates of `over_rates`.
    p_value, adjusted: of no difference, adjusted for the arms of the cell (Holm).
    discovery:  the same, adjusted for all differences at the sizes of training (Benjamini and Hochberg 1995).
    over_rates: the largest p-value over all rates of the worse arm that may be its best one; 1 if one of them has no
                result, NaN if nothing was tuned. `adjusted` and the verdict rest on it wherever the difference would be
                shown at the chosen rates.
    flips:      the rates at which the tuning seeds show the opposite difference. Such a difference is not shown. Only
                the size at which rates are chosen can be checked.
    wanted:     the mean weight on the key that a query asks for.
    mass_on_wanted, share_wanted: the weight on all keys that some query asks for, per query, and their share of the
                keys: with equal column masses they are the same.
    """

    probe: str
    dose: str
    site: str
    metric: str
    size: int
    trained: bool
    arm: str
    rate: float
    seeds: int
    score: float
    spread: float
    null: float
    ceiling: float
    normalized: float
    difference: float = nan
    low: float = nan
    high: float = nan
    p_value: float = nan
    over_rates: float = nan
    adjusted: float = nan
    discovery: float = nan
    verdict: str = ""
    flips: str = ""
    diverged: int = 0
    seconds: float = nan
    entropy: float = nan
    column_mass_min: float = nan
    wanted: float = nan
    mass_on_wanted: float = nan
    share_wanted: float = nan
    learned: str = ""

    @property
    def estimate(self) -> str:
        """The difference and both ends of its interval, such as "+0.233 (+0.210 to +0.265)", with enough digits to tell
        the ends apart. They need not be equally far away. Without an interval, the difference alone."""
        width = self.high - self.low
        digits = max(3, -floor(log10(width))) if width > 0 else 3
        interval = "" if isnan(self.low) else f" ({self.low:+.{digits}f} to {self.high:+.{digits}f})"
        return f"{self.difference:+.{digits}f}{interval}"


@dataclass(frozen=True)
class CellResults:
    """The rows of a cell. curves: for each arm, the mean tuning score by rate. left_out: arms without rows, and why."""

    outcome: CellOutcome
    rows: list[Row]
    curves: Mapping[str, Mapping[float, float]]
    left_out: Mapping[str, str]


def results_of_cell(outcome: CellOutcome, arms: Sequence[Arm], rates: Sequence[float]) -> CellResults:
    """Compares the arms of a cell with the first one.

    The tables of scores are paired by seed and by example. A verdict is "shown" or "not shown" at 5 % after the method
    of Holm, over the arms of the cell. It is "shown at these rates only" if the better arm is not shown to be above the
    worse one at every rate that may be the best one of the worse arm; and "depends on the rate" if, at the size at
    which rates are chosen, the sign flips at one of `rates`, the grid before it was extended. If some scores are not
    finite, because the squared error of large outputs has overflowed, there is no difference, and the verdict says so.
    """
    probe = outcome.cell.probe()
    baseline = arms[0].label
    rows, closest = list[Row](), dict[tuple[int, str], Interval]()
    for size in probe.test_sizes:
        test = probe.batch(probe.test_examples, size, generator(type(probe).__qualname__, "test", size))
        ceiling = nan if (solved := probe.ceiling(test)) is None else float(solved.mean())
        nulls = [float(outcome.tests[name].scores[size].mean()) for name in NULLS if name in outcome.tests]
        null = max(nulls, default=nan if probe.chance is None else probe.chance)
        for arm in arms:
            if arm.label not in outcome.tests:
                continue
            scores = outcome.tests[arm.label].scores[size]
            difference, verdict = None, ""
            if arm.label != baseline and arm.label not in NULLS and baseline in outcome.tests:
                base = outcome.tests[baseline].scores[size]
                if np.isfinite(scores).all() and np.isfinite(base).all():
                    difference = paired_difference(scores.astype(float) - base, level=LEVEL)
                else:
                    verdict = NOT_FINITE
            row = _row_of(outcome, arm, size, null, ceiling, difference)
            if difference is not None and difference.no_verdict is None:
                row, closest[size, row.arm] = over_rates(row, outcome, arm.label, baseline)
            rows.append(replace(row, verdict=verdict) if verdict else row)
    unfit = {arm.label: reason for arm in arms if (reason := arm.unfit(probe.site))}
    curves = {
        arm: {rate: float(s.mean()) for rate, s in sorted(of.items())}
        for arm, of in outcome.tuning.items()
        if arm not in NULLS
    }
    return CellResults(outcome, judged_rows(rows, closest, outcome, arms, rates), curves, {**unfit, **outcome.failed})


def _row_of(of: CellOutcome, arm: Arm, size: int, null: float, ceiling: float, difference: Difference | None) -> Row:
    """The row of an arm without its verdict."""
    probe, result = of.cell.probe(), of.tests[arm.label]
    of_seeds = result.scores[size].mean(1)
    score = float(of_seeds.mean())
    scalars = {name: mean_of_finite(value) for name, value in result.scalars.items()}
    known: dict[str, Any] = {}  # what not every row has
    if size == probe.size:
        known |= {name: mean_of_finite(result.measures[name]) for name in MEASURES if name in result.measures}
    if difference is not None:
        ends = difference.new_seeds_and_examples
        known |= {"difference": difference.estimate, "low": ends.low, "high": ends.high}
        known |= {"p_value": difference.p_value, "verdict": difference.no_verdict or ""}
    return Row(
        probe=of.cell.short,
        dose=of.cell.dose,
        site=probe.site,
        metric=probe.metric,
        size=size,
        trained=size == probe.size,
        arm=arm.short,
        rate=of.rate.get(arm.label, nan),
        seeds=len(of_seeds),
        score=score,
        spread=float(of_seeds.std(ddof=1)) if len(of_seeds) > 1 and isfinite(score) else nan,
        null=null,
        ceiling=ceiling,
        normalized=(score - null) / (ceiling - null) if ceiling > null else nan,
        diverged=result.diverged,
        seconds=result.seconds / len(of_seeds),
        learned="; ".join(f"{name}={value:.3f}" for name, value in scalars.items()),
        **known,
    )


def mean_of_finite(values: np.ndarray) -> float:
    """The mean over the members that have not diverged; NaN if all have."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else nan


NOT_FINITE = "scores that are not finite"
MEASURES = ("entropy", "column_mass_min", "wanted", "mass_on_wanted", "share_wanted")


def judged_rows(
    rows: Sequence[Row],
    closest: Mapping[tuple[int, str], Interval],
    outcome: CellOutcome,
    arms: Sequence[Arm],
    rates: Sequence[float],
) -> list[Row]:
    """The rows with verdicts, adjusted for the arms that are compared at the same size.

    closest: by size and arm, the interval of a difference that is shown, as `over_rates` returns it.
    """
    labels = {arm.short: arm.label for arm in arms}
    complete = []
    for size in dict.fromkeys(row.size for row in rows):
        of_size = [row for row in rows if row.size == size]
        compared = [row for row in of_size if not isnan(row.difference)]
        names, charge = [row.arm for row in compared], DISMISSAL if outcome.tuning else 0.0
        here = dict(zip(names, holm([row.p_value for row in compared]), strict=True))
        over_all = holm(
            [row.p_value if isnan(row.over_rates) else max(row.p_value, row.over_rates) for row in compared]
        )
        adjusted = {name: charged(p, charge) for name, p in zip(names, over_all, strict=True)}
        for row in of_size:
            if row.arm in adjusted:
                p_here = charged(here[row.arm], charge)
                flips = flipping_rates(outcome, row.difference, labels[row.arm], arms[0].label) if row.trained else []
                flips = [rate for rate in flips if rate in rates]
                is_shown = adjusted[row.arm] < FALSE_CALLS
                word = "shown" if is_shown else AT_THESE_RATES if p_here < FALSE_CALLS else "not shown"
                word = row.verdict or word
                word = "depends on the rate" if flips and word in ("shown", AT_THESE_RATES) else word
                of_rates = " ".join(f"{rate:g}" for rate in flips)
                row = replace(row, adjusted=adjusted[row.arm] if is_shown else p_here, verdict=word, flips=of_rates)
                if word == "shown":
                    row = replace(row, **asdict(closest[row.size, row.arm]))
            complete.append(row)
    return complete


def over_rates(row: Row, outcome: CellOutcome, arm: str, baseline: str) -> tuple[Row, Interval]:
    """The row with its p-value over all rates of the worse arm, and the interval whose end next to zero is the closest
    one over these rates, for a difference that is shown."""
    low, high = row.low, row.high
    worse, better = (baseline, arm) if row.difference > 0 else (arm, baseline)
    if worse not in outcome.tuning:
        return row, Interval(low, high)
    p_values = [row.p_value]
    for rate in other_rates(outcome)[worse]:
        result = outcome.further.get(worse, {}).get(rate)
        if result is not None and result.all_diverged:  # so it is not the best rate
            continue
        scores = None if result is None else result.scores[row.size].astype(float)
        difference = None
        if scores is not None and np.isfinite(scores).all():
            gain = outcome.tests[better].scores[row.size] - scores
            difference = paired_difference(gain if worse == baseline else -gain, level=LEVEL)
        if difference is None or isnan(difference.p_value) or difference.estimate * row.difference <= 0:
            return replace(row, over_rates=1.0), Interval(low, high)
        p_values.append(difference.p_value)
        more = difference.new_seeds_and_examples
        low, high = (min(low, more.low), high) if row.difference > 0 else (low, max(high, more.high))
    return replace(row, over_rates=max(p_values)), Interval(low, high)


def further_rates(outcome: CellOutcome, arms: Sequence[Arm]) -> dict[str, list[float]]:
    """The other rates of each arm on which the verdicts of a cell depend: those that may be the best one of the worse
    arm where a difference would be shown at the chosen rates."""
    labels, others = {arm.short: arm.label for arm in arms}, other_rates(outcome)
    rows = [row for row in results_of_cell(outcome, arms, ()).rows if row.verdict in ("shown", AT_THESE_RATES)]
    worse = dict.fromkeys(arms[0].label if row.difference > 0 else labels[row.arm] for row in rows)
    return {arm: others.get(arm, []) for arm in worse}


def with_discoveries(cells: Sequence[CellResults]) -> list[CellResults]:
    """The cells with `Row.discovery`, for exploratory reading: 5 % of what is below 0.05 is expected to be false."""
    p_values = [row.p_value for cell in cells for row in cell.rows if row.trained and not isnan(row.p_value)]
    adjusted = iter(stats.false_discovery_control(p_values)) if p_values else iter(())

    def judged(row: Row) -> Row:
        return replace(row, discovery=float(next(adjusted))) if row.trained and not isnan(row.p_value) else row

    return [replace(cell, rows=[judged(row) for row in cell.rows]) for cell in cells]


def write_csv(cells: Sequence[CellResults], path: Path, **same: str) -> None:
    """Writes one line per arm, cell and size. same: further columns, the same in all lines."""
    import csv

    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, [*same, *(field.name for field in fields(Row))])
        writer.writeheader()
        for row in (row for cell in cells for row in cell.rows):
            writer.writerow(same | {name: six_digits(value) for name, value in asdict(row).items()})


def six_digits(value: object) -> object:
    """A number with six digits, and nothing for NaN."""
    if isinstance(value, float):
        return "" if isnan(value) else f"{value:.6g}"
    return value
