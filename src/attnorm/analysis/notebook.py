"""Figures that a notebook shows."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import matplotlib.figure


class Figure(matplotlib.figure.Figure):
    """A figure of matplotlib that a notebook shows also if neither pyplot nor `%matplotlib inline` was used."""

    def _repr_png_(self) -> bytes:
        picture = BytesIO()
        self.savefig(picture, format="png", dpi=100)
        return picture.getvalue()


class FigureSet(dict[str, Figure]):
    """Figures by name, which a notebook shows one below the other."""

    def _repr_html_(self) -> str:
        from base64 import b64encode
        from html import escape

        pictures = ((escape(name), b64encode(figure._repr_png_()).decode()) for name, figure in self.items())
        return "".join(
            f'<p>{name}<br><img alt="{name}" src="data:image/png;base64,{png}"></p>' for name, png in pictures
        )

    def save(self, folder: str | Path, formats: Sequence[str] = ("png",), *, dpi: float = 130) -> list[Path]:
        """Writes each figure in each format into a folder, as <name>.<format>, and returns the files."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        files = [(figure, Path(folder) / f"{name}.{suffix}") for name, figure in self.items() for suffix in formats]
        for figure, file in files:
            figure.savefig(file, dpi=dpi)
        return [file for _, file in files]
