"""A comparison on a ladder in sentences, as a table, and as files."""

from math import isfinite, nan
from pathlib import Path
from typing import Any

from attnorm.analysis.ladder.ladder_comparison import PRIMARIES, ArmOnLadder, LadderComparison, listed_rungs
from attnorm.analysis.statistics.crossed import Difference
from attnorm.analysis.study_files import plain_values
from attnorm.analysis.table import NOTHING, Cell, Column, Table, interval, number, title_of
from attnorm.analysis.verdict import decimals, p_is
from attnorm.files import write_json, write_text
from attnorm.wording import counted

EMPTY = f" ({NOTHING})"  # an interval that is not defined


def ladder_sentences(comparison: LadderComparison, arm: ArmOnLadder) -> list[str]:
    """What is shown of an arm: at the largest rung, of the trend, and of the projection."""
    digits, better = decimals(comparison.scores.metric), comparison.scores.better
    if not arm.contrasts:
        return []

    def said(name: str) -> str:
        """The interval and the verdict of a primary."""
        difference = arm.contrasts[name]
        if difference.no_verdict is not None:
            return f"no verdict: {difference.no_verdict}"
        ends, level = difference.new_seeds_and_examples, difference.level * 100
        ends_in_words = f"{level:g} % interval {ends.low:.{digits}f} to {ends.high:.{digits}f}"
        return f"{ends_in_words}, {arm.verdict(name)}, adjusted p {p_is(arm.adjusted[name])}"

    def with_ends(name: str) -> str:
        difference, ends = arm.contrasts[name], arm.contrasts[name].new_seeds_and_examples
        shown = f" ({ends.low:.{digits}f} to {ends.high:.{digits}f})" if isfinite(ends.low) else ""
        return f"{difference.estimate:+.{digits}f}{shown}"

    largest, where = arm.contrasts["largest"], listed_rungs(arm.compared)
    sizes = f"{counted(largest.seeds, 'seed')}, {counted(largest.examples, 'example')}"
    sizes += f" in {counted(largest.clusters, 'group')}" * (largest.clusters != largest.examples)
    metric = f"{title_of(comparison.scores.metric)} ({'lower' if better < 0 else 'higher'} is better)"
    top = f"{arm.label} minus {comparison.baseline} at rung {arm.compared[-1].number}, the largest of {where}"
    lines = [f"{top}: {largest.estimate:+.{digits}f} {metric}, {said('largest')} ({sizes})."]
    if net := next(result.net for result in arm.rungs if result.rung == arm.compared[-1]):
        worth = f"{net[0]:.2f} times the compute of {comparison.baseline} ({net[1].low:.2f} to {net[1].high:.2f})"
        lines[0] += f" Net of its price, {arm.label} is worth {worth}."
    if "trend" in arm.contrasts:
        change, is_gain = arm.contrasts["trend"].estimate, largest.estimate * better > 0
        size = "larger" if (change * better > 0) == is_gain else "smaller"
        towards = f"towards a {size} {'gain' if is_gain else 'loss'}"
        lines += [
            f"Over {where}, the difference changes by {change:+.{digits}f} per factor of ten in compute, {towards}, "
            f"{said('trend')}.",
            f"Along a straight line in log compute, the projection to {arm.projected:.3g} FLOPs is "
            f"{with_ends('projection')}; a projection is no verdict. The largest rung differs from the line through "
            f"the others by {with_ends('deviation')}.",
        ]
    if (held := arm.contrasts.get("held")) is not None and arm.beyond is not None:
        found = f"not judged, {held.no_verdict}" if held.no_verdict else with_ends("held")
        new = f"Rung {arm.beyond.number}, beyond the ladder, minus the projection to it"
        lines.append(f"{new} ({counted(held.seeds, 'seed')}): {found}.")
    return lines


