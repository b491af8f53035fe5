"""Tables in files: JSON lines, CSV, TSV (each plain or .gz) or parquet, read column by name and row by row.

The ending decides the format: .jsonl or .json (one object a line), .csv (comma, quotes as spreadsheets write them),
.tsv (tab, quotes are ordinary characters), each also with .gz; .parquet.
"""

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from attnorm.data import checks, files

Columns = Sequence[tuple[str, str]]  # (config key, name of the column)
Rows = Iterator[tuple[str, tuple[object, ...]]]  # ("file:line", cells)


def read(path: Path, columns: Columns) -> Rows:
    """Stream these columns. Raises ValueError, naming file and line, for a row or column that is not right."""
    return _reader(path)(path, columns)


def problem(key: str, path: Path) -> list[str]:
    """A problem if `path` has an unknown format, or is not a file with something in it."""
    if _reader(path) is None:
        return [f"{key}: unknown format (allowed: {', '.join(READERS)}; text formats also with .gz)"]
    return files.file_problem(key, path)


def suffix(path: Path) -> str:
    """The ending that decides the format, without .gz."""
    return path.with_suffix("").suffix.lower() if path.suffix == ".gz" else path.suffix.lower()


def _reader(path: Path):
    found = suffix(path)
    return None if found == ".parquet" and path.suffix == ".gz" else READERS.get(found)


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


def missing_columns(where: str, wanted: Columns, there: Sequence[str]) -> None:
    """Raise ValueError if a column of `wanted` is not in `there`, naming those that are."""
    for key, name in wanted:
        if name not in there:
            raise ValueError(checks.unknown(f"{where}: {key}={name}: no such column", name, map(str, there)))


def _json_rows(path: Path, columns: Columns) -> Rows:
    names = [name for _, name in columns]
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
        try:
            yield where, tuple(row[name] for name in names)
        except KeyError:
            missing_columns(where, columns, list(row))


def _csv_rows(path: Path, columns: Columns) -> Rows:
    yield from _table_rows(path, columns, csv.reader(files.read_lines(path), strict=True))


def _tsv_rows(path: Path, columns: Columns) -> Rows:
    yield from _table_rows(path, columns, csv.reader(files.read_lines(path), delimiter="\t", quoting=csv.QUOTE_NONE))


def _table_rows(path: Path, columns: Columns, reader) -> Rows:
    try:
        header = next(reader, [])
        missing_columns(f"{path}:1", columns, header)
        places = [header.index(name) for _, name in columns]
        for row in reader:
            if not row:
                continue  # a blank line
            if len(row) != len(header):  # too many, too: an unquoted comma would shift the columns silently
                raise ValueError(f"{path}:{reader.line_num}: {len(row)} fields where the header has {len(header)}")
            yield f"{path}:{reader.line_num}", tuple(row[place] for place in places)
    except csv.Error as error:
        raise ValueError(f"{path}:{reader.line_num}: {error}") from error


def _parquet_rows(path: Path, columns: Columns) -> Rows:
    import pyarrow
    from pyarrow import parquet

    names, number = [name for _, name in columns], 0
    try:
        with parquet.ParquetFile(path) as file:
            missing_columns(str(path), columns, file.schema_arrow.names)
            for batch in file.iter_batches(columns=list(dict.fromkeys(names))):
                cells = (batch.column(batch.schema.get_field_index(name)).to_pylist() for name in names)
                for row in zip(*cells, strict=True):
                    number += 1
                    yield f"{path}: row {number}", row
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path}: cannot be read as parquet after row {number}: {error}") from error


READERS = {".jsonl": _json_rows, ".json": _json_rows, ".csv": _csv_rows, ".tsv": _tsv_rows, ".parquet": _parquet_rows}
