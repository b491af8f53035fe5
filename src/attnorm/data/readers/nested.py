"""Columns inside columns: `messages[0].content` is the entry "content" of the first item of the column "messages"."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from attnorm.data.readers.bad_rows import BadRow

NESTED = re.compile(r"([^.\[\]]+)((?:\.[^.\[\]]+|\[\d+\])+)")
STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
Steps = tuple[str | int, ...]


@cache
def steps_of(column: str) -> tuple[str, Steps]:
    """The outer column and the way into its cells: ("messages", (0, "content")); (column, ()) if it is not nested."""
    if (match := NESTED.fullmatch(column)) is None:
        return column, ()
    return match[1], tuple(name or int(number) for name, number in STEP.findall(match[2]))


def outer(column: str, existing: Collection[str]) -> str:
    """The column of the file that contains these values. A column may itself have dots and brackets in its name."""
    return column if column in existing else steps_of(column)[0]


def values_at(where: str, columns: Sequence[str], row: Mapping[str, object]) -> tuple[object, ...]:
    """The cells of these columns in a row that has their outer columns; None if there is a null on the way.

    Raises BadRow, starting with `where`, for a cell without such an item or entry, and KeyError for one of `columns`
    whose outer column is not in the row.
    """
    return tuple(row[column] if column in row else _inner(where, column, row) for column in columns)


def _inner(where: str, column: str, row: Mapping[str, object]) -> object:
    name, steps = steps_of(column)
    cell: Any = row[name]
    for step in steps:
        if cell is None:
            return None
        known = range(len(cell)) if isinstance(cell, list) else cell if isinstance(cell, dict) else ()
        if step not in known:
            place = "item" if isinstance(step, int) else "entry"
            raise BadRow(f"{where}: {column}: no {place} {step} in {json.dumps(cell, default=str)[:80]}")
        cell = cell[step]
    return cell
