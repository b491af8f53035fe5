"""Labelled texts, or pairs of texts, from one file per split, with the columns of a table and the labels' names."""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from attnorm.data import validation as checks
from attnorm.data.readers import tables as table_files
from attnorm.data.readers import text as files
from attnorm.data.readers.bad_rows import BadRow
from attnorm.data.sources.base import LABELLED
from attnorm.data.sources.table_source import TableSource


class LabelledFiles(TableSource):
    """`train`, `validation` and `test` are paths or None, in the formats of `readers.tables`.

    text, second, label: names of columns. `second` is None for single texts.
    labels:  the names of the labels, in the order of their numbers. A cell contains the name of a label, or its number
             (from 0) if no name is itself a number.
    holdout: the share of the rows of train that becomes the validation split if `validation` is None.
    encoding, skip_bad: as in `TableSource`.
    """

    schema = LABELLED

    def __init__(
        self,
        *,
        train: str | None,
        labels: Sequence[str],
        validation: str | None = None,
        test: str | None = None,
        holdout: float = 0,
        text: str | int = "text",
        second: str | int | None = None,
        label: str | int = "label",
        encoding: str = files.UTF8,
        skip_bad: bool = False,
    ):
        paths = {"train": train, "validation": validation, "test": test}
        columns = [("data.text", text), ("data.label", label)]
        if second is not None:
            columns.insert(1, ("data.second", second))
        super().__init__(paths, columns, holdout, encoding, skip_bad)
        self.labels = labels

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Problems with the labels, with other options, and with the files."""
        return label_problems(self.labels) + super().check(splits)

    def settings(self, path: Path) -> list:
        return ["labelled", 1, table_files.suffix(path), [name for _, name in self.columns], list(self.labels)]

    def row(self, where: str, cells: tuple) -> tuple[str, str, str]:
        """(text, second, label), with second "" for single texts. Raises BadRow if the label is not one of `labels`."""
        *words, label = cells
        texts = self.texts(where, tuple(words))
        found = self.known.get(str(label)) if isinstance(label, (str, int)) and not isinstance(label, bool) else None
        if found is None:
            column, numbered = self.columns[-1][1], len(self.known) > len(self.labels)
            raise BadRow(f"{where}: {column} is {_unknown(label, self.labels, numbered)}")
        return texts[0], texts[1] if len(texts) > 1 else "", found

    @cached_property
    def known(self) -> dict[str, str]:
        """Allowed contents of a cell -> name of the label."""
        numbers = {} if any(map(_is_number, self.labels)) else {str(i): name for i, name in enumerate(self.labels)}
        return numbers | {name: name for name in self.labels}


def label_problems(labels: object) -> list[str]:
    """Problems with the names of the labels: not texts, fewer than two, or repeated."""
    if isinstance(labels, (str, bytes)) or not isinstance(labels, Sequence):
        return [f"data.labels={labels}: must be the list of the labels' names, [negative,positive]"]
    if not all(isinstance(name, str) and name for name in labels):
        wrong = next(name for name in labels if not isinstance(name, str) or not name)
        return [f"data.labels: {json.dumps(wrong, default=str)} is not a name; write numbers in quotes"]
    if len(set(labels)) < len(labels):
        twice = sorted({name for name in labels if list(labels).count(name) > 1})
        return [f"data.labels: repeated names: {', '.join(twice)}"]
    return [] if len(labels) > 1 else [f"data.labels={list(labels)}: must have at least two names"]


def _is_number(name: str) -> bool:
    return name.strip().lstrip("+-").isdigit()


def _unknown(label: object, labels: Sequence[str], numbered: bool) -> str:
    """The message for a label that is not one of `labels`, with all allowed ones and the closest match."""
    said = "empty" if label in (None, "") else json.dumps(label, default=str)[:80]
    also = f", or their numbers 0 to {len(labels) - 1}" if numbered else ""
    return checks.unknown(f"{said}, which is not in data.labels{also}", label, labels)
