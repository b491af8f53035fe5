"""Tables as plain values, which the terminal and the report draw, their text as LaTeX, Markdown and CSV, and the way in
which numbers and metrics are written."""

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from itertools import chain, compress
from math import isfinite

from attnorm.tasks.results import NAMES
from attnorm.wording import on_one_line

MINUS, NOTHING = "\u2212", "\u2013"
GRADIENT_NORM = "train/gradient_norm"
LOGGED = {"train/loss": "training loss (nats)", GRADIENT_NORM: "norm of the gradient"}
ARROWS = " \u2191\u2193"
IN_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "{}&%$#_"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"}
    | {"<": "$<$", ">": "$>$", MINUS: "$-$", NOTHING: r"\textendash{}", '"': "''", "[": "{[}", "*": "{*}"}
    | {"\u2191": r"$\uparrow$", "\u2193": r"$\downarrow$", "\u2026": r"\dots{}", "\u00b1": r"$\pm$"}
)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    name: its header. is_numeric: whether it is aligned to the right and sorted by value. hint: what it means.
    in_caption: whether `Table.about` says the same, so that LaTeX, which has little room, leaves it out.
    """

    name: str
    is_numeric: bool = False
    hint: str = ""
    in_caption: bool = False


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    text: what is shown. value: what the column is sorted by, and what stands in CSV; None for text and for nothing.
    mark: a CSS class, such as "differs". high: the upper end of an interval, of which `value` is the lower one.
    """

    text: str
    value: float | None = None
    mark: str = ""
    high: float | None = None


@dataclass(frozen=True)
class Table:
    """A table. The first cell of each row is its header.

    caption: what the table shows, also for screen readers. can_copy: whether the page offers to copy it.
    about: what a reader has to know who sees nothing but the table, such as the setup, as a paragraph.
    """

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    can_copy: bool = False
    about: str = ""

    @property
    def texts(self) -> list[list[str]]:
        """The names of the columns, and then the texts of each row."""
        return [[column.name for column in self.columns], *([cell.text for cell in row] for row in self.rows)]

    @property
    def copies(self) -> dict[str, str]:
        """The text of the table in each format, by the name of the format."""
        return {"LaTeX": self.latex, "Markdown": self.markdown, "CSV": self.csv}

    @property
    def latex(self) -> str:
        """A float with a table of `booktabs`, as wide as a page at most, with its caption and a label, and `about` as a
        paragraph of its own."""
        shown = self.filled(lambda column: not column.in_caption)
        head, *rows = (" & ".join(map(in_latex, row)) + r" \\" for row in shown.texts)
        alignment = "".join("r" if column.is_numeric else "l" for column in shown.columns)
        lines = [
            r"% \usepackage{booktabs,graphicx}",
            r"\begin{table*}",
            r"\centering\footnotesize\setlength{\tabcolsep}{4pt}",
            rf"\caption{{{in_latex(self.caption)}.}}",
            rf"\label{{tab:{'-'.join(re.findall('[a-z]+', self.caption.lower())[:4])}}}",
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{{alignment}}}",
            *(r"\toprule", head, r"\midrule", *rows, r"\bottomrule"),
            *(r"\end{tabular}}", r"\end{table*}", ""),
            *([in_latex(self.about), ""] if self.about else []),
        ]
        return "\n".join(lines)

    @property
    def markdown(self) -> str:
        """A table, the caption, and `about` as a paragraph of its own."""
        shown = self.filled()
        head, *rows = (f"| {' | '.join(map(_in_markdown, row))} |" for row in shown.texts)
        rule = f"|{'|'.join('---:' if column.is_numeric else '---' for column in shown.columns)}|"
        paragraphs = [f"{self.caption}.", *filter(None, [self.about])]
        return "\n".join([head, rule, *rows, *(f"\n{_in_markdown(each)}" for each in paragraphs), ""])

    @property
    def csv(self) -> str:
        """All columns, with numbers of 15 significant digits. An interval has two columns."""
        names = [column.name.rstrip(ARROWS) for column in self.columns]
        are_ends = [any(row[place].high is not None for row in self.rows) for place in range(len(names))]
        rows = [[_numbers(cell, both) for cell, both in zip(row, are_ends, strict=True)] for row in self.rows]
        head = [[f"{name} from", f"{name} to"] if both else [name] for name, both in zip(names, are_ends, strict=True)]
        content = StringIO()
        csv.writer(content, lineterminator="\n").writerows(list(chain(*row)) for row in (head, *rows))
        return content.getvalue()

    def filled(self, is_shown: Callable[[Column], bool] = lambda column: True) -> "Table":
        """The table without columns in which no row has an entry, and with those to be shown."""
        has_entry = [any(row[place].text.strip(NOTHING) for row in self.rows) for place in range(len(self.columns))]
        kept = [has and is_shown(column) for has, column in zip(has_entry, self.columns, strict=True)]
        rows = [list(compress(row, kept)) for row in self.rows]
        return replace(self, columns=list(compress(self.columns, kept)), rows=rows)


def in_latex(text: str) -> str:
    return re.sub("-(?=-)", "-{}", on_one_line(text).translate(IN_LATEX))  # two hyphens would be a dash


def _in_markdown(text: str) -> str:
    return " ".join(re.sub(r"([\\|<>*_`\[\]])", r"\\\1", text).split())


def _numbers(cell: Cell, both: bool) -> list[str]:
    """A cell in CSV, where no text begins as a formula of a spreadsheet does. both: whether it has two columns."""
    text = "" if cell.text == NOTHING else re.sub(r"^(?=[=+@\t-])", "'", on_one_line(cell.text))
    first = text if cell.value is None else f"{cell.value:.15g}"
    return [first, "" if cell.high is None else f"{cell.high:.15g}"] if both else [first]


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
    return Cell(f"{written(low, digits)} to {written(high, digits)}", float(low), high=float(high))


def title_of(metric: str) -> str:
    """A metric in words."""
    return NAMES.get(metric, metric.replace("_", " "))


def title_of_curve(name: str) -> str:
    """A column of metrics.csv in words."""
    if name in LOGGED:
        return LOGGED[name]
    metric = name.removeprefix("val/")
    return f"validation {title_of(metric)}" + (" (nats)" if metric == "loss" else "")
