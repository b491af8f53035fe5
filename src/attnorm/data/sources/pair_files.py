"""Pairs from one file per split: JSON lines, CSV, TSV (each plain or gzipped) or parquet, with two columns."""

from pathlib import Path

from attnorm.data.readers import tables as table_files
from attnorm.data.readers import text as files
from attnorm.data.readers.tables import Column
from attnorm.data.sources.table_source import TableSource
from attnorm.schema import Share, Text


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
