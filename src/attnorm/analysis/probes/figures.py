"""The figures of a comparison on probes."""

import re
from collections.abc import Mapping, Sequence
from itertools import cycle
from math import isnan, nan
from typing import TYPE_CHECKING, Any

from attnorm.analysis.pictures import COLUMN, LETTER, LINE, PAGE
from attnorm.analysis.probes.verdicts import LEVEL, CellResults
from attnorm.probes.arm import Arm

if TYPE_CHECKING:
    from attnorm.analysis.paper import Figure, FigureSet

NUMBER = re.compile(r"-?\d+(\.\d+)?")
COLOURS = ("#333333", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#a6761d")  # Okabe and Ito
LINES = ("solid", "dashed", "dotted", "dashdot")
STYLES = [{"color": colour, "linestyle": line} for line in LINES for colour in COLOURS]  # the first is of the baseline


def draw_cells(cells: Sequence[CellResults], arms: Sequence[Arm]) -> "FigureSet":
    """All figures for which there are results: "map", "doses", "rates" and "training"."""
    from attnorm.analysis.paper import FigureSet

    drawn = {
        "map": draw_map(cells, arms) if len(arms) > 1 else None,
        "doses": draw_doses(cells, arms),
        "rates": draw_rates(cells, arms),
        "training": draw_training(cells, arms),
    }
    return FigureSet({name: figure for name, figure in drawn.items() if figure is not None})


def draw_doses(cells: Sequence[CellResults], arms: Sequence[Arm]) -> "Figure | None":
    """The difference to the baseline against the dose, with bands of the intervals, one panel per probe whose doses are
    numbers."""
    dosed: dict[str, list[CellResults]] = {}
    for cell in cells:
        if cell.rows and NUMBER.fullmatch(cell.outcome.cell.dose):
            dosed.setdefault(cell.outcome.cell.short, []).append(cell)
    dosed = {name: of for name, of in dosed.items() if len(of) > 1}
    if not dosed or len(arms) < 2:
        return None
    figure, panels = figure_of(len(dosed))
    for axes, (name, of) in zip(panels, dosed.items(), strict=True):
        axes.axhline(0, color=COLOURS[0], linewidth=1, label=arms[0].short)
        for style, arm in [*zip(cycle(STYLES), arms, strict=False)][1:]:
            rows = [row for cell in of for row in cell.rows if row.arm == arm.short and row.trained]
            rows = sorted((row for row in rows if not isnan(row.difference)), key=lambda row: float(row.dose))
            x = [float(row.dose) for row in rows]
            axes.plot(x, [row.difference for row in rows], **style, marker="o", markersize=4, label=arm.short)
            low, high = [row.low for row in rows], [row.high for row in rows]
            axes.fill_between(x, low, high, color=style["color"], alpha=0.2)
        axes.set(
            xlabel=of[0].outcome.cell.probe().axis,
            ylabel=f"{of[0].rows[0].metric},\ndifference to {arms[0].short}",
            title=name,
        )
        axes.set_xticks([float(cell.outcome.cell.dose) for cell in of])
    name_lines(figure, panels)
    return figure.finished(
        f"Difference to {arms[0].short} at the size of training. Bands are 95 % intervals for new seeds and "
        "new examples."
    )


def draw_rates(cells: Sequence[CellResults], arms: Sequence[Arm]) -> "Figure | None":
    """The mean score of the tuning seeds on the selection data against the learning rate, one panel per cell."""
    tuned = [cell for cell in cells if any(cell.curves.values())]
    if not tuned:
        return None
    figure, panels = figure_of(len(tuned))
    for axes, cell in zip(panels, tuned, strict=True):
        for style, arm in zip(cycle(STYLES), arms, strict=False):
            curve: Mapping[float, float] = cell.curves.get(arm.label, {})
            axes.plot([*curve], [*curve.values()], **style, marker="o", markersize=4, label=arm.short)
        rates = sorted({rate for curve in cell.curves.values() for rate in curve})
        axes.set(
            xscale="log", xlabel="learning rate", ylabel=cell.outcome.cell.probe().metric, title=cell.outcome.cell.title
        )
        axes.set_xticks(rates, [f"{rate:g}" for rate in rates], rotation=45, ha="right", rotation_mode="anchor")
        axes.minorticks_off()
    name_lines(figure, panels)
    return figure.finished(
        "Mean score of the tuning seeds on the selection data, by learning rate. Every normalizer has the same grid, "
        "and is compared at its best rate with other seeds."
    )


def draw_training(cells: Sequence[CellResults], arms: Sequence[Arm]) -> "Figure | None":
    """The mean score on the selection data in the course of training at the chosen rate, one panel per cell."""
    trained = [cell for cell in cells if cell.outcome.cell.probe().updates and cell.outcome.tests]
    if not trained:
        return None
    figure, panels = figure_of(len(trained))
    for axes, cell in zip(panels, trained, strict=True):
        for style, arm in zip(cycle(STYLES), arms, strict=False):
            if (result := cell.outcome.tests.get(arm.label)) is not None:
                points = result.curve.shape[1]
                shares = [100 * (point + 1) / points for point in range(points)]
                axes.plot(shares, result.curve.mean(0), **style, label=arm.short)
        axes.set(xlabel="% of the training", ylabel=cell.outcome.cell.probe().metric, title=cell.outcome.cell.title)
    name_lines(figure, panels)
    return figure.finished(
        "Mean score on the selection data in the course of training, at the chosen rate. The rate falls to zero, so a "
        "curve may rise a little until the end, which does not show that longer training would help. A curve that "
        "still rises much faster than the others at the end belongs to a normalizer that learns more slowly."
    )


def draw_map(cells: Sequence[CellResults], arms: Sequence[Arm]) -> "Figure":
    """The differences to the baseline in points at the size of training, one row per cell and one column per arm.

    The number in a field is gray unless it is a discovery (`Row.discovery`) that does not flip. A field without a
    difference is empty.
    """
    from attnorm.analysis.paper import Figure

    compared, titles = arms[1:], [cell.outcome.cell.title for cell in cells]
    rows = [
        [next((row for row in cell.rows if row.arm == arm.short and row.trained), None) for arm in compared]
        for cell in cells
    ]
    values = [[nan if row is None else 100 * row.difference for row in line] for line in rows]
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
                strong, faint = ("white", "#cccccc") if abs(points) > 25 else ("black", "#777777")
                colour = strong if row.discovery < 1 - LEVEL and not row.flips else faint
                text = f"{points:+}" if points else "0"
                axes.text(x, y, text, ha="center", va="center", color=colour)
    axes.xaxis.tick_top()
    axes.set_xticks(
        range(len(compared)), [arm.short for arm in compared], rotation=60, ha="left", rotation_mode="anchor"
    )
    axes.set_yticks(range(len(titles)), titles)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    side, length = ("right", figure.get_figheight()) if width == COLUMN else ("bottom", width)
    bar: Any = figure.colorbar(
        fields, label="points", location=side, shrink=min(1.0, 2.5 / length), aspect=25, extend="both", pad=0.02
    )
    bar.solids.set(rasterized=False, edgecolor="face")  # the page allows no images
    return figure.finished(
        f"Difference to {arms[0].short} in points, for each probe and normalizer at the size of training. Black or "
        "white numbers: discoveries, of which 5 % are expected to be false (Benjamini and Hochberg). Empty: not "
        "defined or not run."
    )


def figure_of(panels: int) -> tuple["Figure", list[Any]]:
    """A figure with panels in rows of at most three."""
    from attnorm.analysis.paper import Figure

    columns = min(panels, 3)
    rows = -(-panels // columns)
    figure = Figure(COLUMN if columns == 1 else PAGE, 1.8 * rows)
    grid = [*figure.subplots(rows, columns, squeeze=False).flat]
    for axes in grid:
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid[panels:]:
        axes.set_visible(False)
    return figure, grid[:panels]


def name_lines(figure: "Figure", panels: Sequence[Any]) -> None:
    """Names the lines of all panels once, above them."""
    lines = (line for axes in panels for line in axes.get_lines() if len(line.get_xdata()))
    figure.name_lines({str(line.get_label()): line for line in lines})
