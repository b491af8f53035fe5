"""Reads text files line by line: plain or compressed (gzip, xz), in any encoding. Lines are separated by '\\n' only."""

import codecs
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from attnorm.data.readers.bad_rows import BadRow
from attnorm.errors import DataError
from attnorm.imports import nearest

UTF8 = "utf-8"
Opened = io.BufferedReader | gzip.GzipFile | lzma.LZMAFile
LONGEST = 1 << 24  # characters of a line
_HEAD = 8192  # bytes of a file that are checked in advance
_DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)  # what reading damaged compressed data raises
_BYTES = re.compile("[\udc00-\udcff]")  # replace bytes that cannot be decoded
_WIDE = (  # the byte order marks, the longer ones first
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def _escape(error: UnicodeError) -> tuple[str, int]:
    """As the error handler "surrogateescape" of Python, but also for bytes below 128, which UTF-16 may contain."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "".join(chr(0xDC00 + byte) for byte in error.object[error.start : error.end]), error.end


codecs.register_error("attnorm.escape", _escape)


@contextmanager
def open_bytes(path: Path) -> Iterator[Opened]:
    """Opens a file for reading. Gzipped content is decompressed, regardless of the file's name."""
    with path.open("rb") as file:
        yield unpacked(file)


def unpacked(file: io.BufferedReader) -> Opened:
    """An open file, decompressed if its content is compressed by gzip or xz."""
    if file.peek(6).startswith(b"\xfd7zXZ\0"):
        return lzma.LZMAFile(file)
    return gzip.GzipFile(fileobj=file) if file.peek(2).startswith(b"\x1f\x8b") else file


def text_lines(file: Opened, name: str, encoding: str | None = None) -> Iterator[str | BadRow]:
    """Yields the lines of an open file, each with its '\\n', as soon as they are available.

    A byte order mark is dropped; that of UTF-16 or UTF-32 decides the encoding. A line with bytes that are not text is
    yielded as a BadRow. str.splitlines would also split at \\x85 and \\u2028, which real headlines contain, and shift
    all later pairs.

    name:     the file's name, for messages.
    encoding: None means UTF-8 that the user cannot change.

    Raises ValueError for a file that is not text in lines: UTF-16 without a mark if another encoding is expected, UTF-8
    if UTF-16 is, lines that end in '\\r' only, lines longer than LONGEST, and damaged compressed data.
    """
    with _decoded(file, name, encoding) as (text, actual):
        yield from _checked(iter(partial(text.readline, LONGEST + 1), ""), name, actual)


@contextmanager
def _decoded(file: Opened, name: str, encoding: str | None) -> Iterator[tuple[io.TextIOWrapper, str | None]]:
    """The text of an open file, with undecodable bytes escaped, and its encoding."""
    try:
        encoding = _encoding_of(file.peek(_HEAD), name, encoding)
    except _DAMAGE as error:
        raise DataError(f"{name}:1: damaged compressed file: {error}") from error
    text = io.TextIOWrapper(file, encoding or UTF8, "attnorm.escape", newline="\n")
    try:
        yield text, encoding
    finally:
        if not file.closed:  # a reader that was not read to its end may be collected after its file
            text.detach()  # so that the file is not closed with `text`


def _checked(text: Iterable[str], name: str, encoding: str | None = None, whole: bool = True) -> Iterator[str | BadRow]:
    """The lines of a text whose undecodable bytes are escaped. whole: False for the beginning of a text."""
    number = 0
    try:
        for number, line in enumerate(text, start=1):
            if len(line) > LONGEST:
                raise DataError(f"{name}:{number}: longer than {LONGEST:,} characters, so this is not text in lines")
            if number == 1:
                line = line.removeprefix("\ufeff")
                if whole and not line.endswith("\n") and "\r" in line.rstrip("\r"):
                    ends = "its lines end in a carriage return alone (\\r); convert the line ends to \\n"
                    raise DataError(f"{name}: {ends}")
            if not line.isascii() and (byte := _BYTES.search(line)):
                said = "UTF-8" if encoding is None or is_utf8(encoding) else encoding
                other = "" if encoding is None else "; convert it, or set data.encoding if all files are in another one"
                position = f"character {byte.start() + 1} of the line is the byte 0x{ord(byte[0]) - 0xDC00:02x}"
                yield BadRow(f"{name}:{number}: not {said} text ({position}){other}")
            elif "\0" in line:
                position = f"character {line.index(chr(0)) + 1} of the line"
                yield BadRow(f"{name}:{number}: a NUL byte ({position}), so this is not text")
            elif line:
                yield line
    except _DAMAGE as error:
        raise DataError(f"{name}:{number + 1}: damaged compressed file: {error}") from error
    except OSError as error:
        raise DataError(f"{name}:{number + 1}: cannot be read: {error.strerror}") from error


def _encoding_of(head: bytes, name: str, encoding: str | None) -> str | None:
    """The encoding of a file that starts so: that of its byte order mark, or the expected one.

    Raises DataError if it starts like UTF-16 without a mark, or like UTF-8 where UTF-16 or UTF-32 is expected.
    """
    marked = next((wide for mark, wide in _WIDE if head.startswith(mark)), None)
    if marked is not None:
        return marked
    other = None
    if codecs.lookup(encoding or UTF8).name.startswith(("utf-16", "utf-32")):
        other = "UTF-8" if b"\n" in head and 0 not in head else None  # in UTF-16, every end of a line has a zero
    else:
        evens, odds = (head[start:_HEAD:2] for start in (0, 1))
        fewer, more = sorted((evens.count(0), odds.count(0)))
        if fewer <= len(odds) / 8 < len(odds) / 2 < more:  # every other byte is 0: two bytes per letter
            other = "UTF-16-LE" if odds.count(0) == more else "UTF-16-BE"
    if other:
        expected = encoding or "UTF-8"
        every = "" if encoding is None else f", or set data.encoding={other.lower()} if all files are"
        raise DataError(f"{name}: this file is {other}, not {expected}; convert it to {expected}{every}")
    return encoding


def is_utf8(encoding: str) -> bool:
    return codecs.lookup(encoding).name == UTF8


def reading_settings(encoding: str, skip_bad: bool) -> list:
    """Those of these settings that differ from the defaults and affect the rows, for a fingerprint."""
    return [["encoding", encoding]] * (not is_utf8(encoding)) + ["skip_bad"] * skip_bad


def encoding_problem(encoding: object) -> list[str]:
    """A problem if `encoding` is not the name of a text encoding of Python."""
    try:
        if isinstance(encoding, str):
            decoder = codecs.getincrementaldecoder(encoding)("attnorm.escape")
            if decoder.decode("a\n".encode(encoding), True) == "a\n":
                return []
    except (LookupError, TypeError, ValueError, AssertionError):  # AssertionError: some codecs know "strict" alone
        pass
    from encodings.aliases import aliases

    names = sorted({name.replace("_", "-") for name in aliases.values()} - {"hex-codec", "base64-codec"})
    said = f"data.encoding={encoding}: not a text encoding of Python"
    return [f"{said}; allowed: utf-8, utf-16, latin-1, cp1252, ...{nearest(encoding, names)}"]


def read_lines(path: Path, encoding: str | None = None) -> Iterator[str]:
    """Streams the lines of a file, like `text_lines`. Also raises ValueError for a line that is not text."""
    for line in path_lines(path, encoding):
        if isinstance(line, BadRow):
            raise line
        yield line


def path_lines(path: Path, encoding: str | None = None) -> Iterator[str | BadRow]:
    """`text_lines` of a file."""
    with open_bytes(path) as file:
        yield from text_lines(file, str(path), encoding)


def count_lines(path: Path, encoding: str | None = None) -> int:
    """The number of lines of `path_lines`. Raises ValueError for damaged data and for unexpected encodings."""
    with open_bytes(path) as file, _decoded(file, str(path), encoding) as (text, _):
        number = 0
        try:
            for _ in text:
                number += 1
        except _DAMAGE as error:
            raise DataError(f"{path}:{number + 1}: damaged compressed file: {error}") from error
        return number


def read_json(path: Path, unique_keys: bool = False) -> Any:
    """The JSON document in a file, plain or compressed, in UTF-8, UTF-16 or UTF-32.

    unique_keys: whether an object with the same key twice is an error. Raises ValueError, naming the line, for anything
    that is not JSON or that Python cannot hold.
    """
    try:
        with open_bytes(path) as file:
            content = file.read()
    except _DAMAGE as error:
        raise DataError(f"{path}: damaged compressed file: {error}") from error
    encoding = json.detect_encoding(content)
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        where = f"byte {error.start} is 0x{content[error.start]:02x}"
        raise DataError(f"{path}:{line}: not {encoding.upper().removesuffix('-SIG')} text ({where})") from error
    return parse_json(text, str(path), unique_keys=unique_keys)


def parse_json(text: str, name: str, number: int | None = None, unique_keys: bool = False) -> object:
    """The JSON value that is spelled in `text`.

    number: the line of the file that the text is; None if it is the whole file. Raises BadRow, naming file and line,
    for anything that is not JSON or that Python cannot hold.
    """
    where = f"{name}:{number}" if number else name
    try:
        return json.loads(text, object_pairs_hook=_unique if unique_keys else None)
    except json.JSONDecodeError as error:
        line = f"{name}:{number or error.lineno}"
        raise BadRow(f"{line}: not JSON ({error.msg} at column {error.colno})") from error
    except RecursionError:
        raise BadRow(f"{where}: JSON nested too deeply") from None
    except ValueError as error:  # a number of more than 4,300 digits, or a key twice
        raise BadRow(f"{where}: cannot be read as JSON: {error}") from error


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    content = dict(pairs)
    if len(content) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise DataError(f"an object has a repeated key, {json.dumps(twice)[:60]}")
    return content


def files_in(folder: Path) -> list[Path]:
    """The files in a folder and its subfolders, except hidden ones, sorted."""
    inside = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(folder / path for path in inside if not any(part.startswith(".") for part in path.parts))


def file_problem(key: str, path: Path) -> list[str]:
    """A problem if `path` is not a readable, nonempty file."""
    try:
        if not path.exists():
            return [f"{key}: no such file: {path}"]
        if not path.is_file():
            return [f"{key}: not a file: {path}"]
        if path.stat().st_size == 0:
            return [f"{key}: the file is empty: {path}"]
    except OSError as error:  # for example no permission for the folder, or a name that is too long
        return [f"{key}: {error.strerror}: {path}"]
    return [] if os.access(path, os.R_OK) else [f"{key}: no permission to read: {path}"]


def text_problem(key: str, path: Path, encoding: str, skip_bad: bool) -> list[str]:
    """A problem if the file cannot be read, or does not start with text in this encoding."""
    if problems := file_problem(key, path):
        return problems
    if encoding_problem(encoding):
        return []  # reported for data.encoding
    try:
        with open_bytes(path) as file:
            head = file.read(_HEAD)
        actual = _encoding_of(head, str(path), encoding) or UTF8
        whole = len(head) < _HEAD  # or it may end inside a character
        text = io.StringIO(codecs.getincrementaldecoder(actual)("attnorm.escape").decode(head, whole), newline="\n")
        for line in _checked(text, str(path), actual, whole):
            if isinstance(line, BadRow) and not skip_bad:
                raise line
    except _DAMAGE as error:
        return [f"{key}: {path}: damaged compressed file: {error}"]
    except ValueError as error:
        return [f"{key}: {error}"]
    return []


def digest(settings: object, *paths: Path) -> str:
    """A hash of JSON-serializable settings and file contents. Paths are not part of it, so that data may be moved."""
    hashed = hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=16)
    for path in paths:
        with path.open("rb") as file:
            hashed.update(hashlib.file_digest(file, "blake2b").digest())
    return hashed.hexdigest()
