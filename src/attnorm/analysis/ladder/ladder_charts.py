"""The figures of a ladder: the loss against compute and against seconds, and the differences against compute."""

from collections import Counter
from functools import partial
from math import log10
from typing import Any

import numpy as np

from attnorm.analysis.chart import Chart
from attnorm.analysis.colours import light_colours, styles_of_arms
from attnorm.analysis.ladder.ladder_comparison import ArmOnLadder, LadderComparison
from attnorm.analysis.ladder.ladder_files import table_of
from attnorm.analysis.ladder.ladder_scores import LadderScores, Rung
from attnorm.analysis.paper import Figure, panel
from attnorm.analysis.statistics.contrasts import projection_weights
from attnorm.analysis.statistics.variances import variances_of
from attnorm.analysis.table import Cell, Column, Table, number, title_of
from attnorm.analysis.verdict import decimals


def losses_table(scores: LadderScores) -> Table:
    """The values behind the figures of the metric: a row for each arm and rung. The seconds of training are those on
    the machine that has measured most runs."""
    digits, metric = decimals(scores.metric), title_of(scores.metric)
    columns = [Column("arm"), *(Column(name, True) for name in ("rung", "compute", metric, "s.d.", "seeds", "seconds"))]
    rows = []
    for arm in scores.arms:
        for rung, (values, seconds) in _measured(scores, arm).items():
            spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
            cells = [Cell(str(rung.number), rung.number), Cell(f"{rung.flops:.3g}", rung.flops)]
            cells += [number(float(np.mean(values)), digits), number(spread, digits)]
            rows.append([Cell(arm), *cells, number(len(values), 0), number(seconds, 0)])
    return Table(f"{metric[:1].upper()}{metric[1:]} of each arm, mean over seeds", columns, rows, can_copy=True)


def _measured(scores: LadderScores, arm: str) -> dict[Rung, tuple[list[float], float | None]]:
    """The metric of an arm on each rung, by seed, and its seconds of training."""
    devices = Counter(run.device for run in scores.timed if run.seconds is not None)
    device = next((name for name, _ in devices.most_common(1)), "")
    measured = {}
    for rung in scores.rungs.values():
        tables = [run.examples for run in scores.on(arm, rung).values() if run.examples is not None]
        if tables:
            per_token = scores.seconds(arm, rung).get(device)
            seconds = None if per_token is None else per_token * rung.tokens
            measured[rung] = [table.overall(scores.metric, scores.ids) for table in tables], seconds
    return measured


def charts_of_ladder(anchor: str, comparison: LadderComparison) -> list[Chart]:
    """The charts of a comparison, as wide as a page and as a column. anchor: the start of their names."""
    metric, differences = title_of(comparison.scores.metric), table_of(comparison).filled()
    values = losses_table(comparison.scores)
    difference, level = f"difference from {comparison.baseline}", f"{comparison.level * 100:g} %"
    seeds = "Means over seeds, and a dot for each seed."
    trend = (
        f"With {level} intervals for new seeds and new examples. Lines and bands: the trend and its interval. Dashed: "
        "its projection. Open circles: rungs beyond the ladder."
    )
    charts = (
        (f"{metric} against compute", seeds, values, partial(_losses, comparison, "compute (FLOPs)")),
        (f"{difference} in {metric} against compute", trend, differences, partial(_trends, comparison)),
        (f"{metric} against seconds", seeds, values, partial(_losses, comparison, "seconds of training")),
    )
    return [
        Chart(f"{anchor}-{number}", title, f"Line chart of the {title}.", draw, table, reading=reading, is_wide=True)
        for number, (title, reading, table, draw) in enumerate(charts, start=1)
    ]


def _losses(comparison: LadderComparison, label: str, width: float) -> Figure:
    """A line per arm over the rungs, with a dot per seed, against compute or against the seconds of training."""
    figure = Figure(width, max(2.2, 0.4 * width))
    axes, lines = panel(figure, title_of(comparison.scores.metric)), {}
    for arm, style in styles_of_arms([comparison.baseline, *(arm.label for arm in comparison.arms)]).items():
        measured = _measured(comparison.scores, arm)
        points = [(rung.flops if "compute" in label else seconds, each) for rung, (each, seconds) in measured.items()]
        known = [(x, values) for x, values in points if x is not None]
        for x, values in known:
            axes.plot([x] * len(values), values, "o", color=style["color"], alpha=0.6, markersize=3, markeredgewidth=0)
        (lines[arm],) = axes.plot([x for x, _ in known], [np.mean(values) for _, values in known], **style)
    axes.set(xscale="log", xlabel=label)
    figure.name_lines(lines)
    return figure


def _trends(comparison: LadderComparison, width: float) -> Figure:
    """The difference of each arm on each rung with its interval, the trend with its band, and the projection."""
    figure = Figure(width, max(2.2, 0.4 * width))
    axes, lines = panel(figure, f"difference from {comparison.baseline}"), {}
    styles = styles_of_arms([comparison.baseline, *(arm.label for arm in comparison.arms)])
    axes.axhline(0, color=light_colours()["--ink-soft"], linewidth=0.8, linestyle=(0, (4, 3)))
    for index, arm in enumerate(comparison.arms):
        style: dict[str, Any] = {"color": styles[arm.label]["color"]}
        beside = 10 ** (0.03 * (index - (len(comparison.arms) - 1) / 2))  # intervals at one compute would overlap
        for x, difference in ((beside * result.rung.flops, result.difference) for result in arm.rungs):
            if difference is not None:
                ends = difference.new_seeds_and_examples
                axes.plot(x, difference.estimate, "o", markersize=4, **style)
                axes.plot([x, x], [ends.low, ends.high], linewidth=1.2, **style)
        if "trend" in arm.contrasts:
            points, middle, half = _line(comparison, arm)
            last = int(np.searchsorted(points, arm.compared[-1].flops * (1 + 1e-9)))
            axes.plot(points[:last], middle[:last], linewidth=1.4, **style)
            axes.plot(points[last - 1 :], middle[last - 1 :], linewidth=1.4, linestyle="--", **style)
            axes.fill_between(points, middle - half, middle + half, alpha=0.13, linewidth=0, **style)
        if arm.beyond is not None:
            seeds = sorted(comparison.scores.seeds(arm.label, arm.beyond) & {*arm.seeds})
            mean = float(comparison.differences(arm, [arm.beyond], seeds).mean())
            axes.plot(beside * arm.beyond.flops, mean, "o", markersize=5, markerfacecolor="none", **style)
        (lines[arm.label],) = axes.plot([], [], "-o", markersize=4, **style)
    axes.set(xscale="log", xlabel="compute (FLOPs)")
    figure.name_lines(lines)
    return figure


def _line(comparison: LadderComparison, arm: ArmOnLadder) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The trend of an arm up to the end of its projection: compute, value and half width of the interval."""
    x = [rung.x for rung in arm.compared]
    end = max(log10(arm.projected), x[-1], arm.beyond.x if arm.beyond else 0)
    grid, differences = np.union1d(np.linspace(x[0], end, 40), x), comparison.differences(arm, arm.compared, arm.seeds)
    lines = np.stack([np.tensordot(projection_weights(x, at), differences, 1) for at in grid])
    return 10**grid, lines.mean((1, 2)), variances_of(lines, comparison.scores.groups).half_widths(comparison.level)[1]
