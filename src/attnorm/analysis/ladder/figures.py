"""The figures of a ladder: the loss against compute and against seconds, and the differences against compute.

Each function draws a figure of `width` inches, for a page or for one column, in the colours of the report in light
mode, which `in_page` replaces by those of the mode of the reader.
"""

import re
from collections import Counter
from collections.abc import Mapping
from math import log10
from typing import TYPE_CHECKING, Any

import numpy as np

from attnorm.analysis.ladder.comparison import ArmOnLadder, LadderComparison
from attnorm.analysis.ladder.scores import LadderScores
from attnorm.analysis.pictures import COLUMN
from attnorm.analysis.report.style import light_colours
from attnorm.analysis.statistics.ladder import projection_weights
from attnorm.analysis.statistics.variances import variances_of
from attnorm.analysis.table import Cell, Column, Table, number, title_of
from attnorm.analysis.verdict import decimals

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from attnorm.analysis.paper import Figure

Losses = Mapping[int, Mapping[int, float]]  # rung -> seed -> the metric of all examples
ASPECT = 0.52  # height over width of a page; a column is less wide, and as high as it needs


def losses_of(scores: LadderScores, arm: str) -> Losses:
    """The metric of an arm on each rung and for each seed."""
    return {
        number: {
            seed: examples.overall(scores.metric, scores.ids)
            for seed in sorted(scores.seeds(arm, number))
            if (examples := scores.runs[arm, number, seed].examples) is not None
        }
        for number in scores.rungs
        if scores.seeds(arm, number)
    }


def training_seconds(scores: LadderScores, arm: str) -> dict[int, float]:
    """The seconds of training of an arm on each rung, on the machine that has measured most runs."""
    devices = Counter(run.device for run in scores.timed if run.seconds is not None)
    device = next((name for name, _ in devices.most_common(1)), "")
    measured = {number: scores.seconds(arm, number).get(device) for number in scores.rungs}
    return {number: each * scores.rungs[number].tokens for number, each in measured.items() if each is not None}


def losses_table(scores: LadderScores) -> Table:
    """The values behind the figures of the loss: a row for each arm and rung."""
    digits, metric = decimals(scores.metric), title_of(scores.metric)
    columns = [Column("arm"), *(Column(name, True) for name in ("rung", "compute", metric, "s.d.", "seeds", "seconds"))]
    rows = []
    for arm in scores.arms:
        seconds = training_seconds(scores, arm)
        for rung, losses in losses_of(scores, arm).items():
            values, flops = list(losses.values()), scores.rungs[rung].flops
            spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
            sizes = [Cell(str(rung), rung), Cell(f"{flops:.3g}", flops), number(float(np.mean(values)), digits)]
            rows.append(
                [Cell(arm), *sizes, number(spread, digits), number(len(values), 0), number(seconds.get(rung), 0)]
            )
    return Table(f"{metric[:1].upper()}{metric[1:]} of each arm, mean over seeds", columns, rows, can_copy=True)


def loss_against_compute(comparison: LadderComparison, width: float = COLUMN) -> "Figure":
    """A line per arm over the rungs, with a dot per seed."""
    scores = comparison.scores
    flops = {number: rung.flops for number, rung in scores.rungs.items()}
    return _losses(comparison, dict.fromkeys(_colours(comparison), flops), "compute (FLOPs)", width)


def loss_against_seconds(comparison: LadderComparison, width: float = COLUMN) -> "Figure | None":
    """The same against the measured seconds of training on one machine; None if no arm was measured."""
    seconds = {arm: training_seconds(comparison.scores, arm) for arm in _colours(comparison)}
    known = {arm: each for arm, each in seconds.items() if each}
    return _losses(comparison, known, "seconds of training", width) if known else None


def _losses(
    comparison: LadderComparison, along: Mapping[str, Mapping[int, float]], label: str, width: float
) -> "Figure":
    figure, axes = _axes(width)
    colours, lines = _colours(comparison), {}
    for arm, positions in along.items():
        losses = {number: each for number, each in losses_of(comparison.scores, arm).items() if number in positions}
        x, means = (
            [positions[number] for number in losses],
            [float(np.mean([*each.values()])) for each in losses.values()],
        )
        (lines[arm],) = axes.plot(x, means, color=colours[arm])
        dots = [(positions[number], loss) for number, each in losses.items() for loss in each.values()]
        axes.plot(*zip(*dots, strict=True), "o", color=colours[arm], markersize=3, alpha=0.6, markeredgewidth=0)
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
        for result in arm.compared:
            assert result.difference is not None
            ends = result.difference.new_seeds_and_examples
            axes.plot(beside * result.rung.flops, result.difference.estimate, "o", markersize=4, **style)
            axes.plot([beside * result.rung.flops] * 2, [ends.low, ends.high], linewidth=1.2, **style)
        if arm.trend is not None:
            points, middle, half = _line(comparison, arm)
            last = int(np.searchsorted(points, arm.compared[-1].rung.flops, side="right"))
            axes.plot(points[:last], middle[:last], linewidth=1.4, **style)
            axes.plot(points[last - 1 :], middle[last - 1 :], linewidth=1.4, linestyle="--", **style)
            axes.fill_between(points, middle - half, middle + half, alpha=0.13, linewidth=0, **style)
        if arm.beyond is not None:
            seeds = sorted({*arm.seeds} & comparison.scores.seeds(arm.label, arm.beyond.number))
            tables = [
                comparison.scores.table(each, [arm.beyond.number], seeds) for each in (arm.label, comparison.baseline)
            ]
            axes.plot(
                beside * arm.beyond.flops,
                float(np.subtract(*tables).mean()),
                "o",
                markersize=5,
                markerfacecolor="none",
                **style,
            )
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
    scores, rungs = comparison.scores, [result.rung for result in arm.compared]
    numbers, x = [rung.number for rung in rungs], [rung.x for rung in rungs]
    end = max(log10(arm.projected), x[-1], arm.beyond.x if arm.beyond else 0)
    tables = [scores.table(each, numbers, arm.seeds) for each in (arm.label, comparison.baseline)]
    grid = np.union1d(np.linspace(x[0], end, 40), x)
    lines = np.stack([np.tensordot(projection_weights(x, at), np.subtract(*tables), 1) for at in grid])
    return 10**grid, lines.mean((1, 2)), variances_of(lines, scores.groups).half_widths(comparison.level)[1]


def _axes(width: float) -> "tuple[Figure, Axes]":
    """An empty figure without a box, in the colours of the page."""
    from attnorm.analysis.paper import Figure

    colours = light_colours()
    figure = Figure(width, max(2.2, ASPECT * width))
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
