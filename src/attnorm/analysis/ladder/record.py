"""A comparison on a ladder in sentences, as a table, and as files."""

import json
from math import isfinite, nan
from pathlib import Path
from typing import Any

from attnorm.analysis.ladder.comparison import ArmOnLadder, LadderComparison, Primary, RungResult
from attnorm.analysis.record import plain
from attnorm.analysis.statistics.crossed import Difference, Interval
from attnorm.analysis.table import Cell, Column, Table, interval, number, title_of
from attnorm.analysis.verdict import decimals, p_is
from attnorm.files import write_text
from attnorm.wording import counted

NOTHING = Interval(nan, nan)


def sentences(comparison: LadderComparison, arm: ArmOnLadder) -> list[str]:
    """What is shown of an arm: at the largest rung, of the trend, and of the projection."""
    digits, metric, better = decimals(comparison.scores.metric), comparison.scores.metric, comparison.scores.better
    if arm.largest is None:
        return []
    top, difference = arm.compared[-1], arm.largest.difference
    sizes = f"{counted(difference.seeds, 'seed')}, {counted(difference.examples, 'example')}"
    if difference.clusters != difference.examples:
        sizes += f" in {counted(difference.clusters, 'group')}"
    is_gain = difference.estimate * better > 0
    lines = [
        f"{arm.label} minus {comparison.baseline} at rung {top.rung.number}, the largest of {_span(arm)}: "
        f"{difference.estimate:+.{digits}f} {title_of(metric)} ({'lower' if better < 0 else 'higher'} is better), "
        f"{_said(arm.largest, digits)} ({sizes})."
    ]
    if top.net is not None:
        net, ends = top.net
        lines[0] += (
            f" Net of its price, {arm.label} is worth {net:.2f} times the compute of {comparison.baseline} "
            f"({ends.low:.2f} to {ends.high:.2f})."
        )
    if arm.trend is None or arm.projection is None or arm.deviation is None:
        return lines
    change = arm.trend.difference.estimate
    size = "larger" if (change * better > 0) == is_gain else "smaller"
    lines += [
        f"Over {_span(arm)}, the difference changes by {change:+.{digits}f} per factor of ten in compute, towards a "
        f"{size} {'gain' if is_gain else 'loss'}, {_said(arm.trend, digits)}.",
        f"Along a straight line in log compute, the projection to {arm.projected:.3g} FLOPs is "
        f"{_with_ends(arm.projection, digits)}; a projection is no verdict. The largest rung differs from the line "
        f"through the others by {_with_ends(arm.deviation, digits)}.",
    ]
    if arm.held is not None and arm.beyond is not None:
        seeds = counted(arm.held.seeds, "seed")
        found = f"not judged, {arm.held.no_verdict}" if arm.held.no_verdict else _with_ends(arm.held, digits)
        lines.append(f"Rung {arm.beyond.number}, beyond the ladder, minus the projection to it ({seeds}): {found}.")
    return lines


def rows_of(comparison: LadderComparison, arm: ArmOnLadder) -> list[list[str]]:
    """The rungs of an arm as texts for the terminal, the names of the columns first."""
    digits = decimals(comparison.scores.metric)
    rows = [["rung", "parameters", "tokens", "compute", "difference", "seconds ratio", "net multiplier"]]
    for result in arm.rungs:
        size, net = result.rung, result.net
        rows.append(
            [
                f"{size.number}{f' ({result.diverged})' if result.diverged else ''}",
                f"{size.parameters:,}",
                f"{size.tokens:,.0f}",
                f"{size.flops:.3g}",
                _with_ends(result.difference, digits) if result.difference else "",
                f"{result.seconds_ratio:.2f}" if result.seconds_ratio else "",
                f"{net[0]:.2f} ({net[1].low:.2f} to {net[1].high:.2f})" if net else "",
            ]
        )
    return rows


