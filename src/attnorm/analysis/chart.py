"""A chart of a page: a figure, and the values that it shows as a table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attnorm.analysis.paper import COLUMN, PAGE, Figure
from attnorm.analysis.table import MINUS, NOTHING, Cell, Column, Table


@dataclass(frozen=True)
class Chart:
    """A chart of a page.

    name: unique on the page; the HTML id. title: what is drawn. description: the same for readers who do not see it,
    with the main values. draw: draws it in a width, COLUMN or PAGE, in inches. values: what is drawn. note: what a
    reader of the chart should know, "" for nothing. reading: what its marks mean, for its caption. is_wide: whether it
    is drawn as wide as a page, too.
    """

    name: str
    title: str
    description: str
    draw: Callable[[float], Figure]
    values: Table
    note: str = ""
    reading: str = ""
    is_wide: bool = False

    def figure(self, width: float = COLUMN, of: str = "") -> Figure:
        """The figure with its caption. of: the task, for instance."""
        title = f"{self.title[:1].upper()}{self.title[1:]}" + (f" ({of})" if of else "")
        return self.draw(width).finished(f"{title}.", self.reading, self.note)

    def svgs(self) -> dict[str, str]:
        """The SVG, by the CSS class of its place: one for wide screens and one for phones, or one for both."""
        if self.is_wide:
            figures = {"only-wide": self.figure(PAGE), "only-narrow": self.figure(COLUMN)}
        else:
            figure = self.figure()
            figures = {"of-column" if figure.columns == 1 else "of-page": figure}
        return {place: figure.in_page(f"{self.name}-{place}") for place, figure in figures.items()}


def values_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str | float | None]]) -> Table:
    """The values of a chart, with four significant digits."""
    numeric = [all(not isinstance(row[place], str) for row in rows) for place in range(len(columns))]
    named = [Column(name, is_numeric) for name, is_numeric in zip(columns, numeric, strict=True)]
    return Table(title, named, [[significant(value) for value in row] for row in rows])


def significant(value: str | float | None) -> Cell:
    """A text, or a number with four significant digits."""
    if isinstance(value, str) or value is None:
        return Cell(value or NOTHING)
    return Cell(f"{value:.4g}".replace("-", MINUS), value)
