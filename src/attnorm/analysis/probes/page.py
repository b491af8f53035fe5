"""The page of a comparison on probes: one HTML file, which opens from disk and loads nothing from anywhere."""

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnorm.analysis.probes.verdicts import LEVEL, CellResults, Row
from attnorm.probes.arm import NULLS, Arm
from attnorm.probes.base import Probe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOSED = ("demand", "share", "hub")  # probes whose doses are numbers
AXES = {"demand": "queries for 16 keys", "share": "wanted keys of 16", "hub": "common shift of the queries"}
COLOURS = ("#333333", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#a6761d")  # Okabe and Ito
LINES = ("solid", "dashed", "dotted", "dashdot")


@dataclass(frozen=True)
class Entry:
    """A field of the heat map. colour: of the background; words: for people who do not see it."""

    text: str
    detail: str
    colour: str
    words: str


def write_page(cells: Sequence[CellResults], arms: Sequence[Arm], path: Path, note: str = "") -> Path:
    """Writes the page, atomically, and returns its path. note: stands above the results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(html_of(cells, arms, note))
    os.replace(unfinished, path)
    return path


def html_of(cells: Sequence[CellResults], arms: Sequence[Arm], note: str) -> str:
    """The page as a text."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("attnorm.analysis.probes"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = lambda value, form: "" if isnan(value) else format(value, form)
    compared = [arm for arm in arms if arm.label not in NULLS]
    drawn = {"dose": draw_doses, "rates": draw_rates, "training": draw_training}
    figures = {name: svg_of(draw(cells, compared)) for name, draw in drawn.items()}
    return environment.get_template("page.html").render(
        note=note,
        baseline=compared[0].short,
        arms=[arm.short for arm in compared],
        columns=columns_of(cells),
        was_trained=was_trained,
        heat=heat_map(cells, compared),
        figures={name: svg for name, svg in figures.items() if svg},
        sentences=sentences(cells, compared),
        cells=[about(cell) for cell in cells],
        measures=measures_of(cells, compared),
        left_out=grouped({cell.found.cell.title: cell.left_out for cell in cells}),
        seconds=sum(cell.found.seconds for cell in cells),
    )


def columns_of(cells: Sequence[CellResults]) -> list[tuple[CellResults, int]]:
    """The columns of the heat map: cells and sizes."""
    return [(cell, size) for cell in cells for size in dict.fromkeys(row.size for row in cell.rows)]


def was_trained(probe: Probe, size: int) -> bool:
    """Whether training draws examples of a size."""
    return size in (probe.train_sizes or (probe.size,))


def heat_map(cells: Sequence[CellResults], arms: Sequence[Arm]) -> list[tuple[str, list[Entry]]]:
    """For each arm, its entry in every column."""
    rows = []
    for arm in arms:
        entries = []
        for cell, size in columns_of(cells):
            row = next((row for row in cell.rows if row.arm == arm.short and row.size == size), None)
            entries.append(entry_of(row, cell.left_out.get(arm.label, "")))
        rows.append((arm.short, entries))
    return rows


def entry_of(row: Row | None, reason: str) -> Entry:
    """The score of an arm, coloured by its place between the null arms and the ceiling, and the difference."""
    if row is None:
        return Entry("", "", "#eeeeee", reason or "not run")
    words = f"score {row.score:.3f}" + ("" if isnan(row.rate) else f" with the learning rate {row.rate:g}")
    if isnan(row.difference):
        reason = f"; no difference: {row.verdict}" if row.verdict else ""
        return Entry(f"{row.score:.3f}", "", colour_of(row.normalized), words + reason)
    half = (row.high - row.low) / 2
    mark = {"shown": "*", "depends on the rate": "†"}.get(row.verdict, "")
    detail = f"{row.difference:+.3f}" + ("" if isnan(half) else f" ± {half:.3f}") + mark
    verdict = row.verdict or "no verdict"
    return Entry(f"{row.score:.3f}", detail, colour_of(row.normalized), f"{words}; difference {verdict}")


def colour_of(share: float) -> str:
    """From light (the null arms) to blue (the ceiling), on which dark text can be read. Gray if it is not known."""
    if isnan(share):
        return "#f4f4f4"
    share = min(max(share, 0.0), 1.0)
    light, dark = (255, 250, 235), (120, 175, 225)
    return "#{:02x}{:02x}{:02x}".format(*(round(a + (b - a) * share) for a, b in zip(light, dark, strict=True)))


def sentences(cells: Sequence[CellResults], arms: Sequence[Arm]) -> list[str]:
    """For each arm, where it is shown to win and to lose."""
    texts = []
    for arm in arms[1:]:
        rows = [(cell, row) for cell in cells for row in cell.rows if row.arm == arm.short and row.trained]
        rows = [(cell, row) for cell, row in rows if not isnan(row.difference)]
        if not rows:
            texts.append(f"{arm.short}: not compared.")
            continue
        shown = [(cell, row) for cell, row in rows if row.verdict == "shown"]
        wins = [f"{cell.found.cell.title} ({row.difference:+.3f})" for cell, row in shown if row.difference > 0]
        losses = [f"{cell.found.cell.title} ({row.difference:+.3f})" for cell, row in shown if row.difference < 0]
        others = len(rows) - len(wins) - len(losses)
        parts = [f"above {arms[0].short} at {', '.join(wins)}"] if wins else []
        parts += [f"below {'it' if wins else arms[0].short} at {', '.join(losses)}"] if losses else []
        rest = f"no difference is shown in {others} of {len(rows)} cells"
        texts.append(f"{arm.short}: {'; '.join([*parts, rest] if others else parts)}.")
    return texts


def about(cell: CellResults) -> dict[str, Any]:
    """What the page says about a cell."""
    probe = cell.found.cell.probe()
    base = next((row for row in cell.rows if row.trained), None)
    text = " ".join((type(probe).__doc__ or "").replace("`", "").split())
    return {
        "title": cell.found.cell.title,
        "site": probe.site,
        "metric": probe.metric,
        "text": text,
        "prediction": probe.prediction,
        "source": probe.source,
        "null": base.null if base else float("nan"),
        "ceiling": base.ceiling if base else float("nan"),
    }


def measures_of(cells: Sequence[CellResults], arms: Sequence[Arm]) -> list[tuple[str, Row]]:
    """The rows with measures of the attention weights, at the size of the comparison."""
    names = {arm.short for arm in arms}
    return [(cell.found.cell.title, row) for cell in cells for row in cell.rows if row.trained and row.arm in names]


def grouped(left_out: Mapping[str, Mapping[str, str]]) -> list[str]:
    """One text per arm and reason, "arm at cell, cell: reason", from the reasons of the arms of each cell."""
    titles: dict[tuple[str, str], list[str]] = {}
    for title, reasons in left_out.items():
        for arm, reason in reasons.items():
            titles.setdefault((arm, reason), []).append(title)
    return [f"{arm} at {', '.join(of)}: {reason}" for (arm, reason), of in titles.items()]


# ------------------------------------------------------------------------------------------------------------- figures


def draw_doses(cells: Sequence[CellResults], arms: Sequence[Arm]) -> "Figure | None":
    """The difference to the baseline against the dose, with bands of the intervals, one panel per probe with doses."""
    dosed = {name: [cell for cell in cells if cell.found.cell.name == name and cell.rows] for name in DOSED}
    dosed = {name: of for name, of in dosed.items() if len(of) > 1}
    if not dosed or len(arms) < 2:
        return None
    figure, panels = figure_of(len(dosed))
    for axes, (name, of) in zip(panels, dosed.items(), strict=True):
        axes.axhline(0, color=COLOURS[0], linewidth=1, label=arms[0].short)
        for style, arm in zip(styles(len(arms))[1:], arms[1:], strict=True):
            rows = [row for cell in of for row in cell.rows if row.arm == arm.short and row.trained]
            rows = sorted((row for row in rows if not isnan(row.difference)), key=lambda row: float(row.dose))
            x = [float(row.dose) for row in rows]
            axes.plot(x, [row.difference for row in rows], **style, marker="o", markersize=4, label=arm.short)
            low, high = [row.low for row in rows], [row.high for row in rows]
            axes.fill_between(x, low, high, color=style["color"], alpha=0.2)
        axes.set(xlabel=AXES[name], ylabel=f"{of[0].rows[0].metric}, difference to {arms[0].short}", title=name)
        axes.set_xticks([float(cell.found.cell.dose) for cell in of])
    panels[0].legend(frameon=False, fontsize=9)
    return figure


def draw_rates(cells: Sequence[CellResults], arms: Sequence[Arm]) -> "Figure | None":
    """The mean score of the tuning seeds on the selection data against the learning rate, one panel per cell."""
    tuned = [cell for cell in cells if any(cell.curves.values())]
    if not tuned:
        return None
    figure, panels = figure_of(len(tuned))
    for axes, cell in zip(panels, tuned, strict=True):
        for style, arm in zip(styles(len(arms)), arms, strict=True):
            curve: Mapping[float, float] = cell.curves.get(arm.label, {})
            axes.plot([*curve], [*curve.values()], **style, marker="o", markersize=4, label=arm.short)
        rates = sorted({rate for curve in cell.curves.values() for rate in curve})
        axes.set(xscale="log", xlabel="learning rate", title=cell.found.cell.title)
        axes.set_xticks(rates, [f"{rate:g}" for rate in rates], minor=False)
        axes.minorticks_off()
    panels[0].legend(frameon=False, fontsize=9)
    return figure


def draw_training(cells: Sequence[CellResults], arms: Sequence[Arm]) -> "Figure | None":
    """The mean score on the selection data in the course of training at the chosen rate, one panel per cell."""
    trained = [cell for cell in cells if cell.found.cell.probe().updates and cell.found.tests]
    if not trained:
        return None
    figure, panels = figure_of(len(trained))
    for axes, cell in zip(panels, trained, strict=True):
        for style, arm in zip(styles(len(arms)), arms, strict=True):
            if (result := cell.found.tests.get(arm.label)) is not None:
                points = result.curve.shape[1]
                shares = [100 * (point + 1) / points for point in range(points)]
                axes.plot(shares, result.curve.mean(0), **style, label=arm.short)
        axes.set(xlabel="% of the training", title=cell.found.cell.title)
    panels[0].legend(frameon=False, fontsize=9)
    return figure


def draw_map(cells: Sequence[CellResults], arms: Sequence[Arm]) -> "Figure":
    """The differences to the baseline in points at the size of training, one row per cell and one column per arm.

    The number in a field is gray unless it is a discovery (`Row.discovery`) that does not flip. A field without a
    difference is empty.
    """
    from matplotlib.figure import Figure

    compared, titles = arms[1:], [cell.found.cell.title for cell in cells]
    rows = [
        [next((row for row in cell.rows if row.arm == arm.short and row.trained), None) for arm in compared]
        for cell in cells
    ]
    values = [[nan if row is None else 100 * row.difference for row in line] for line in rows]
    figure = Figure(figsize=(2.6 + 0.55 * len(compared), 1.4 + 0.28 * len(cells)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(values, cmap="PuOr", vmin=-40, vmax=40, aspect="auto")
    for y, line in enumerate(rows):
        for x, row in enumerate(line):
            if row is not None and not isnan(row.difference):
                points = round(100 * row.difference)
                on_field = "white" if abs(points) > 25 else "black"
                colour = on_field if row.discovery < 1 - LEVEL and not row.flips else "#888888"
                text = f"{points:+}" if points else "0"
                axes.text(x, y, text, ha="center", va="center", fontsize=8, color=colour)
    axes.set_xticks(range(len(compared)), [arm.short for arm in compared], rotation=60, ha="left", fontsize=9)
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(titles)), titles, fontsize=9)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.colorbar(image, label=f"difference to {arms[0].short} in points", shrink=0.5)
    return figure


def figure_of(panels: int) -> tuple["Figure", list[Any]]:
    """A figure with panels in rows of at most three."""
    from matplotlib.figure import Figure

    columns = min(panels, 3)
    rows = -(-panels // columns)
    figure = Figure(figsize=(4 * columns, 3.2 * rows), layout="constrained")
    grid = [*figure.subplots(rows, columns, squeeze=False).flat]
    for axes in grid:
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid[panels:]:
        axes.set_visible(False)
    return figure, grid[:panels]


def styles(count: int) -> list[dict[str, str]]:
    """The colour and the line of each arm, the baseline first. After all colours, the next kind of line begins."""
    every = [{"color": colour, "linestyle": line} for line in LINES for colour in COLOURS]
    return [every[number % len(every)] for number in range(count)]


def svg_of(figure: "Figure | None") -> str:
    """The figure as an element of a page."""
    if figure is None:
        return ""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue().partition("<svg")[1] + text.getvalue().partition("<svg")[2]
