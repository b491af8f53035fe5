"""Rows, lines and records that cannot be used: an error that says where, or left out and counted."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from attnorm.errors import DataError

log = logging.getLogger(__name__)

SHOWN = 10  # bad rows that a message names
Row = TypeVar("Row")
Made = TypeVar("Made")


class BadRow(DataError):
    """One row, line or record that cannot be used, while the rest of its file can. The message says where it is.

    Readers yield it in the place of the row, so that whoever reads can go on behind it.
    """


def usable(rows: Iterable[Row | BadRow], make: Callable[[Row], Made], skip_bad: bool) -> Iterator[Made]:
    """`make(row)` of each row; `make` may raise BadRow, too.

    skip_bad: leave bad rows out and log how many there were. Otherwise the first one is raised, and so it is if no row
    is good: then it is the settings that are wrong, such as the name of a column.
    """
    good, bad, first = 0, 0, []
    try:
        for row in rows:
            try:
                if isinstance(row, BadRow):
                    raise row
                made = make(row)
            except BadRow as error:
                if not skip_bad:
                    raise BadRow(f"{error} (data.skip_bad=true leaves bad rows out)") from error
                bad += 1
                first += [str(error)] * (bad <= SHOWN)
            else:
                good += 1
                yield made
        if bad and not good:
            raise DataError(f"{first[0]} (data.skip_bad=true would leave out all {bad:,} rows)")
    finally:
        if bad and good:
            log.warning("%s", summary("row", bad, good, "left out", first))


def summary(what: str, bad: int, good: int, remark: str, first: Sequence[str]) -> str:
    """How many are bad, and the first of them: "2 bad rows beside 7 good ones (left out): ..."."""
    more = [f"and {bad - SHOWN:,} more"] if bad > SHOWN else []
    head = f"{bad:,} bad {what}{'s' * (bad != 1)} beside {good:,} good {'one' if good == 1 else 'ones'} ({remark}):"
    return "\n  ".join([head, *first[:SHOWN], *more])
