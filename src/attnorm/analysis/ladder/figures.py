"""The figures of a ladder: the loss against compute and against seconds, and the differences against compute.

Each function draws a figure of `width` inches, for a page or for one column, in the colours of the report in light
mode, which `in_page` replaces by those of the mode of the reader.
"""

import re
from collections import Counter
from collections.abc import Callable
from math import log10
from typing import TYPE_CHECKING, Any

import numpy as np

from attnorm.analysis.ladder.comparison import ArmOnLadder, LadderComparison
from attnorm.analysis.ladder.scores import LadderScores, Rung
from attnorm.analysis.pictures import COLUMN
from attnorm.analysis.report.style import light_colours
from attnorm.analysis.statistics.ladder import projection_weights
from attnorm.analysis.statistics.variances import variances_of
from attnorm.analysis.table import Cell, Column, Table, number, title_of
from attnorm.analysis.verdict import decimals

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from attnorm.analysis.paper import Figure


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


def loss_against_compute(comparison: LadderComparison, width: float = COLUMN) -> "Figure":
    """A line per arm over the rungs, with a dot per seed."""
    return _losses(comparison, "compute (FLOPs)", width, lambda rung, seconds: rung.flops)


def loss_against_seconds(comparison: LadderComparison, width: float = COLUMN) -> "Figure":
    """The same against the measured seconds of training, on one machine."""
    return _losses(comparison, "seconds of training", width, lambda rung, seconds: seconds)


def _losses(
    comparison: LadderComparison, label: str, width: float, place: Callable[[Rung, float | None], float | None]
) -> "Figure":
    figure, axes = _axes(width)
    lines = {}
    for arm, colour in _colours(comparison).items():
        points = [(place(rung, seconds), each) for rung, (each, seconds) in _measured(comparison.scores, arm).items()]
        known = [(x, values) for x, values in points if x is not None]
        style: dict[str, Any] = {"color": colour, "markersize": 3, "markeredgewidth": 0}
        for x, values in known:
            axes.plot([x] * len(values), values, "o", alpha=0.6, **style)
        (lines[arm],) = axes.plot([x for x, _ in known], [np.mean(values) for _, values in known], **style)
    axes.set(xscale="log", xlabel=label, ylabel=title_of(comparison.scores.metric))
    figure.name_lines(lines)
    return figure.finished(f"{_title(comparison)} against {label}: means over seeds, and a dot for each seed.")


def difference_against_compute(comparison: LadderComparison, width: float = COLUMN) -> "Figure":
    """The difference of each arm on each rung with its interval, the trend with its band, and the projection."""
    figure, axes = _axes(width)
    colours, lines = _colours(comparison), {}
    axes.axhline(0, color=light_colours()["--ink-soft"], linewidth=0.8, linestyle=(0, (4, 3)))
    for index, arm in enumerate(comparison.arms):
        style: dict[str, Any] = {"color": colours[arm.label]}
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
    axes.set(xscale="log", xlabel="compute (FLOPs)", ylabel=f"difference from {comparison.baseline}")
    figure.name_lines(lines)
    return figure.finished(
        f"{_title(comparison)}, difference from {comparison.baseline} against compute, with "
        f"{comparison.level * 100:g} % intervals for new seeds and new examples. Lines and bands: the trend and its "
        "interval. Dashed: its projection. Open circles: rungs beyond the ladder."
    )


def _line(comparison: LadderComparison, arm: ArmOnLadder) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The trend of an arm up to the end of its projection: compute, value and half width of the interval."""
    x = [rung.x for rung in arm.compared]
    end = max(log10(arm.projected), x[-1], arm.beyond.x if arm.beyond else 0)
    grid, differences = np.union1d(np.linspace(x[0], end, 40), x), comparison.differences(arm, arm.compared, arm.seeds)
    lines = np.stack([np.tensordot(projection_weights(x, at), differences, 1) for at in grid])
    return 10**grid, lines.mean((1, 2)), variances_of(lines, comparison.scores.groups).half_widths(comparison.level)[1]


def _axes(width: float) -> "tuple[Figure, Axes]":
    """An empty figure without a box, in the colours of the page."""
    from attnorm.analysis.paper import Figure

    colours = light_colours()
    figure = Figure(width, max(2.2, 0.52 * width))
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(colours["--line"])
    axes.tick_params(which="both", color=colours["--line"])
    axes.grid(axis="y", color=colours["--grid"], linewidth=0.7)
    axes.set_axisbelow(True)
    return figure, axes


def _colours(comparison: LadderComparison) -> dict[str, str]:
    """A colour for each arm, the first one for the baseline."""
    colours, others = light_colours(), [arm for arm in comparison.scores.arms if arm != comparison.baseline]
    return {arm: colours[f"--c{index % 8}"] for index, arm in enumerate([comparison.baseline, *others])}


def _title(comparison: LadderComparison) -> str:
    """The metric and the task."""
    metric, task = title_of(comparison.scores.metric), comparison.scores.task
    return f"{metric[:1].upper()}{metric[1:]}{f' ({task})' if task else ''}"


def in_page(figure: "Figure", name: str) -> str:
    """The figure as SVG inside a page, without its caption, in the colours of the page. name: unique on the page."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "savefig.transparent": True}):
        svg = figure.drawn_as("svg").decode()
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(
        r'(<svg[^>]*?) width="[^"]*" height="[^"]*"|(<svg[^>]*?) height="[^"]*" width="[^"]*"', r"\1\2", svg, count=1
    )
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    for variable, colour in light_colours().items():
        if variable.startswith(("--c", "--line", "--grid", "--ink-soft")):
            svg = svg.replace(colour, f"var({variable})")
    return svg
