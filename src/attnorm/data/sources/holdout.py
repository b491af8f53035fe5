"""Holds a validation split out of the rows of train: evenly spaced rows, always the same ones."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from attnorm.errors import DataError, Problem

Row = TypeVar("Row")


def problems(share: float, needed: bool, files: str) -> list[str]:
    """A problem if a validation split is `needed` that has neither `files` of its own nor a share of train."""
    if share or not needed:
        return []
    message = f"the validation split is asked for; name its {files}, or set data.holdout above 0"
    return [Problem("data.validation", message, None)]


def part(rows: Iterable[Row], split: str, share: float, key: str) -> Iterator[Row]:
    """The rows of one split: "validation" has the share `share` of all rows, evenly spaced, and "train" has the others.

    key: the config key of the files, for messages. Raises ValueError if there are rows, but none in this split.
    """
    number = kept = 0
    for number, row in enumerate(rows, start=1):
        # the running sum of the shares passes k + 1/2: with a share of 1/20 these are rows 10, 30, 50, ...
        held_out = int(number * share + 0.5) > int((number - 1) * share + 0.5)
        if held_out == (split == "validation"):
            kept += 1
            yield row
    if number and not kept:
        raise DataError(
            f"data.holdout={share}: no row is left for the {split} split, because {key} has {number}; "
            "change the share or name the file of data.validation"
        )
