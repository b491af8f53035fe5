"""Tables in files: JSON lines, CSV, TSV (each plain or compressed) or parquet. Rows of selected columns are streamed.

The file name extension determines the format: .jsonl or .json (one object per line), .csv (commas, quotes as in
spreadsheets), .tsv (tabs; quotes are ordinary characters, unless all names of the header are in quotes), each also with
.gz or .xz; .parquet. In .csv and .tsv files, a column may also be given by its number, from 0. Then the file has no
header, and its first line is an ordinary row. In the others, it may be inside another one, see `readers.nested`.

`datasets` is not used: without a word it fills short rows of CSV, drops surplus cells, and reads a missing key as null.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attnorm.data import validation as checks
from attnorm.data.readers import text as files
from attnorm.data.readers.bad_rows import BadRow
from attnorm.data.readers.nested import outer, values_at
from attnorm.data.readers.records import without_surrogates
from attnorm.errors import DataError, reading
from attnorm.schema import Text, WholeNumber

Column = Text | WholeNumber
Columns = Sequence[tuple[str, str | int]]  # (config key, name or number of the column)
Cells = tuple[str, tuple[object, ...]]  # ("file:line", cells)
Rows = Iterator[Cells | BadRow]

PACKED = (".gz", ".xz")
csv.field_size_limit(1 << 27)  # characters; limits the memory that an unclosed quote can take


def read_rows(path: Path, columns: Columns, encoding: str | None = files.UTF8) -> Rows:
    """Streams these columns. An unusable row is yielded as a BadRow. encoding: as in `readers.text.text_lines`.

    Raises ValueError that names file and line if a column does not exist or exists twice, or the file cannot be read.
    """
    return _reader(path)(path, columns, encoding)


def problem(key: str, path: Path, encoding: str = files.UTF8, skip_bad: bool = False) -> list[str]:
    """A problem if `path` has an unknown format, is missing or empty, or does not start with text in this encoding."""
    if _reader(path) is None:
        return [f"{key}: unknown format (allowed: {', '.join(READERS)}; text formats also with .gz or .xz)"]
    if suffix(path) == ".parquet":
        return files.file_problem(key, path)
    return files.text_problem(key, path, encoding, skip_bad)


def column_problems(columns: Columns, paths: Sequence[Path]) -> list[str]:
    """Problems with the columns: names and numbers mixed, or numbers for named columns."""
    problems, numbered = [], [is_number(column) for _, column in columns]
    named = next((path for path in paths if suffix(path) in READERS and suffix(path) not in (".csv", ".tsv")), None)
    for (key, column), number in zip(columns, numbered, strict=True):
        if number and not all(numbered):
            problems.append(f"{key}={column}: a number is for files without a header; give all columns by number")
        elif number and named is not None:
            problems.append(f"{key}={column}: a number is for .csv and .tsv files; name the column of {named}")
    return problems


def encoding_problems(encoding: object, paths: Sequence[Path]) -> list[str]:
    """A problem if `encoding` is invalid, or if it was changed although no file has a selectable encoding."""
    if problems := files.encoding_problem(encoding):
        return problems
    if files.is_utf8(str(encoding)) or not paths or any(suffix(path) != ".parquet" for path in paths):
        return []
    return [f"data.encoding={encoding}: has no effect on parquet files, whose text is always UTF-8"]


def is_number(column: object) -> bool:
    """Whether this is a valid column number."""
    return isinstance(column, int) and not isinstance(column, bool) and column >= 0


def suffix(path: Path) -> str:
    """The file name extension that determines the format, without .gz or .xz."""
    return path.with_suffix("").suffix.lower() if path.suffix in PACKED else path.suffix.lower()


def _reader(path: Path) -> Any:
    ending = suffix(path)
    return None if ending == ".parquet" and path.suffix in PACKED else READERS.get(ending)


def text_cell(where: str, column: str | int, cell: object) -> str:
    """The text of a cell, empty for null. Raises BadRow, starting with `where`, if the cell is not text."""
    if cell is None:
        return ""
    if not isinstance(cell, str):
        raise BadRow(f"{where}: {column} is {json.dumps(cell, default=str)[:80]}, not text")
    try:
        return without_surrogates(cell)
    except ValueError as error:
        raise BadRow(f"{where}: {column} {error}") from error


def text_cells(where: str, columns: Columns, cells: Iterable[object]) -> tuple[str, ...]:
    """The texts of the cells of the first of these columns, as in `text_cell`."""
    return tuple(text_cell(where, name, cell) for (_, name), cell in zip(columns, cells, strict=False))


def missing_columns(where: str, wanted: Columns, existing: Sequence[str], nested: bool = False) -> None:
    """Raises ValueError if a column of `wanted` is not in `existing`. The message lists the existing columns.

    nested: whether a column may be inside another one, see `readers.nested`.
    """
    if problem := no_column(where, wanted, existing, nested):
        raise DataError(problem)


def no_column(where: str, wanted: Columns, existing: Sequence[str], nested: bool = False) -> str:
    """The message for the first column of `wanted` that is not in `existing`, or there twice; "" if all are there."""
    for key, name in wanted:
        if (outer(str(name), existing) if nested else name) not in existing:
            return checks.unknown_name(f"{where}: {key}={name}: no such column", name, map(str, existing))
        if existing.count(str(name)) > 1:
            return f"{where}: {key}={name}: {existing.count(str(name))} columns have this name"
    return ""


def row_of(where: str, columns: Sequence[str], row: dict[str, object]) -> Cells | BadRow:
    """The cells of these columns, which may be nested, in a row that has the columns around them."""
    try:
        return where, values_at(where, columns, row)
    except BadRow as error:
        return error


def columns_of(path: Path, encoding: str | None = files.UTF8) -> list[str]:
    """The names of the columns of a .csv or .parquet file. Raises ValueError that names the file if it has none."""
    if suffix(path) == ".parquet":
        from pyarrow import parquet

        with reading(path):
            return list(parquet.read_schema(path).names)
    try:
        row = next((row for row in csv.reader(_Lines(path, encoding), strict=True) if row), list[str]())
    except csv.Error as error:
        raise DataError(f"{path}:1: {error}") from error
    if not row:
        raise DataError(f"{path}: the file is empty")
    return row


def _json_rows(path: Path, columns: Columns, encoding: str | None) -> Rows:
    names = [str(name) for _, name in columns]
    for number, line in enumerate(files.path_lines(path, encoding), start=1):
        if isinstance(line, BadRow):
            yield line
        elif line.strip():
            try:
                if number == 1 and line.startswith("["):
                    raise BadRow(f"{path}: this file is a JSON list; expected a JSON object on each line")
                row: Any = files.parse_json(line, str(path), number)
                if not isinstance(row, dict):
                    kind = type(row).__name__
                    raise BadRow(f"{path}:{number}: expected a JSON object on each line, got {kind}")
                cells: Cells | BadRow = f"{path}:{number}", values_at(f"{path}:{number}", names, row)
            except BadRow as error:
                cells = error
            except KeyError:
                cells = BadRow(no_column(f"{path}:{number}", columns, list(row), nested=True))
            yield cells


class _Lines:
    """The lines of a file for a csv.reader. A bad line is raised, but the lines after it can still be read."""

    def __init__(self, path: Path, encoding: str | None):
        self.lines, self.number = files.path_lines(path, encoding), 0

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line = next(self.lines)
        self.number += 1
        if isinstance(line, BadRow):
            raise line
        return line


def _table_rows(path: Path, columns: Columns, encoding: str | None, **dialect: Any) -> Rows:
    lines = _Lines(path, encoding)
    reader, width, columns_read = csv.reader(lines, **dialect), None, []
    while True:
        first = lines.number + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except BadRow as error:
            yield error
            continue
        except csv.Error as error:
            began = f", in the row that begins in line {first}" if lines.number > first else ""
            yield BadRow(f"{path}:{lines.number}: {error}{began}")
            continue
        if not row:
            continue  # a blank line
        where = f"{path}:{lines.number}"
        if width is None:
            width = len(row)
            columns_read = _places(where, columns, row)
            if not is_number(columns[0][1]):
                continue  # the header
        if len(row) != width:  # also if there are too many: an unquoted comma would silently shift the columns
            expected = "the first row" if is_number(columns[0][1]) else "the header"
            yield BadRow(f"{where}: {len(row)} fields, but {expected} has {width}")
        else:
            yield where, tuple(row[number] for number in columns_read)


def _tab_rows(path: Path, columns: Columns, encoding: str | None) -> Rows:
    """Quotes are ordinary characters, unless every name in the header is in quotes."""
    header = next((str(line) for line in files.path_lines(path, encoding)), "").rstrip("\r\n").split("\t")
    if not is_number(columns[0][1]) and all(re.fullmatch('"[^"]*"', name) for name in header):
        return _table_rows(path, columns, encoding, delimiter="\t", strict=True)
    return _table_rows(path, columns, encoding, delimiter="\t", quoting=csv.QUOTE_NONE)


def _places(where: str, columns: Columns, first: list[str]) -> list[int]:
    """The indices of the columns in a row. `first` is the header or, if columns are given by number, the first row."""
    if len(first) == 1 and first[0] not in (name for _, name in columns) and re.search(r"[;|\t,]", first[0]):
        raise DataError(
            f"{where}: the only column is {first[0]!r}; the columns of a .csv file are separated by commas, "
            "and those of a .tsv file by tabs"
        )
    if not is_number(columns[0][1]):
        missing_columns(where, columns, first)
        return [first.index(str(name)) for _, name in columns]
    for key, number in columns:
        if int(number) >= len(first):
            raise DataError(f"{where}: {key}={number}: no such column; there are {len(first)}, numbered from 0")
    return [int(number) for _, number in columns]


def _parquet_rows(path: Path, columns: Columns, encoding: str | None) -> Rows:
    """`encoding` is ignored, because text in parquet files is UTF-8."""
    import pyarrow
    from pyarrow import parquet

    names, number = [str(name) for _, name in columns], 0
    try:
        with parquet.ParquetFile(path) as file:
            existing = file.schema_arrow.names
            missing_columns(str(path), columns, existing, nested=True)
            outers = list(dict.fromkeys(outer(name, existing) for name in names))
            for batch in file.iter_batches(columns=outers):
                cells = (batch.column(batch.schema.get_field_index(name)).to_pylist() for name in outers)
                for row in zip(*cells, strict=True):
                    number += 1
                    yield row_of(f"{path}: row {number}", names, dict(zip(outers, row, strict=True)))
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        said = str(error).removeprefix(f"{path}: ")
        raise DataError(f"{path}: cannot be read as parquet after row {number}: {said}") from error


READERS = {
    ".jsonl": _json_rows,
    ".json": _json_rows,
    ".csv": partial(_table_rows, strict=True),
    ".tsv": _tab_rows,
    ".parquet": _parquet_rows,
}
