"""The charts of a comparison on probes."""

import re
from collections.abc import Callable, Mapping, Sequence
from math import isnan, nan
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from attnorm.analysis.chart import Chart, values_table
from attnorm.analysis.colours import styles_of_arms
from attnorm.analysis.paper import COLUMN, LETTER, LINE, PAGE, Figure, bare, plain_text
from attnorm.analysis.probes.verdicts import LEVEL, CellResults
from attnorm.analysis.table import Table
from attnorm.probes.arm import Arm

NUMBER = re.compile(r"-?\d+(\.\d+)?")
WHITE, BLACK = "#fafafa", "#111111"  # which stay in dark mode, as the fields of the map do


def charts_of_cells(cells: Sequence[CellResults], arms: Sequence[Arm]) -> dict[str, Chart]:
    """All charts for which there are results: "map", "doses", "rates" and "training"."""
    charts = {
        "map": map_chart(cells, arms) if len(arms) > 1 else None,
        "doses": doses_chart(cells, arms),
        "rates": rates_chart(cells, arms),
        "training": training_chart(cells, arms),
    }
    return {name: chart for name, chart in charts.items() if chart is not None}


def doses_chart(cells: Sequence[CellResults], arms: Sequence[Arm]) -> Chart | None:
    """The difference to the baseline against the dose, with bands of the intervals, one panel per probe whose doses are
    numbers."""
    dosed: dict[str, list[CellResults]] = {}
    for cell in cells:
        if cell.rows and NUMBER.fullmatch(cell.outcome.cell.dose):
            dosed.setdefault(cell.outcome.cell.short, []).append(cell)
    dosed = {name: of for name, of in dosed.items() if len(of) > 1}
    if not dosed or len(arms) < 2:
        return None
    styles = styles_of_arms([arm.short for arm in arms])
    rows = {
        (name, arm.short): sorted(
            (float(row.dose), row.difference, row.low, row.high)
            for cell in of
            for row in cell.rows
            if row.arm == arm.short and row.trained and not isnan(row.difference)
        )
        for name, of in dosed.items()
        for arm in arms[1:]
    }

    def draw(width: float) -> Figure:
        figure, panels = figure_of(len(dosed), width)
        for axes, (name, of) in zip(panels, dosed.items(), strict=True):
            axes.axhline(0, **styles[arms[0].short], linewidth=1, label=arms[0].short)
            for arm in arms[1:]:
                x, middle, low, high = zip(*rows[name, arm.short], strict=True) if rows[name, arm.short] else [()] * 4
                axes.plot(x, middle, **styles[arm.short], marker="o", markersize=4, label=arm.short)
                axes.fill_between(x, low, high, color=styles[arm.short]["color"], alpha=0.2, linewidth=0)
            ylabel = f"{of[0].rows[0].metric},\ndifference to {arms[0].short}"
            axes.set(xlabel=of[0].outcome.cell.probe().axis, ylabel=ylabel, title=name)
            axes.set_xticks([float(cell.outcome.cell.dose) for cell in of])
        name_lines(figure, panels)
        return figure

    title = f"difference to {arms[0].short} by dose"
    columns = ("probe", "normalizer", "dose", "difference", "from", "to")
    values = values_table(title, columns, [(*names, *row) for names, of in rows.items() for row in of])
    reading = "At the size of training. Bands are 95 % intervals for new seeds and new examples."
    return chart_of("doses", title, draw, values, reading, len(dosed))


def rates_chart(cells: Sequence[CellResults], arms: Sequence[Arm]) -> Chart | None:
    """The mean score of the tuning seeds on the selection data against the learning rate, one panel per cell."""
    reading = "Every normalizer has the same grid, and is compared at its best rate with other seeds."
    curves = [(cell, {arm.short: cell.curves.get(arm.label, {}) for arm in arms}) for cell in cells]
    title = "mean score of the tuning seeds on the selection data, by learning rate"
    return courses("rates", title, arms, curves, "learning rate", reading)


def training_chart(cells: Sequence[CellResults], arms: Sequence[Arm]) -> Chart | None:
    """The mean score on the selection data in the course of training at the chosen rate, one panel per cell."""
    curves = []
    for cell in (cell for cell in cells if cell.outcome.cell.probe().updates):
        tests = {arm.short: test for arm in arms if (test := cell.outcome.tests.get(arm.label)) is not None}
        means = {arm: test.curve.mean(0) for arm, test in tests.items()}
        shares = {arm: 100 * np.arange(1, len(of) + 1) / len(of) for arm, of in means.items()}
        curves.append((cell, {arm: dict(zip(shares[arm].tolist(), means[arm].tolist(), strict=True)) for arm in tests}))
    reading = (
        "The rate falls to zero, so a curve may rise a little until the end, which does not show that longer training "
        "would help. A curve that still rises much faster than the others at the end belongs to a normalizer that "
        "learns more slowly."
    )
    title = "mean score on the selection data in the course of training, at the chosen rate"
    return courses("training", title, arms, curves, "% of the training", reading)


