"""Sources that read one table per split, and that of pairs, which are two of its columns.

A table is JSON lines, CSV, TSV (each plain or gzipped) or parquet.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from attnorm.data import validation as checks
from attnorm.data.readers import tables as table_files
from attnorm.data.readers import text as files
from attnorm.data.readers.bad_rows import usable
from attnorm.data.readers.tables import Column
from attnorm.data.sources.base import Source, holdout_part, holdout_problems, path_of
from attnorm.schema import Share, Text


class TableSource(Source):
    """Rows of tables, one file per split.

    paths:    the file of each split, or None, in the formats of `readers.tables`.
    columns:  [(config key, column)].
    share:    if the validation split has no file, this share of the rows of train, evenly spaced, is held out for it.
    encoding: the encoding of text formats.
    skip_bad: skip unreadable rows and log their number, instead of raising an error.
    """

    def __init__(
        self,
        paths: Mapping[str, str | None],
        columns: table_files.Columns,
        share: float,
        encoding: str,
        skip_bad: bool,
    ):
        self.paths, self.columns, self.share = paths, columns, share
        self.encoding, self.skip_bad = encoding, skip_bad

    @abstractmethod
    def settings(self, path: Path) -> list:
        """JSON-serializable values that determine the rows of a file, in addition to those of all table sources."""

    @abstractmethod
    def row(self, where: str, cells: tuple) -> tuple[str, ...]:
        """The texts of a row. Raises BadRow, starting with `where`, for an invalid cell."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have a path, or are held out of train."""
        files = self._files() | ({} if self.share else {"validation": self.paths["validation"]})
        return tuple(split for split, path in files.items() if path is not None)

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Invalid options; missing or empty files, unknown formats, and content that is not text."""
        held_out = self._held_out("validation")
        named_splits = [split for split in splits if split != "validation" or not held_out]
        if len(named_splits) < len(splits) and "train" not in named_splits:
            named_splits.append("train")  # its file contains the validation split
        paths = [Path(path) for split in named_splits if isinstance(path := self.paths[split], str)]
        problem = partial(table_files.problem, encoding=self.encoding, skip_bad=self.skip_bad)
        return [
            *table_files.column_problems(self.columns, paths),
            *holdout_problems(self.share, held_out and "validation" in splits, "file"),
            *table_files.encoding_problems(self.encoding, paths),
            *checks.split_files(self.paths, named_splits, problem),
        ]

    def fingerprint(self, split: str) -> str:
        """A hash of the file and of all settings that determine its rows."""
        path = path_of(self._files(), split)
        held_out = [["holdout", split, self.share]] if self._held_out(split) and self.share else []
        reading = files.reading_settings(self.encoding, self.skip_bad)
        return files.digest([*self.settings(path), *held_out, *reading], path)

    def rows(self, split: str) -> Iterator[tuple[str, ...]]:
        """Streams the rows. Raises ValueError that names file and line for an invalid column or row."""
        read = table_files.read_rows(path_of(self._files(), split), self.columns, self.encoding)
        rows = usable(read, lambda cells: self.row(*cells), self.skip_bad)
        return holdout_part(rows, split, self.share, "data.train") if self._held_out(split) else rows

    def texts(self, where: str, cells: tuple) -> list[str]:
        """The texts of the cells of the first columns."""
        names = [name for _, name in self.columns]
        return [table_files.text_cell(where, *named) for named in zip(names, cells, strict=False)]

    def _held_out(self, split: str) -> bool:
        """Whether the split is taken from the rows of the train file."""
        return self.paths["validation"] is None and split != "test"

    def _files(self) -> dict[str, str | None]:
        """The file that contains each split."""
        return {split: self.paths["train"] if self._held_out(split) else path for split, path in self.paths.items()}


class PairFiles(TableSource):
    """`train`, `validation` and `test` are paths or None, in the formats of `readers.tables`.

    article, title: the names of the columns. A null cell counts as empty text.
    holdout:        the share of the rows of train that becomes the validation split if `validation` is None.
    encoding, skip_bad: as in `TableSource`.
    """

    def __init__(
        self,
        *,
        train: Text | None,
        validation: Text | None = None,
        test: Text | None = None,
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

    def row(self, where: str, cells: tuple) -> tuple[str, str]:
        article, title = self.texts(where, cells)
        return article, title