def table_of(comparison: LadderComparison) -> Table:
    """A row for each arm and rung."""
    digits, metric = decimals(comparison.scores.metric), title_of(comparison.scores.metric)
    columns = [
        Column("arm"),
        *(Column(name, True) for name in ("rung", "parameters", "tokens", "compute")),
        Column(f"difference in {metric}", True, f"arm minus {comparison.baseline}"),
        Column("interval", True, "for new seeds and new examples, unadjusted"),
        Column("seconds ratio", True, f"seconds per token over those of {comparison.baseline}"),
        Column(
            "net multiplier", True, f"compute with which {comparison.baseline} is as good, over the ratio of seconds"
        ),
        Column("its interval", True),
        Column("diverged"),
    ]
    rows = []
    for arm in comparison.arms:
        for result in arm.rungs:
            size, net = result.rung, result.net
            ends = result.difference.new_seeds_and_examples if result.difference else NOTHING
            rows.append(
                [
                    Cell(arm.label),
                    Cell(str(size.number), size.number),
                    number(size.parameters, 0),
                    number(size.tokens, 0),
                    Cell(f"{size.flops:.3g}", size.flops),
                    number(result.difference.estimate if result.difference else None, digits, sign=True),
                    interval(ends.low, ends.high, digits),
                    number(result.seconds_ratio),
                    number(net[0] if net else None),
                    interval(net[1].low, net[1].high, 2) if net else interval(nan, nan, 2),
                    Cell(result.diverged),
                ]
            )
    said = [line for arm in comparison.arms for line in (*sentences(comparison, arm), *arm.notes)]
    caption = f"Differences from {comparison.baseline} in {metric} on the rungs of a ladder"
    return Table(caption, columns, rows, can_copy=True, about=" ".join([*said, *comparison.notes]))


def write_comparison(comparison: LadderComparison, path: Path) -> None:
    """Writes the comparison, whole or not at all. The ending chooses the form, see `analysis.record`."""
    if path.suffix.lower() != ".json":
        table = table_of(comparison)
        write_text(path, {".csv": table.csv, ".tex": table.latex, ".md": table.markdown}[path.suffix.lower()])
        return
    scores = comparison.scores
    content = {
        "task": scores.task,
        "metric": scores.metric,
        "better": "lower" if scores.better < 0 else "higher",
        "baseline": comparison.baseline,
        "examples": len(scores.ids),
        "level": comparison.level,
        "arms": [_record_of(comparison, arm) for arm in comparison.arms],
        "notes": list(comparison.notes),
    }
    write_text(path, json.dumps(plain(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _record_of(comparison: LadderComparison, arm: ArmOnLadder) -> dict[str, Any]:
    """An arm as values of JSON, with NaN for what is not defined."""
    record = {
        "label": arm.label,
        "sentences": sentences(comparison, arm),
        "seeds": list(arm.seeds),
        "rungs": [_record_of_rung(result) for result in arm.rungs],
        "largest": _record_of_primary(arm.largest),
        "trend": _record_of_primary(arm.trend),
        "projection": _numbers(arm.projection) | {"flops": arm.projected},
        "deviation": _numbers(arm.deviation),
        "diverged": [result.diverged for result in arm.rungs if result.diverged],
        "notes": list(arm.notes),
    }
    return record | ({"held": _numbers(arm.held)} if arm.held is not None else {})


def _record_of_rung(result: RungResult) -> dict[str, Any]:
    size = result.rung
    return {
        "rung": size.number,
        "parameters": size.parameters,
        "tokens": size.tokens,
        "flops": size.flops,
        "seconds_ratio": result.seconds_ratio,
        **_numbers(result.difference),
        "multiplier": result.multiplier and result.multiplier[0],
        "net_multiplier": result.net and result.net[0],
    }


def _record_of_primary(primary: Primary | None) -> dict[str, Any]:
    if primary is None:
        return {**_numbers(None), "p": nan, "verdict": "no verdict"}
    return {**_numbers(primary.difference), "p": primary.adjusted, "verdict": primary.word}


def _numbers(difference: Difference | None) -> dict[str, float]:
    if difference is None:
        return dict.fromkeys(("difference", "low", "high"), nan)
    ends = difference.new_seeds_and_examples
    return {"difference": difference.estimate, "low": ends.low, "high": ends.high}


def _with_ends(difference: Difference, digits: int) -> str:
    """'-0.012 (-0.020 to -0.004)'."""
    ends = difference.new_seeds_and_examples
    shown = f" ({ends.low:.{digits}f} to {ends.high:.{digits}f})" if isfinite(ends.low) else ""
    return f"{difference.estimate:+.{digits}f}{shown}"


def _said(primary: Primary, digits: int) -> str:
    """The interval and the verdict of a primary difference."""
    if (why := primary.difference.no_verdict) is not None:
        return f"no verdict: {why}"
    ends = primary.difference.new_seeds_and_examples
    level = f"{primary.difference.level * 100:g} % interval"
    return (
        f"{level} {ends.low:.{digits}f} to {ends.high:.{digits}f}, {primary.word}, adjusted p {p_is(primary.adjusted)}"
    )


def _span(arm: ArmOnLadder) -> str:
    """The rungs that are compared, in words."""
    numbers = [result.rung.number for result in arm.compared]
    return f"rungs {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"rung {numbers[0]}"
