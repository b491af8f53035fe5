"""Base class of the sources that read one table file per split."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from attnorm.data import validation as checks
from attnorm.data.readers import tables as table_files
from attnorm.data.readers import text as files
from attnorm.data.readers.bad_rows import usable
from attnorm.data.sources import holdout
from attnorm.data.sources.base import Source, path_of


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
        own = [split for split in splits if split != "validation" or not held_out]
        if len(own) < len(splits) and "train" not in own:
            own.append("train")  # its file contains the validation split
        paths = [Path(path) for split in own if isinstance(path := self.paths[split], str)]
        return [
            *table_files.column_problems(self.columns, paths),
            *holdout.problems(self.share, held_out and "validation" in splits, "file"),
            *table_files.encoding_problems(self.encoding, paths),
            *checks.split_files(self.paths, own, self._file_problem),
        ]

    def fingerprint(self, split: str) -> str:
        """A hash of the file and of all settings that determine its rows."""
        path = path_of(self._files(), split)
        held_out = [["holdout", split, self.share]] if self._held_out(split) and self.share else []
        reading = reading_settings(self.encoding, self.skip_bad)
        return files.digest([*self.settings(path), *held_out, *reading], path)

    def rows(self, split: str) -> Iterator[tuple[str, ...]]:
        """Streams the rows. Raises ValueError that names file and line for an invalid column or row."""
        read = table_files.read(path_of(self._files(), split), self.columns, self.encoding)
        rows = usable(read, lambda cells: self.row(*cells), self.skip_bad)
        return holdout.part(rows, split, self.share, "data.train") if self._held_out(split) else rows

    def texts(self, where: str, cells: tuple) -> list[str]:
        """The texts of the cells of the first columns."""
        names = [name for _, name in self.columns]
        return [table_files.text_cell(where, *named) for named in zip(names, cells, strict=False)]

    def _file_problem(self, key: str, path: Path) -> list[str]:
        return table_files.problem(key, path, self.encoding, self.skip_bad)

    def _held_out(self, split: str) -> bool:
        """Whether the split is taken from the rows of the train file."""
        return self.paths["validation"] is None and split != "test"

    def _files(self) -> dict[str, str | None]:
        """The file that contains each split."""
        return {split: self.paths["train"] if self._held_out(split) else path for split, path in self.paths.items()}


def reading_settings(encoding: str, skip_bad: bool) -> list:
    """Those of these settings that differ from the defaults and affect the rows, for a fingerprint."""
    return [["encoding", encoding]] * (not files.is_utf8(encoding)) + ["skip_bad"] * skip_bad
