"""Figures of matplotlib in the style of a paper: as files, in a notebook, and inside a page."""

import math
import re
import warnings
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
import matplotlib.figure
from matplotlib.axes import Axes
from matplotlib.font_manager import findfont, fontManager
from matplotlib.ft2font import FT2Font
from matplotlib.text import Text

from attnorm import progress
from attnorm.analysis.colours import light_colours
from attnorm.analysis.table import in_latex
from attnorm.files import write_bytes, write_text

COLUMN, PAGE = 3.3, 6.8  # inches: the width of a figure in one column of a paper, and in two
POINTS = 8  # of all texts
LINE, LETTER = 0.14, 0.064  # inches of a line, and on average of a letter
LEGEND = 0.5  # inches of a line in a legend and of the space after its name
SCREEN = 200  # pixels per inch of a PNG
FONT = "DejaVu Sans"  # which matplotlib brings along
IN_FILES = {"pdf.fonttype": 42, "svg.hashsalt": "attnorm"}  # fonts are embedded; the same figure has the same bytes
IN_PAGE = {"svg.fonttype": "none", "svg.hashsalt": "attnorm", "savefig.transparent": True}


class Figure(matplotlib.figure.Figure):
    """A figure of matplotlib in the style of a paper, which a notebook shows also if neither pyplot nor `%matplotlib
    inline` was used.

    width: COLUMN or PAGE, in inches, and so is the height, to which the legend and the caption are added.
    """

    def __init__(self, width: float, height: float):
        super().__init__(figsize=(width, height), layout="constrained")
        self.caption, self.columns = "", 1 if width == COLUMN else 2
        self.panels = height  # inches
        self.named: dict[str, Any] = {}

    def name_lines(self, lines: Mapping[str, Any]) -> None:
        """A legend above all panels, with the lines by name."""
        self.named = dict(lines)

    def finished(self, *caption: str) -> "Figure":
        """The figure, with a caption of these sentences below it, and with all texts in one size."""
        self.caption = " ".join(filter(None, caption))
        width, self.panels = self.get_size_inches()
        for axes in self.axes:
            axes.tick_params(labelsize=POINTS)
        self.fit(width)
        return self

    def fit(self, width: float, has_caption: bool = True) -> None:
        """Lays the figure out in a width, with the legend above the panels and the caption below them."""
        height = self.panels
        for old in self.legends:
            old.remove()
        if self.named:
            columns = max(1, int(width / (LEGEND + LETTER * max(map(len, self.named)))))
            height += LINE * math.ceil(len(self.named) / columns) + 0.1
            style: dict[str, Any] = {"frameon": False, "columnspacing": 1, "handletextpad": 0.5}
            self.legend([*self.named.values()], [*self.named], loc="outside upper left", ncols=columns, **style)
        text = fill(self.caption, int((width - 0.2) / LETTER)) if has_caption else ""
        height += LINE * len(text.splitlines()) + 0.1 if text else 0.0
        self.supxlabel(text, x=0.01, ha="left").set_in_layout(bool(text))
        self.set_size_inches(width, height)
        ticks = {label for axes in self.axes for axis in (axes.xaxis, axes.yaxis) for label in axis.get_ticklabels()}
        for words in self.findobj(Text):
            words.set_fontsize(POINTS)
            words.set_parse_math(words in ticks)  # a name with two dollars is no formula
            if not words.get_text().isascii():
                words.set_fontfamily([FONT, *fonts_of(words.get_text())[0]])

    def drawn_as(self, suffix: str, width: float | None = None, style: Any = IN_FILES) -> bytes:
        """The content of a file of a format. Only a PNG, which stands alone on a screen, has its caption in it."""
        file, options, usual = BytesIO(), dict[str, Any](format=suffix, dpi=SCREEN), self.get_figwidth()
        if suffix != "png":
            options["metadata"] = {"CreationDate" if suffix == "pdf" else "Date": None}
        if style is IN_FILES:  # in a page, the browser has fonts
            for words in self.findobj(Text):
                say_missing(fonts_of(words.get_text())[1])
        try:
            self.fit(width or usual, has_caption=suffix == "png")
            with matplotlib.rc_context(style), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Glyph", UserWarning)  # `say_missing` has named them
                self.savefig(file, **options)
        finally:
            self.fit(usual)
        return file.getvalue()

    def in_page(self, name: str) -> str:
        """The figure as SVG inside a page, without its caption, in the colours of the page, which follow the mode of
        the reader. name: unique on the page."""
        svg = self.drawn_as("svg", style=IN_PAGE).decode()
        svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg[svg.index("<svg") :], flags=re.S)
        svg = re.sub(r' (width|height)="[^"]*pt"', "", svg, count=2)
        svg = re.sub(r'\bd="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)
        svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
        variables = {colour: variable for variable, colour in reversed(light_colours().items())}
        return re.sub(
            r"(fill|stroke): (#\w{6})\b",
            lambda found: f"{found[1]}: var({variables[found[2]]})" if found[2] in variables else found[0],
            svg,
        )

    def _repr_png_(self) -> bytes:
        return self.drawn_as("png")


class FigureSet(dict[str, Figure]):
    """Figures by name, which a notebook shows one below the other."""

    def _repr_html_(self) -> str:
        images = ((escape(name), b64encode(figure._repr_png_()).decode()) for name, figure in self.items())
        return "".join(f'<p>{name}<br><img alt="{name}" src="data:image/png;base64,{png}"></p>' for name, png in images)

    def save(self, folder: str | Path, formats: Sequence[str] = ("png",), column: float = COLUMN) -> list[Path]:
        """Writes each figure in each format into a folder, as <name>.<format>, and returns these files.

        The caption of a PDF or an SVG is written beside it, into <name>.txt, and with a label into <name>.tex. column:
        inches of a column of the paper; a figure of two columns is as wide as both with the space between them.
        """
        files = []
        for name, figure in self.items():
            width = figure.columns * column + (figure.columns - 1) * (PAGE - 2 * COLUMN)
            for suffix in formats:
                files.append(Path(folder) / f"{name}.{suffix}")
                write_bytes(files[-1], figure.drawn_as(suffix, width))
            if {*formats} - {"png"}:
                label = re.sub(r"[^\w.-]+", "-", name)
                write_text(Path(folder) / f"{name}.txt", f"{figure.caption}\n")
                tex = f"\\caption{{{in_latex(figure.caption)}}}\n\\label{{fig:{label}}}\n"
                write_text(Path(folder) / f"{name}.tex", tex)
        return files


def panel(figure: Figure, ylabel: str = "") -> Axes:
    """The only panel of a figure."""
    axes = figure.subplots()
    axes.set_ylabel(fill(ylabel, 22))
    bare(axes)
    return axes


def bare(axes: Axes) -> None:
    """Takes the box of a panel away, and gives it a grid and the colours of a page."""
    colours = light_colours()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(colours["--line"])
    axes.tick_params(which="both", color=colours["--line"])
    axes.grid(axis="y", color=colours["--grid"], linewidth=0.7)
    axes.set_axisbelow(True)


def plain_text(text: str) -> str:
    """A text as a label of an axis, where two dollars would be a formula."""
    return text.replace("$", r"\$")


@cache
def fonts_of(text: str) -> tuple[list[str], str]:
    """Installed fonts for the characters of a text that FONT does not have, and the characters that no font has."""
    missing, families = {*text} - {"\n"} - characters_of(findfont(FONT)), list[str]()
    fonts = [font for font in fontManager.ttflist if "Last Resort" not in font.name]  # which has boxes for all
    while missing:
        found = max(fonts, key=lambda font: len(missing & characters_of(font.fname)))
        if not missing & characters_of(found.fname):
            break
        families.append(found.name)
        missing -= characters_of(found.fname)
    return families, "".join(sorted(missing))


@cache
def say_missing(characters: str) -> None:
    """Prints a line, once, if there are characters that no font has."""
    if characters:
        said = f"no installed font has {' '.join(characters)}, which figures show as boxes"
        progress.console.print(said, markup=False)


@cache
def characters_of(path: str) -> frozenset[str]:
    """The characters of a file of a font."""
    return frozenset(map(chr, FT2Font(path).get_charmap()))
