"""Reads the texts of the generated corpora, which are files in the folders `text` next to the generators.

// a comment, in a line of its own
[name of a section]
a line of the section
"""

from pathlib import Path


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
