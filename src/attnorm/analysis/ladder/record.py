"""A comparison on a ladder in sentences, as a table, and as files."""

import json
from math import isfinite, nan
from pathlib import Path
from typing import Any

from attnorm.analysis.ladder.comparison import ArmOnLadder, LadderComparison, Primary, RungResult
from attnorm.analysis.record import plain
from attnorm.analysis.statistics.crossed import Difference
from attnorm.analysis.table import Cell, Column, Table, interval, number, title_of
from attnorm.analysis.verdict import decimals, p_is
from attnorm.files import write_text
from attnorm.wording import counted


def sentences(comparison: LadderComparison) -> list[str]:
    """What is shown of each arm: at the largest rung, of the trend, and of the projection. Notes are not among them."""
    digits, metric = decimals(comparison.scores.metric), title_of(comparison.scores.metric)
    lines = []
    for arm in comparison.arms:
        if arm.largest is None:
            continue
        top, difference = arm.compared[-1], arm.largest.difference
        sizes = f"{counted(difference.seeds, 'seed')}, {counted(difference.examples, 'example')}"
        if difference.clusters != difference.examples:
            sizes += f" in {counted(difference.clusters, 'group')}"
        better = " (lower is better)" if comparison.scores.better < 0 else ""
        net = ""
        if top.net is not None:
            ends = [f"{end:.2f}" for end in (top.net[1].low, top.net[1].high)]
            net = f" Net of its price, the arm is worth {top.net[0]:.2f} times the compute ({' to '.join(ends)})."
        lines.append(
            f"{arm.label} minus {comparison.baseline} at rung {top.rung.number}, the largest of {_span(arm)}: "
            f"{difference.estimate:+.{digits}f} {metric}{better}, "
            f"{_said(arm.largest, digits)} ({sizes}).{net}"
        )
        if arm.trend is None or arm.projection is None or arm.deviation is None:
            continue
        change, gain = arm.trend.difference.estimate, difference.estimate * comparison.scores.better > 0
        grows = (change * comparison.scores.better > 0) == gain
        towards = f"towards a {'larger' if grows else 'smaller'} {'gain' if gain else 'loss'}"
        lines += [
            f"Over {_span(arm)}, the difference changes by {change:+.{digits}f} per factor of ten in compute, "
            f"{towards}, {_said(arm.trend, digits)}.",
            f"Along a straight line in log compute, the projection to {arm.projected:.3g} FLOPs is "
            f"{_with_ends(arm.projection, digits)}; a projection is no verdict. The largest rung differs from the line "
            f"through the others by {_with_ends(arm.deviation, digits)}.",
        ]
        if arm.held is not None and arm.beyond is not None:
            seeds = counted(arm.held.seeds, "seed")
            found = f"not judged, {arm.held.no_verdict}" if arm.held.no_verdict else _with_ends(arm.held, digits)
            lines.append(f"Rung {arm.beyond.number}, beyond the ladder, minus the projection to it ({seeds}): {found}.")
    return lines


def table_of(comparison: LadderComparison) -> Table:
    """A row for each arm and rung."""
    digits, several = decimals(comparison.scores.metric), len(comparison.arms) > 1
    name = f"{title_of(comparison.scores.metric)} difference"
    columns = [
        *([Column("arm")] if several else []),
        *(Column(title, True) for title in ("rung", "parameters", "tokens", "compute")),
        Column(name, True, f"arm minus {comparison.baseline}"),
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
            difference, net = result.difference, result.net
            ends = difference.new_seeds_and_examples if difference else None
            size = result.rung
            rows.append(
                [
                    *([Cell(arm.label)] if several else []),
                    Cell(str(size.number), size.number),
                    number(size.parameters, 0),
                    number(size.tokens, 0),
                    Cell(f"{size.flops:.3g}", size.flops),
                    number(difference.estimate if difference else None, digits, sign=True),
                    interval(ends.low if ends else nan, ends.high if ends else nan, digits),
                    number(result.seconds_ratio),
                    number(net[0] if net else None),
                    interval(net[1].low if net else nan, net[1].high if net else nan, 2),
                    Cell(result.diverged),
                ]
            )
    who = comparison.arms[0].label if not several else "Each arm"
    caption = f"{who} minus {comparison.baseline}, {title_of(comparison.scores.metric)}, on each rung of the ladder"
    about = " ".join(
        [*sentences(comparison), *comparison.notes, *(note for arm in comparison.arms for note in arm.notes)]
    )
    return Table(caption, columns, rows, can_copy=True, about=about)


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
        "arms": [_record_of(arm) for arm in comparison.arms],
        "sentences": sentences(comparison),
        "notes": list(comparison.notes),
    }
    write_text(path, json.dumps(plain(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _record_of(arm: ArmOnLadder) -> dict[str, Any]:
    """An arm as values of JSON, with NaN for what is not defined."""
    record = {
        "label": arm.label,
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
