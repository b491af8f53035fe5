"""Pairs from one file a split: JSON lines, CSV, TSV (each plain or .gz) or parquet, with two named columns."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from attnorm.data import checks, files, table_files
from attnorm.data.sources import Source


class Pairs(Source):
    """`train`, `validation` and `test` are paths or None; `article` and `title` name the columns.

    The formats are those of `table_files`. A null cell counts as empty text.
    """

    def __init__(
        self,
        *,
        train: str | None,
        validation: str | None = None,
        test: str | None = None,
        article: str = "article",
        title: str = "title",
    ):
        self.paths = {"train": train, "validation": validation, "test": test}
        self.columns = (("data.article", article), ("data.title", title))

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have a path."""
        return tuple(split for split, path in self.paths.items() if path is not None)

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Missing or empty files, unknown formats, column names that are not names."""
        named = [problem for key, name in self.columns for problem in checks.non_empty_text(key, name)]
        return named + checks.split_files(self.paths, splits, table_files.problem)

    def fingerprint(self, split: str) -> str:
        """A hash of the file and of the column names."""
        path = Path(self.paths[split])
        return files.digest(["pairs", 1, table_files.suffix(path), *(name for _, name in self.columns)], path)

    def rows(self, split: str) -> Iterator[tuple[str, str]]:
        """Stream the pairs. Raises ValueError, naming file and line, for a cell, row or column that is not right."""
        names = [name for _, name in self.columns]
        for where, cells in table_files.read(Path(self.paths[split]), self.columns):
            article, title = (table_files.text_cell(where, *named) for named in zip(names, cells, strict=True))
            yield article, title