def table_of(comparison: LadderComparison) -> Table:
    """A row for each arm and rung."""
    digits, metric = decimals(comparison.scores.metric), title_of(comparison.scores.metric)
    columns = [
        Column("arm"),
        *(Column(name, True) for name in ("rung", "parameters", "tokens", "compute")),
        Column(f"difference in {metric}", True, f"arm minus {comparison.baseline}"),
        Column("interval", True, "for new seeds and new examples, unadjusted"),
        Column("seconds ratio", True, f"seconds per token over those of {comparison.baseline}"),
        Column("net multiplier", True, f"compute with which {comparison.baseline} is as good, over the seconds ratio"),
        Column("its interval", True),
        Column("diverged"),
    ]
    rows = []
    for arm, result in ((each, result) for each in comparison.arms for result in each.rungs):
        size, found, net = result.rung, _numbers(result.difference), result.net
        sizes = [Cell(str(size.number), size.number), number(size.parameters, 0), number(size.tokens, 0)]
        sizes.append(Cell(f"{size.flops:.3g}", size.flops))
        difference = [number(found["difference"], digits, sign=True), interval(found["low"], found["high"], digits)]
        price = [number(result.seconds_ratio), number(net[0] if net else None)]
        price.append(interval(net[1].low, net[1].high, 2) if net else interval(nan, nan, 2))
        rows.append([Cell(arm.label), *sizes, *difference, *price, Cell(result.diverged)])
    said = [line for arm in comparison.arms for line in (*ladder_sentences(comparison, arm), *arm.notes)]
    caption = f"Differences from {comparison.baseline} in {metric} on the rungs of a ladder"
    return Table(caption, columns, rows, can_copy=True, about=" ".join([*said, *comparison.scores.notes]))


def rows_of(table: Table, label: str) -> list[list[str]]:
    """The rows of an arm in `table_of` as texts for the terminal, narrower, the names of the columns first."""
    rows = [["rung", "parameters", "tokens", "compute", "difference", "seconds ratio", "net multiplier"]]
    for row in (row for row in table.rows if row[0].text == label):
        _, rung, size, tokens, compute, difference, ends, ratio, net, net_ends, diverged = (cell.text for cell in row)
        rows.append([f"{rung} {diverged}".strip(), size, tokens, compute])
        rows[-1] += [f"{difference} ({ends})".replace(EMPTY, ""), ratio, f"{net} ({net_ends})".replace(EMPTY, "")]
    return rows


def write_comparison(comparison: LadderComparison, path: Path) -> None:
    """Writes the comparison, whole or not at all. The ending chooses the form, as in `write_study`."""
    if path.suffix.lower() != ".json":
        table = table_of(comparison)
        write_text(path, {".csv": table.csv, ".tex": table.latex, ".md": table.markdown}[path.suffix.lower()])
        return
    scores, arms = comparison.scores, list[dict[str, Any]]()
    for arm in comparison.arms:
        rungs = [
            {
                **{name: getattr(result.rung, name) for name in ("parameters", "tokens", "flops")},
                **{"rung": result.rung.number, "seconds_ratio": result.seconds_ratio, **_numbers(result.difference)},
                "multiplier": result.multiplier and result.multiplier[0],
                "net_multiplier": result.net and result.net[0],
            }
            for result in arm.rungs
        ]
        found = {name: _numbers(arm.contrasts.get(name)) for name in ("largest", "trend", "projection", "deviation")}
        found |= {name: {**found[name], "p": arm.adjusted[name], "verdict": arm.verdict(name)} for name in PRIMARIES}
        found["projection"]["flops"] = arm.projected
        held = {"held": _numbers(arm.contrasts["held"])} if "held" in arm.contrasts else {}
        diverged = [result.diverged for result in arm.rungs if result.diverged]
        notes = {"diverged": diverged, "sentences": ladder_sentences(comparison, arm), "notes": arm.notes}
        arms.append({"label": arm.label, "seeds": arm.seeds, "rungs": rungs, **found, **held, **notes})
    content = {
        **{"task": scores.task, "metric": scores.metric, "better": "lower" if scores.better < 0 else "higher"},
        **{"baseline": comparison.baseline, "examples": len(scores.ids), "level": comparison.level},
        **{"arms": arms, "notes": scores.notes},
    }
    write_json(path, plain_values(content))


def _numbers(difference: Difference | None) -> dict[str, Any]:
    """An estimate and its interval; NaN without one."""
    if difference is None:
        return dict.fromkeys(("difference", "low", "high"), nan)
    ends = difference.new_seeds_and_examples
    return {"difference": difference.estimate, "low": ends.low, "high": ends.high}
