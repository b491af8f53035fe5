"""A validation split held out of the rows of train: every so many rows, always the same ones."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from attnorm.errors import DataError

Row = TypeVar("Row")


def problems(share: object, needed: bool, files: str) -> list[str]:
    """What is wrong with `data.holdout`. needed: whether the validation split is asked for and has no file of its own;
    files: what to name instead, for the message."""
    if not isinstance(share, (int, float)) or isinstance(share, bool) or not 0 <= share < 1:
        return [f"data.holdout={share}: must be a share, at least 0 and below 1"]
    if needed and not share:
        return [
            f"data.validation=null: the validation split is asked for; name its {files}, or set data.holdout above 0"
        ]
    return []


def part(rows: Iterable[Row], split: str, share: float, key: str) -> Iterator[Row]:
    """The rows of "validation", the share `share` of all, evenly spread; or those of "train", the others.

    key: of the files that hold both, for messages. Raises ValueError if there are rows, but none of this split.
    """
    number = found = 0
    for number, row in enumerate(rows, start=1):
        # the running sum of the shares passes a half: 1 of 20 rows is number 10, 30, 50, ...
        held_out = int(number * share + 0.5) > int((number - 1) * share + 0.5)
        if held_out == (split == "validation"):
            found += 1
            yield row
    if number and not found:
        raise DataError(
            f"data.holdout={share}: no row is left for the {split} split, {key} has {number}; "
            "change the share or name the file of data.validation"
        )
