"""Divides the lines of a text file into documents."""

from collections.abc import Iterable, Iterator
from typing import Literal, TypeVar

from attnorm.data.readers.bad_rows import BadRow

Unit = Literal["line", "paragraph", "file"]  # of a text file, that is a document
Line = TypeVar("Line", str, str | BadRow)


def documents(lines: Iterable[Line], unit: Unit) -> Iterator[Line]:
    """The documents in the lines of a file: those that are not blank, paragraphs between blank lines, or the file.

    Bad lines are yielded separately and are missing from their document.
    """
    document: list[str] = []
    for line in lines:
        if isinstance(line, BadRow):
            yield line
        elif unit == "line":
            yield from [line] * bool(line.strip())
        elif unit == "file" or line.strip():
            document.append(line)
        elif document:
            yield "".join(document)
            document = []
    if document:
        yield "".join(document)
