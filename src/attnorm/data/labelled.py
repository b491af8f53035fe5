"""Labelled texts, or pairs of texts, from one file a split: columns of a table, and the names that labels may have."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from attnorm.data import checks, files, table_files
from attnorm.data.sources import Source


class LabelledFiles(Source):
    """`train`, `validation` and `test` are paths or None, in the formats of `table_files`.

    text, second, label: names of columns; `second` None: single texts. labels: the names of the labels, in the order of
    their numbers. A cell holds a label's name, or its number (from 0) where no name is itself a number.
    """

    yields = "labelled"

    def __init__(
        self,
        *,
        train: str | None,
        labels: Sequence[str],
        validation: str | None = None,
        test: str | None = None,
        text: str = "text",
        second: str | None = None,
        label: str = "label",
    ):
        self.paths = {"train": train, "validation": validation, "test": test}
        self.columns = [("data.text", text), ("data.second", second), ("data.label", label)]
        if second is None:
            del self.columns[1]
        self.labels = labels

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have a path."""
        return tuple(split for split, path in self.paths.items() if path is not None)

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Missing or empty files, unknown formats, column names that are not names, what is wrong with the labels."""
        problems = [problem for key, name in self.columns for problem in checks.non_empty_text(key, name)]
        return problems + label_problems(self.labels) + checks.split_files(self.paths, splits, table_files.problem)

    def fingerprint(self, split: str) -> str:
        """A hash of the file, of the column names and of the labels."""
        path = Path(self.paths[split])
        names = [name for _, name in self.columns]
        return files.digest(["labelled", 1, table_files.suffix(path), names, list(self.labels)], path)

    def rows(self, split: str) -> Iterator[tuple[str, str, str]]:
        """Stream (text, second, label), second "" where texts are single. Raises ValueError, naming file and line, for
        a cell or column that is not right, and for a label that is not one of `labels`."""
        names = [name for _, name in self.columns]
        numbers = {} if any(map(_is_number, self.labels)) else {str(i): name for i, name in enumerate(self.labels)}
        known = numbers | {name: name for name in self.labels}
        for where, (*cells, label) in table_files.read(Path(self.paths[split]), self.columns):
            texts = [table_files.text_cell(where, *named) for named in zip(names, cells, strict=False)]
            found = known.get(str(label)) if isinstance(label, (str, int)) and not isinstance(label, bool) else None
            if found is None:
                raise ValueError(f"{where}: {names[-1]} is {_unknown(label, self.labels, bool(numbers))}")
            yield texts[0], texts[1] if len(texts) > 1 else "", found


def label_problems(labels: object) -> list[str]:
    """What is wrong with the names of the labels: not texts, fewer than two, one twice."""
    if isinstance(labels, (str, bytes)) or not isinstance(labels, Sequence):
        return [f"data.labels={labels}: must be the list of the labels' names, [negative,positive]"]
    if not all(isinstance(name, str) and name for name in labels):
        wrong = next(name for name in labels if not isinstance(name, str) or not name)
        return [f"data.labels: {json.dumps(wrong, default=str)} is not a name; write numbers in quotes"]
    if len(set(labels)) < len(labels):
        twice = sorted({name for name in labels if list(labels).count(name) > 1})
        return [f"data.labels: {', '.join(twice)} is there twice"]
    return [] if len(labels) > 1 else [f"data.labels={list(labels)}: at least two labels are needed"]


def _is_number(name: str) -> bool:
    return name.strip().lstrip("+-").isdigit()


def _unknown(label: object, labels: Sequence[str], numbered: bool) -> str:
    """The sentence for a label that is not one of `labels`: all of them, and the nearest."""
    said = "empty" if label in (None, "") else json.dumps(label, default=str)[:80]
    also = f", or their numbers 0 to {len(labels) - 1}" if numbered else ""
    return checks.unknown(f"{said}, which is not in data.labels{also}", label, labels)
