"""Rows, lines and records that cannot be used: they raise an error that names the place, or are skipped and counted."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import TypeVar

from attnorm.errors import DataError

log = logging.getLogger(__name__)
_skipped: ContextVar[int] = ContextVar("skipped", default=0)  # the rows and records that were skipped so far

SHOWN = 10  # maximum number of bad rows in a message
Row = TypeVar("Row")
Made = TypeVar("Made")


class BadRow(DataError):
    """A row, line or record that cannot be used, although the rest of its file can. The message names its place.

    Readers yield it in place of the row, so that the caller can continue with the next row.
    """


def usable(rows: Iterable[Row | BadRow], make: Callable[[Row], Made], skip_bad: bool) -> Iterator[Made]:
    """Yields `make(row)` for each row. `make` may also raise BadRow.

    skip_bad: skip bad rows and log their number. Otherwise, the first bad row is raised. It is also raised if no row is
    good, because then the settings are probably wrong, for example the name of a column.
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
                    # if not even the first row can be used, the format or a column is probably wrong
                    raise BadRow(f"{error}{' (data.skip_bad=true skips bad rows)' if good else ''}") from error
                bad += 1
                _skipped.set(_skipped.get() + 1)
                first += [str(error)] * (bad <= SHOWN)
            else:
                good += 1
                yield made
        if bad and not good:
            raise DataError(f"{first[0]} (data.skip_bad=true would skip all {bad:,} rows)")
    finally:
        if bad and good:
            log.warning("%s", _summary("row", bad, good, "skipped", first))


def settle(where: str, problems: Sequence[str], good: int, skip_bad: bool | None) -> None:
    """Raises DataError that names the bad records of a file. With skip_bad, logs them instead, if others are good.

    skip_bad: None if the user has no such option.
    """
    if problems and skip_bad and good:
        _skipped.set(_skipped.get() + len(problems))
        log.warning("%s: %s", where, _summary("record", len(problems), good, "skipped", problems))
    elif problems:
        remark = "" if skip_bad is None else f"data.skip_bad=true {'would skip all' if skip_bad else 'skips them'}"
        raise DataError(f"{where}: {_summary('record', len(problems), good, remark, problems)}")


def skipped() -> int:
    """How many bad rows and records have been skipped so far: the difference of two calls is that of the reading in
    between."""
    return _skipped.get()


def _summary(what: str, bad: int, good: int, remark: str, first: Sequence[str]) -> str:
    """The number of bad rows, and the first ones: "2 bad rows and 7 good ones (skipped): ..."."""
    more = [f"and {bad - SHOWN:,} more"] if bad > SHOWN else []
    counts = f"{bad:,} bad {what}{'s' * (bad != 1)} and {good:,} good {'one' if good == 1 else 'ones'}"
    return "\n  ".join([f"{counts} ({remark}):" if remark else f"{counts}:", *first[:SHOWN], *more])
