"""Tables as plain values, which the terminal and the report draw, and the way in which numbers and metrics are
written."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from attnorm.tasks.results import NAMES

MINUS, NOTHING = "\u2212", "\u2013"
GRADIENT_NORM = "train/gradient_norm"
LOGGED = {"train/loss": "training loss (nats)", GRADIENT_NORM: "norm of the gradient"}


@dataclass(frozen=True)
class Column:
    """A column of a table.

    name: its header. is_numeric: whether it is aligned to the right and sorted by value. hint: what it means.
    """

    name: str
    is_numeric: bool = False
    hint: str = ""


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    text: what is shown. value: what the column is sorted by, and what is copied as CSV; None for text and for nothing.
    mark: a CSS class, such as "differs".
    """

    text: str
    value: float | None = None
    mark: str = ""


@dataclass(frozen=True)
class Table:
    """A table. The first cell of each row is its header.

    caption: what the table shows, also for screen readers. can_copy: whether the page offers to copy it.
    """

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    can_copy: bool = False

    @property
    def texts(self) -> list[list[str]]:
        """The names of the columns, and then the texts of each row."""
        return [[column.name for column in self.columns], *([cell.text for cell in row] for row in self.rows)]


def number(value: float | None, digits: int = 2, sign: bool = False) -> Cell:
    """A number with so many digits after the point and thousands separated; a dash for None, NaN and infinity."""
    if value is None or not isfinite(value):
        return Cell(NOTHING)
    return Cell(written(value, digits, sign), float(value))


def written(value: float, digits: int, sign: bool = False) -> str:
    """A number as text, with a minus sign instead of a hyphen."""
    text = f"{value:{'+' if sign else ''},.{digits}f}"
    if float(text.replace(",", "")) == 0:  # neither +0.00 nor -0.00
        text = f"{0:.{digits}f}"
    return text.replace("-", MINUS)


def interval(low: float, high: float, digits: int) -> Cell:
    """An interval, sorted by its lower end; a dash if it is not defined."""
    if not (isfinite(low) and isfinite(high)):
        return Cell(NOTHING)
    return Cell(f"{written(low, digits)} to {written(high, digits)}", float(low))


def title_of(metric: str) -> str:
    """A metric in words."""
    return NAMES.get(metric, metric.replace("_", " "))


def title_of_curve(name: str) -> str:
    """A column of metrics.csv in words."""
    if name in LOGGED:
        return LOGGED[name]
    metric = name.removeprefix("val/")
    return f"validation {title_of(metric)}" + (" (nats)" if metric == "loss" else "")
