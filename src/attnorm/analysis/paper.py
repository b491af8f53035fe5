"""Figures of matplotlib in the style of a paper, as files and in a notebook."""

import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
import matplotlib.figure
from matplotlib.text import Text

from attnorm.analysis.pictures import LEGEND, LETTER, LINE, POINTS, SCREEN, save_pictures


class Figure(matplotlib.figure.Figure):
    """A figure of matplotlib in the style of a paper, which a notebook shows also if neither pyplot nor `%matplotlib
    inline` was used.

    width: COLUMN or PAGE, in inches, and so is the height, to which the legend and the caption are added.
    """

    def __init__(self, width: float, height: float):
        super().__init__(figsize=(width, height), layout="constrained")
        self.caption = ""
        self.letters = 0.0  # inches that the caption takes

    def name_lines(self, lines: Mapping[str, Any]) -> None:
        """A legend above all panels, with the lines by name."""
        if lines:
            width, height = self.get_size_inches()
            columns = max(1, int(width / (LEGEND + LETTER * max(map(len, lines)))))
            self.set_size_inches(width, height + LINE * math.ceil(len(lines) / columns) + 0.1)
            style: dict[str, Any] = {"frameon": False, "fontsize": POINTS, "columnspacing": 1, "handletextpad": 0.5}
            self.legend([*lines.values()], [*lines], loc="outside upper left", ncols=columns, **style)

    def finished(self, *caption: str) -> "Figure":
        """The figure, with a caption of these sentences below it, and with all texts in one size."""
        self.caption = " ".join(filter(None, caption))
        width, height = self.get_size_inches()
        text = fill(self.caption, int((width - 0.2) / LETTER))
        self.letters = LINE * len(text.splitlines()) + 0.1 if text else 0.0
        self.supxlabel(text, x=0.01, ha="left")
        self.set_size_inches(width, height + self.letters)
        for axes in self.axes:
            axes.tick_params(labelsize=POINTS)
        for words in self.findobj(Text):
            words.set_fontsize(POINTS)
        return self

    def drawn_as(self, suffix: str) -> bytes:
        """See `Picture`. Fonts of a PDF are embedded as Type 42. The same figure gives the same bytes."""
        file, (width, height) = BytesIO(), self.get_size_inches()
        below: Any = self._supxlabel  # type: ignore[attr-defined]
        options: dict[str, Any] = {"format": suffix, "dpi": SCREEN}
        try:
            if suffix != "png":
                options["metadata"] = {"CreationDate" if suffix == "pdf" else "Date": None}
                below.set(visible=False, in_layout=False)
                self.set_size_inches(width, height - self.letters)
            with matplotlib.rc_context({"pdf.fonttype": 42, "svg.hashsalt": "attnorm"}):
                self.savefig(file, **options)
        finally:
            below.set(visible=True, in_layout=True)
            self.set_size_inches(width, height)
        return file.getvalue()

    def _repr_png_(self) -> bytes:
        return self.drawn_as("png")


class FigureSet(dict[str, Figure]):
    """Figures by name, which a notebook shows one below the other."""

    def _repr_html_(self) -> str:
        pictures = ((escape(name), b64encode(figure._repr_png_()).decode()) for name, figure in self.items())
        return "".join(
            f'<p>{name}<br><img alt="{name}" src="data:image/png;base64,{png}"></p>' for name, png in pictures
        )

    def save(self, folder: str | Path, formats: Sequence[str] = ("png",)) -> list[Path]:
        """Writes each figure in each format into a folder, see `save_pictures`."""
        return save_pictures(self, Path(folder), formats)
