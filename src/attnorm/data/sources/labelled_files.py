"""Labelled texts or pairs of texts, from the files of each split, with columns of a table and names of the labels."""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import Field

from attnorm.data import validation as checks
from attnorm.data.readers import table_files
from attnorm.data.readers import text as files
from attnorm.data.readers.bad_rows import BadRow
from attnorm.data.readers.table_files import Column
from attnorm.data.sources.base import LABELLED, Entries
from attnorm.data.sources.pair_files import TableSource
from attnorm.schema import Share, Text

NAMES = "the list of the labels' names, [negative,positive]; write numbers in quotes"
Labels = Annotated[Sequence[Text], Field(description=NAMES)]


class LabelledFiles(TableSource):
    """`train`, `validation` and `test` are a file, a glob, a list of them, or None, in the formats of `readers.tables`.

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
        train: Entries | None,
        labels: Labels,
        validation: Entries | None = None,
        test: Entries | None = None,
        holdout: Share = 0,
        text: Column = "text",
        second: Column | None = None,
        label: Column = "label",
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
        texts = table_files.text_cells(where, self.columns, words)
        name = self.known.get(str(label)) if isinstance(label, (str, int)) and not isinstance(label, bool) else None
        if name is None:
            said = "empty" if label in (None, "") else json.dumps(label, default=str)[:80]
            also = f", or their numbers 0 to {len(self.labels) - 1}" if len(self.known) > len(self.labels) else ""
            sentence = f"{where}: {self.columns[-1][1]} is {said}, which is not in data.labels{also}"
            raise BadRow(checks.unknown_name(sentence, label, self.labels))
        return texts[0], texts[1] if len(texts) > 1 else "", name

    @cached_property
    def known(self) -> dict[str, str]:
        """Allowed contents of a cell -> name of the label."""
        numbers = {str(i): name for i, name in enumerate(self.labels)}
        if any(name.strip().lstrip("+-").isdigit() for name in self.labels):
            numbers = {}
        return numbers | {name: name for name in self.labels}


def label_problems(labels: Sequence[str]) -> list[str]:
    """Problems with the names of the labels: fewer than two, or repeated."""
    if len(set(labels)) < len(labels):
        twice = sorted({name for name in labels if list(labels).count(name) > 1})
        return [f"data.labels: repeated names: {', '.join(twice)}"]
    return [] if len(labels) > 1 else [f"data.labels={list(labels)}: must have at least two names"]
