"""Sources that read the tables of each split, and that of pairs, which are two of its columns.

A table is JSON lines, CSV, TSV (each plain or gzipped) or parquet.
"""

import glob
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from attnorm.data.readers import table_files
from attnorm.data.readers import text as files
from attnorm.data.readers.bad_rows import usable
from attnorm.data.readers.table_files import Column
from attnorm.data.sources.base import DividedTrain, Entries, entries_of, matching_files
from attnorm.errors import Problem
from attnorm.schema import Share


class TableSource(DividedTrain):
    """Rows of tables.

    named:    the files of each split, or None, in the formats of `readers.tables`.
    columns:  [(config key, column)].
    holdout:  if the validation split has no file, this share of the rows of train, evenly spaced, is held out for it.
    encoding: the encoding of text formats.
    skip_bad: skip unreadable rows and log their number, instead of raising an error.
    """

    def __init__(
        self,
        named: Mapping[str, Entries | None],
        columns: table_files.Columns,
        holdout: float,
        encoding: str,
        skip_bad: bool,
    ):
        self.named, self.columns, self.holdout = named, columns, holdout
        self.encoding, self.skip_bad = encoding, skip_bad

    @abstractmethod
    def settings(self, path: Path) -> list:
        """JSON-serializable values that determine the rows of a file, in addition to those of all table sources."""

    def paths(self, split: str) -> list[Path]:
        """The distinct files of the split, in the order in which they are named."""
        entries = entries_of(self.named[self.origin(split)])
        return list(dict.fromkeys(path for entry in entries for path in matching_files(entry)))

    @abstractmethod
    def row(self, where: str, cells: tuple) -> tuple[str, ...]:
        """The texts of a row. Raises BadRow, starting with `where`, for an invalid cell."""

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Invalid options; missing or empty files, unknown formats, and content that is not text."""
        read = list(dict.fromkeys(map(self.origin, splits)))
        paths = [path for split in read for path in self.paths(split)]
        return [
            *table_files.column_problems(self.columns, paths),
            *self.holdout_problems(splits, "file"),
            *table_files.encoding_problems(self.encoding, paths),
            *(problem for split in read for problem in self._file_problems(split)),
        ]

    def _file_problems(self, split: str) -> list[str]:
        if not (entries := entries_of(self.named[split])):
            return [Problem(f"data.{split}", f"the {split} split is asked for; name its file", self.named[split])]
        problems: list[str] = []
        for entry in entries:
            key, found = f"data.{split}={entry}", matching_files(entry)
            if not found and glob.has_magic(entry):
                problems.append(f"{key}: no file matches")
            for path in found or [Path(entry)] * (not glob.has_magic(entry)):
                problems += table_files.problem(key, path, self.encoding, self.skip_bad)
        return problems

    def fingerprint(self, split: str) -> str:
        """A hash of the files and of all settings that determine their rows."""
        first, *others = self.paths(split)
        held_out = [["holdout", split, self.holdout]] if self.is_divided(split) and self.holdout else []
        reading = files.reading_settings(self.encoding, self.skip_bad)
        formats = [table_files.suffix(path) for path in others]
        return files.digest([*self.settings(first), *held_out, *reading, *formats], first, *others)

    def rows(self, split: str) -> Iterator[tuple[str, ...]]:
        """Streams the rows. Raises ValueError that names file and line for an invalid column or row."""
        read = chain.from_iterable(
            table_files.read_rows(path, self.columns, self.encoding) for path in self.paths(split)
        )
        return self.part(usable(read, lambda cells: self.row(*cells), self.skip_bad), split, "data.train")


class PairFiles(TableSource):
    """`train`, `validation` and `test` are a file, a glob, a list of them, or None, in the formats of `readers.tables`.

    article, title: the names of the columns. A null cell counts as empty text.
    holdout:        the share of the rows of train that becomes the validation split if `validation` is None.
    encoding, skip_bad: as in `TableSource`.
    """

    def __init__(
        self,
        *,
        train: Entries | None,
        validation: Entries | None = None,
        test: Entries | None = None,
        holdout: Share = 0,
        article: Column = "article",
        title: Column = "title",
        encoding: str = files.UTF8,
        skip_bad: bool = False,
    ):
        paths = {"train": train, "validation": validation, "test": test}
        super().__init__(paths, (("data.article", article), ("data.title", title)), holdout, encoding, skip_bad)

    def settings(self, path: Path) -> list:
        return ["pairs", 1, table_files.suffix(path), *(name for _, name in self.columns)]

    def row(self, where: str, cells: tuple) -> tuple[str, ...]:
        return table_files.text_cells(where, self.columns, cells)
