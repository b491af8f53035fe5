"""A drawn figure with its data and its description, and the style that all figures share."""

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from attnorm.analysis.colours import styles_of_arms

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = list[dict[str, Any]]

# Okabe and Ito's colours, which people with any common colour blindness can tell apart; line styles differ, too.
BLUE, VERMILION, GREEN, ORANGE, GREY = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#7F7F7F"
STYLES: dict[str, dict[str, Any]] = {  # of a normalizer, wherever it is drawn, in the colours of reports and probes
    name: {**style, "linestyle": line}
    for (name, style), line in zip(styles_of_arms(["softmax", "dnas", "hnas"]).items(), ("-", "--", "-."), strict=True)
}
STYLE: Any = {  # of matplotlib
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "legend.fontsize": 8.5,
    "legend.title_fontsize": 8.5,
    "figure.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Drawing:
    """A figure, the rows of its CSV file, and two sentences on what to see in it."""

    figure: "Figure"
    rows: Rows
    sentences: tuple[str, str]


def panels(
    rows: int, columns: int, size: tuple[float, float], title: str, **options: Any
) -> tuple["Figure", list[list["Axes"]]]:
    """A figure with a grid of panels. size: width and height in inches. options: of `Figure.subplots`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    figure.suptitle(title)
    return figure, axes.tolist()


def shades(count: int, colormap: str = "viridis") -> list[Any]:
    """Colours for an ordered quantity, dark to light, from a colormap without its lightest end."""
    from matplotlib import colormaps

    return [colormaps[colormap](0.05 + 0.8 * index / max(1, count - 1)) for index in range(count)]


def write(name: str, drawing: Drawing, folder: Path) -> list[Path]:
    """Writes <name>.png, <name>.svg and <name>.csv into a folder and returns the paths.

    The same drawing gives the same files. The SVG file contains the sentences as its description, which screen readers
    read out.
    """
    from matplotlib import rc_context

    folder.mkdir(parents=True, exist_ok=True)
    png, svg, table = (folder / f"{name}.{ending}" for ending in ("png", "svg", "csv"))
    with rc_context({**STYLE, "svg.hashsalt": name}):
        drawing.figure.savefig(png, dpi=150, metadata={"Description": " ".join(drawing.sentences)})
        drawing.figure.savefig(svg, metadata={"Date": None})
    svg.write_text(described(svg.read_text(encoding="utf-8"), name, drawing.sentences), encoding="utf-8")
    with open(table, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(drawing.rows[0]))
        writer.writeheader()
        writer.writerows(rounded(drawing.rows))
    return [png, svg, table]


def described(svg: str, title: str, sentences: Sequence[str]) -> str:
    """An SVG document with a title and a description."""
    words = f"<title>{escape(title)}</title>\n <desc>{escape(' '.join(sentences))}</desc>"
    return re.sub(r"(<svg\b[^>]*>)", lambda opening: f"{opening[1]}\n {words}", svg, count=1)


def rounded(rows: Rows) -> Iterable[dict[str, Any]]:
    """The rows with eight significant digits."""
    for row in rows:
        yield {key: f"{value:.8g}" if isinstance(value, float) else value for key, value in row.items()}


def listed(values: Iterable[float], form: str = ".2f") -> str:
    """Numbers in a sentence: '0.10, 0.20 and 0.30'."""
    *first, last = (format(value, form) for value in values)
    return f"{', '.join(first)} and {last}" if first else last