def courses(
    name: str,
    title: str,
    arms: Sequence[Arm],
    curves: Sequence[tuple[CellResults, Mapping[str, Mapping[float, float]]]],
    along: str,
    reading: str,
) -> Chart | None:
    """A panel per cell with a line per arm. curves: for each cell, the scores by arm and place along the axis."""
    curves = [(cell, of) for cell, of in curves if any(of.values())]
    styles = styles_of_arms([arm.short for arm in arms])
    places = [sorted({place for curve in of.values() for place in curve}) for _, of in curves]
    if not curves:
        return None

    def draw(width: float) -> Figure:
        figure, panels = figure_of(len(curves), width)
        for axes, (cell, of), of_cell in zip(panels, curves, places, strict=True):
            for arm, curve in of.items():
                marker = "o" if along == "learning rate" else ""
                axes.plot([*curve], [*curve.values()], **styles[arm], marker=marker, markersize=4, label=arm)
            axes.set(xlabel=along, ylabel=cell.outcome.cell.probe().metric, title=cell.outcome.cell.title)
            if along == "learning rate":
                ticks: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
                axes.set_xscale("log")
                axes.set_xticks(of_cell, [f"{rate:g}" for rate in of_cell], **ticks)
                axes.minorticks_off()
        name_lines(figure, panels)
        return figure

    rows = [
        (cell.outcome.cell.title, place, *(of.get(arm.short, {}).get(place) for arm in arms))
        for (cell, of), of_cell in zip(curves, places, strict=True)
        for place in of_cell
    ]
    values = values_table(title, ("probe", along, *(arm.short for arm in arms)), rows)
    return chart_of(name, title, draw, values, reading, len(curves))


def map_chart(cells: Sequence[CellResults], arms: Sequence[Arm]) -> Chart:
    """The differences to the baseline in points at the size of training, one row per cell and one column per arm.

    The number in a field is gray unless it is a discovery (`Row.discovery`) that does not flip. A field without a
    difference is empty.
    """
    compared, titles = arms[1:], [cell.outcome.cell.title for cell in cells]
    rows = [
        [next((row for row in cell.rows if row.arm == arm.short and row.trained), None) for arm in compared]
        for cell in cells
    ]
    values = [[nan if row is None else 100 * row.difference for row in line] for line in rows]

    def draw(width: float) -> Figure:
        names, labels = (LETTER * max(map(len, texts)) for texts in (titles, [arm.short for arm in compared]))
        width = COLUMN if names + 0.35 * len(compared) + 0.7 <= COLUMN else PAGE
        figure = Figure(width, 1.3 * LINE * len(cells) + labels + 0.3)
        axes = figure.subplots()
        edges = [[number - 0.5 for number in range(len(names) + 1)] for names in (compared, cells)]
        fields = axes.pcolormesh(*edges, values, cmap="PuOr", vmin=-40, vmax=40, edgecolors="white", linewidth=0.5)
        axes.invert_yaxis()
        for y, line in enumerate(rows):
            for x, row in enumerate(line):
                if row is not None and not isnan(row.difference):
                    points = round(100 * row.difference)
                    strong, faint = (WHITE, "#cccccc") if abs(points) > 25 else (BLACK, "#777777")
                    colour = strong if row.discovery < 1 - LEVEL and not row.flips else faint
                    text = f"{points:+}" if points else "0"
                    axes.text(x, y, text, ha="center", va="center", color=colour)
        axes.xaxis.tick_top()
        arms = [plain_text(arm.short) for arm in compared]
        axes.set_xticks(range(len(arms)), arms, rotation=60, ha="left", rotation_mode="anchor")
        axes.set_yticks(range(len(titles)), [plain_text(title) for title in titles])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        side, length = ("right", figure.get_figheight()) if width == COLUMN else ("bottom", width)
        bar: Any = figure.colorbar(
            fields, label="points", location=side, shrink=min(1.0, 2.5 / length), aspect=25, extend="both", pad=0.02
        )
        bar.solids.set(rasterized=False, edgecolor="face")  # the page allows no images
        return figure

    title = f"difference to {arms[0].short} in points, for each probe and normalizer"
    listed = [
        (title, *(None if isnan(value) else value for value in line))
        for title, line in zip(titles, values, strict=True)
    ]
    table = values_table(title, ("probe", *(arm.short for arm in compared)), listed)
    reading = (
        "At the size of training. Black or white numbers: discoveries, of which 5 % are expected to be false "
        "(Benjamini and Hochberg). Empty: not defined or not run."
    )
    return chart_of("map", title, draw, table, reading)


def chart_of(
    name: str, title: str, draw: Callable[[float], Figure], values: Table, reading: str, panels: int = 1
) -> Chart:
    """A chart; of several panels, it is as wide as a page."""
    return Chart(f"chart-{name}", title, f"{title}. {reading}", draw, values, reading=reading, is_wide=panels > 1)


def figure_of(panels: int, width: float) -> tuple[Figure, list[Axes]]:
    """A figure with panels in rows of at most three, or one below the other in a column."""
    columns = 1 if width == COLUMN else min(panels, 3)
    rows = -(-panels // columns)
    figure = Figure(COLUMN if columns == 1 else PAGE, 1.8 * rows)
    grid = [*figure.subplots(rows, columns, squeeze=False).flat]
    for axes in grid:
        bare(axes)
    for axes in grid[panels:]:
        axes.set_visible(False)
    return figure, grid[:panels]


def name_lines(figure: Figure, panels: Sequence[Axes]) -> None:
    """Names the lines of all panels once, above them."""
    lines = (line for axes in panels for line in axes.get_lines() if np.size(line.get_xdata()))
    figure.name_lines({str(line.get_label()): line for line in lines})
