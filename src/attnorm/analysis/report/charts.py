"""The charts of the report, as functions of plain rows."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator

from attnorm.analysis.chart import Chart, values_table
from attnorm.analysis.colours import Style, light_colours
from attnorm.analysis.paper import Figure, panel, plain_text
from attnorm.analysis.report.curves import Point
from attnorm.analysis.run_figures import log_axis, log_floor

FEW = 12  # steps of a curve up to which its points are drawn
HEIGHT = 1.9  # inches
ENDS = ("mean", "smallest", "largest", "values")  # columns of the values behind a chart


def curves(
    name: str,
    measure: str,
    points: Sequence[Point],
    styles: Mapping[str, Style],
    series: str = "arm",
    log: bool = False,
    from_zero: bool = False,
    along: str = "update",
    tried: Sequence[float] = (),
) -> Chart:
    """Lines with bands from the smallest to the largest value.

    measure: what the vertical axis shows. series: what a series is. log: a logarithmic axis. from_zero: whether a line
    marks 0, for differences. along: what the horizontal axis shows. tried: its only values, on a logarithmic scale; by
    default, all numbers.
    """
    by_series = {label: [point for point in points if point.series == label] for label in styles}
    by_series = {label: of for label, of in by_series.items() if of}

    def draw(width: float) -> Figure:
        figure = Figure(width, HEIGHT)
        axes, lines, floor = panel(figure, measure), {}, floor_of(points, log)
        for label, of in by_series.items():
            style, x = styles[label], [point.step for point in of]
            low, mean, high = ends_of(of, floor)
            fill = 0.16 if len(by_series) == 1 else 0.07  # where bands coincide, fills mix, but outlines do not
            colour, edge = (style["color"], fill), (style["color"], 0.5)
            axes.fill_between(x, low, high, facecolor=colour, edgecolor=edge, linewidth=0.6)
            (lines[label],) = axes.plot(x, mean, marker="o" if len(x) <= FEW else "", markersize=3, **style)
        if from_zero:
            axes.axhline(0, color=light_colours()["--ink-soft"], linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        set_vertical(axes, points, floor)
        axes.set_xlabel(along)
        if tried:
            axes.set_xscale("log")
            axes.set_xticks(list(tried), [f"{value:.4g}" for value in tried], rotation=30 * (len(tried) > 4))
            axes.minorticks_off()
        else:
            axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        figure.name_lines(lines if len(lines) > 1 else {})
        return figure

    last = "; ".join(f"{label} {of[-1].mean:.4g}" for label, of in by_series.items())
    title = measure if along == "update" else f"{measure} against {along}"
    against = "the number of updates" if along == "update" else along
    rows = [(it.series, it.step, it.mean, it.low, it.high, it.size) for it in points]
    values = values_table(title, (series, along, *ENDS), rows)
    description = f"Line chart of {measure} against {against}. Last means: {last}."
    reading = "Lines are means, and bands reach from the smallest to the largest value."
    return Chart(name, title, description, draw, values, reading=reading)


def by_layer(
    name: str, title: str, points: Sequence[tuple[str, Point]], styles: Mapping[str, Style], log: bool = False
) -> Chart:
    """A point per layer and arm, with a line from the smallest to the largest value."""
    used = [label for label in styles if any(point.series == label for _, point in points)]
    layers = list(dict.fromkeys(layer for layer, _ in points))

    def draw(width: float) -> Figure:
        figure = Figure(width, HEIGHT)
        axes, lines, floor = panel(figure, title), {}, floor_of([point for _, point in points], log)
        for number, label in enumerate(used):
            of = [(layer, point) for layer, point in points if point.series == label]
            beside = (number - (len(used) - 1) / 2) * 0.7 / len(used)
            x = [layers.index(layer) + beside for layer, _ in of]
            low, mean, high = ends_of([point for _, point in of], floor)
            axes.vlines(x, low, high, color=styles[label]["color"], linewidth=1.5, alpha=0.55)
            (lines[label],) = axes.plot(x, mean, "o", color=styles[label]["color"], markersize=4)
        set_vertical(axes, [point for _, point in points], floor)
        turned: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if len(layers) > 3 else {}
        axes.set_xticks(range(len(layers)), [plain_text(layer) for layer in layers], **turned)
        axes.set_xlim(-0.5, len(layers) - 0.5)
        figure.name_lines(lines if len(lines) > 1 else {})
        return figure

    rows = [(layer, it.series, it.mean, it.low, it.high, it.size) for layer, it in points]
    values = values_table(title, ("layer", "arm", *ENDS), rows)
    description = f"Dot chart of {title} in {len(layers)} layers, for {', '.join(used)}."
    reading = "Dots are means, and lines reach from the smallest to the largest value."
    return Chart(name, title, description, draw, values, reading=reading)


def ends_of(points: Sequence[Point], floor: float) -> np.ndarray:
    """The smallest values, means and largest values of points; those below the floor are drawn there."""
    return np.maximum([(point.low, point.mean, point.high) for point in points], floor).T


def floor_of(points: Sequence[Point], log: bool) -> float:
    """The lower end of a logarithmic axis; any other has none."""
    return log_floor(point.mean for point in points) if log else -inf


def set_vertical(axes: Axes, points: Sequence[Point], floor: float) -> None:
    """The scale and the numbers of the vertical axis: there is some room around a constant."""
    low, high = min(point.low for point in points), max(point.high for point in points)
    if floor > -inf:
        log_axis(axes, floor, (point.mean for point in points))
    else:
        if low == high:
            axes.set_ylim(*((low - abs(low) / 2, low + abs(low) / 2) if low else (0, 1)))
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        if max(abs(low), abs(high)) >= 1000:
            axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        else:
            axes.ticklabel_format(axis="y", useOffset=False, style="plain")
