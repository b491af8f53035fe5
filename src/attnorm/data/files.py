"""Reading text files line by line: plain or gzipped, UTF-8, split at '\\n' and nothing else."""

import gzip
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_CHUNK = 1 << 20
_GZIP = b"\x1f\x8b"


def open_bytes(path: Path) -> BinaryIO:
    """Open for reading, through gzip if the content starts as gzip does or the name ends in .gz."""
    file = path.open("rb")
    if path.suffix != ".gz" and file.peek(2)[:2] != _GZIP:
        return file
    file.close()
    return gzip.open(path, "rb")


def read_lines(path: Path) -> Iterator[str]:
    """Stream the lines, each with its '\\n'; a byte order mark at the start is dropped.

    str.splitlines would also split at \\x85 and \\u2028, which real headlines contain, and shift every later pair.
    Raises ValueError with file, line and byte where the text is not UTF-8 or the gzip data is damaged.
    """
    number, offset = 0, 0
    try:
        with open_bytes(path) as file:
            for number, line in enumerate(file, start=1):
                try:
                    yield line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    where = f"byte {offset + error.start} is 0x{line[error.start]:02x}"
                    raise ValueError(f"{path}:{number}: not UTF-8 text ({where})") from error
                offset += len(line)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}:{number + 1}: damaged gzip file: {error}") from error


def count_lines(path: Path) -> int:
    """How many lines `read_lines` would give, and raises what it raises for damaged gzip data."""
    lines, last = 0, b"\n"
    try:
        with open_bytes(path) as file:
            while chunk := file.read(_CHUNK):
                lines += chunk.count(b"\n")
                last = chunk[-1:]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}:{lines + 1}: damaged gzip file: {error}") from error
    return lines + (last != b"\n")


def read_json(path: Path, unique_keys: bool = False) -> object:
    """The JSON document in a file, plain or gzipped. unique_keys: whether an object with a key twice is an error.

    Raises ValueError, naming file and line, for anything that is not JSON or that Python cannot hold.
    """
    text = "".join(read_lines(path))
    try:
        return json.loads(text, object_pairs_hook=_unique if unique_keys else None)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: not JSON ({error.msg} at column {error.colno})") from error
    except RecursionError as error:
        raise ValueError(f"{path}: lists or objects are nested too deeply") from error
    except ValueError as error:  # a key twice, or a number of thousands of digits
        raise ValueError(f"{path}: {error}") from error


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    content = dict(pairs)
    if len(content) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"an object has the key {json.dumps(twice)[:60]} twice")
    return content


def file_problem(key: str, path: Path) -> list[str]:
    """A problem if `path` is not a file with something in it."""
    if not path.exists():
        return [f"{key}: no such file: {path}"]
    if not path.is_file():
        return [f"{key}: not a file: {path}"]
    return [f"{key}: the file is empty: {path}"] if path.stat().st_size == 0 else []


def digest(settings: object, *paths: Path) -> str:
    """A hash of JSON-able settings and of the contents of files; their names do not count, so that data may move."""
    hashed = hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=16)
    for path in paths:
        with path.open("rb") as file:
            hashed.update(hashlib.file_digest(file, "blake2b").digest())
    return hashed.hexdigest()
