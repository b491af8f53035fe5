"""Pairs from one file a split: JSON lines, CSV, TSV (each plain or .gz) or parquet, with two named columns."""

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from attnorm.data import checks, files
from attnorm.data.sources import Source

Cells = Iterator[tuple[str, object, object]]  # ("file:line", article cell, title cell)


class Pairs(Source):
    """`train`, `validation` and `test` are paths or None; `article` and `title` name the columns.

    The ending decides the format: .jsonl or .json (one object a line), .csv (comma, quotes as spreadsheets write
    them), .tsv (tab, quotes are ordinary characters), each also with .gz; .parquet. A null cell counts as empty text.
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
        self.article, self.title = article, title

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have a path."""
        return tuple(split for split, path in self.paths.items() if path is not None)

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Missing or empty files, unknown formats, column names that are not names."""
        problems = checks.non_empty_text("data.article", self.article)
        problems += checks.non_empty_text("data.title", self.title)
        for split in splits:
            key = f"data.{split}={'null' if self.paths[split] is None else self.paths[split]}"
            if not isinstance(self.paths[split], str) or not self.paths[split]:
                problems.append(f"{key}: the {split} split is asked for; name its file")
            elif _reader(Path(self.paths[split])) is None:
                problems.append(f"{key}: unknown format (allowed: {', '.join(READERS)}; text formats also with .gz)")
            else:
                problems += files.file_problem(key, Path(self.paths[split]))
        return problems

    def fingerprint(self, split: str) -> str:
        """A hash of the file and of the column names."""
        path = Path(self.paths[split])
        return files.digest(["pairs", 1, _suffix(path), self.article, self.title], path)

    def rows(self, split: str) -> Iterator[tuple[str, str]]:
        """Stream the pairs. Raises ValueError, naming file and line, for a cell, row or column that is not right."""
        path = Path(self.paths[split])
        for where, article, title in _reader(path)(path, self.article, self.title):
            yield text_cell(where, self.article, article), text_cell(where, self.title, title)


def _suffix(path: Path) -> str:
    return path.with_suffix("").suffix.lower() if path.suffix == ".gz" else path.suffix.lower()


def _reader(path: Path):
    suffix = _suffix(path)
    return None if suffix == ".parquet" and path.suffix == ".gz" else READERS.get(suffix)


def text_cell(where: str, column: str, cell: object) -> str:
    """The text of a cell, empty for null. Raises ValueError, opening with `where`, for anything that is not text."""
    if cell is None:
        return ""
    if not isinstance(cell, str):
        raise ValueError(f"{where}: {column} is {json.dumps(cell, default=str)[:80]}, not text")
    if not cell.isascii():
        try:
            cell.encode("utf-8")  # JSON can spell half a character ("\ud83d"), which no file can hold
        except UnicodeEncodeError as error:
            raise ValueError(f"{where}: {column} holds half of a surrogate pair, which is not text") from error
    return cell


def missing_columns(where: str, wanted: Sequence[tuple[str, str]], there: Sequence[str]) -> None:
    """Raise ValueError if a column of `wanted` [(config key, name)] is not in `there`, naming those that are."""
    for key, name in wanted:
        if name not in there:
            raise ValueError(checks.unknown(f"{where}: data.{key}={name}: no such column", name, map(str, there)))


def _json_cells(path: Path, article: str, title: str) -> Cells:
    for number, line in enumerate(files.read_lines(path), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}: not JSON ({error.msg} at column {error.colno}); one object a line") from error
        if not isinstance(row, dict):
            raise ValueError(f"{where}: a JSON object is expected on each line, not {type(row).__name__}")
        if article not in row or title not in row:
            missing_columns(where, (("article", article), ("title", title)), list(row))
        yield where, row[article], row[title]


def _csv_cells(path: Path, article: str, title: str) -> Cells:
    yield from _table_cells(path, article, title, csv.reader(files.read_lines(path), strict=True))


def _tsv_cells(path: Path, article: str, title: str) -> Cells:
    reader = csv.reader(files.read_lines(path), delimiter="\t", quoting=csv.QUOTE_NONE)
    yield from _table_cells(path, article, title, reader)


def _table_cells(path: Path, article: str, title: str, reader) -> Cells:
    try:
        header = next(reader, [])
        missing_columns(f"{path}:1", (("article", article), ("title", title)), header)
        first, second = header.index(article), header.index(title)
        for row in reader:
            if not row:
                continue  # a blank line
            if len(row) != len(header):  # too many, too: an unquoted comma would shift the columns silently
                raise ValueError(f"{path}:{reader.line_num}: {len(row)} fields where the header has {len(header)}")
            yield f"{path}:{reader.line_num}", row[first], row[second]
    except csv.Error as error:
        raise ValueError(f"{path}:{reader.line_num}: {error}") from error


def _parquet_cells(path: Path, article: str, title: str) -> Cells:
    import pyarrow
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            missing_columns(str(path), (("article", article), ("title", title)), file.schema_arrow.names)
            for batch in file.iter_batches(columns=list(dict.fromkeys((article, title)))):
                cells = (batch.column(batch.schema.get_field_index(name)).to_pylist() for name in (article, title))
                for number, (first, second) in enumerate(zip(*cells, strict=True), start=number + 1):  # noqa: B020
                    yield f"{path}: row {number}", first, second
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path}: cannot be read as parquet after row {number}: {error}") from error


READERS = {
    ".jsonl": _json_cells,
    ".json": _json_cells,
    ".csv": _csv_cells,
    ".tsv": _tsv_cells,
    ".parquet": _parquet_cells,
}
