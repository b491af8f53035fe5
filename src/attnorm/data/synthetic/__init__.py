"""The generated corpora, so that everything runs without other data, and what they have in common.

Each of them is a pure function of (split, index, seed). Its texts are files in the folder `text` next to the generator:

// a comment, in a line of its own
[name of a section]
a line of the section
"""

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

# Of 100 checksum classes of texts, those below the bound belong to the split.
_BOUNDS = {"train": 92, "validation": 96, "test": 100}
SPLITS = tuple(_BOUNDS)

Entry = TypeVar("Entry")
Draw = Callable[[], float]  # gives random numbers in [0, 1); Python documents the stream of `Random.random` as stable


def pick(random: Draw, entries: Sequence[Entry]) -> Entry:
    """One entry, uniformly."""
    return entries[int(random() * len(entries))]


def split_of(text: str) -> str:
    """The split that a text belongs to: a checksum decides, so that no text can be in two splits."""
    bucket = zlib.crc32(text.encode()) % 100
    return next(name for name, bound in _BOUNDS.items() if bucket < bound)


def content_lines(path: Path) -> list[str]:
    """The lines of a file, except blank ones and comments."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("//")]


def sections(path: Path) -> dict[str, list[str]]:
    """The lines of each section of a file, by its name. Raises ValueError for a name that is used twice."""
    lines_of: dict[str, list[str]] = {}
    for line in content_lines(path):
        if line.startswith("["):
            name = line.strip("[]")
            if name in lines_of:
                raise ValueError(f"{path}: two sections are called [{name}]")
            lines_of[name] = []
        else:
            lines_of[name].append(line)
    return lines_of


def words(lines: list[str]) -> list[str]:
    """The words of a section."""
    return " ".join(lines).split()
