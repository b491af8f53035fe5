"""The sizes of pictures for a paper, and how they are written. Nothing here loads matplotlib."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from attnorm.files import write_bytes, write_text

COLUMN, PAGE = 3.3, 6.8  # inches: the width of a figure in one column of a paper, and in two
POINTS = 8  # of all texts
LINE, LETTER = 0.14, 0.064  # inches of a line, and on average of a letter
LEGEND = 0.5  # inches of a line in a legend and of the space after its name
SCREEN = 200  # pixels per inch of a PNG


class Picture(Protocol):
    """A picture with its caption, which can be written in any of the formats of `attnorm.schema.PictureFormats`."""

    @property
    def caption(self) -> str:
        """The caption as one line."""

    def drawn_as(self, suffix: str) -> bytes:
        """The content of a file of a format. Only a PNG, which stands alone on a screen, has its caption in it."""


def save_pictures(pictures: Mapping[str, Picture], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Writes each picture in each format into a folder, as <name>.<format>, and returns these files. The caption of a
    PDF or an SVG is written beside it, into <name>.txt."""
    files = []
    for name, picture in pictures.items():
        for suffix in formats:
            files.append(folder / f"{name}.{suffix}")
            write_bytes(files[-1], picture.drawn_as(suffix))
        if {*formats} - {"png"}:
            write_text(folder / f"{name}.txt", f"{picture.caption}\n")
    return files
