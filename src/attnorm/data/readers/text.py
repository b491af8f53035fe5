"""Reads text files line by line: plain or gzipped, in any encoding. Lines are separated by '\\n' only."""

import codecs
import gzip
import hashlib
import io
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from attnorm.data.readers.bad_rows import BadRow
from attnorm.errors import DataError
from attnorm.imports import nearest

UTF8 = "utf-8"
_CHUNK = 1 << 20
_HEAD = 8192  # bytes of a file that are checked in advance
_DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile)  # what reading damaged gzip data raises
_BAD = re.compile("\udcff(\\d+),(..)\udcff")  # replaces bytes that cannot be decoded
_WIDE = (  # the byte order marks, the longer ones first
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


def _mark(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return f"\udcff{error.start},{error.object[error.start]:02x}\udcff", error.end


codecs.register_error("attnorm.mark", _mark)


@contextmanager
def open_bytes(path: Path) -> Iterator[io.BufferedIOBase]:
    """Opens a file for reading. Gzipped content is decompressed, regardless of the file's name."""
    with path.open("rb") as file:
        yield unpacked(file)


def unpacked(file: io.BufferedReader) -> io.BufferedIOBase:
    """An open file, decompressed if its content is gzipped."""
    return gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == b"\x1f\x8b" else file


def lines(
    file: io.BufferedIOBase, name: str, encoding: str | None = None, whole: bool = True
) -> Iterator[str | BadRow]:
    """Yields the lines of an open file, each with its '\\n', as soon as they are available.

    A byte order mark is dropped. A line with bytes that are not text is yielded as a BadRow. str.splitlines would also
    split at \\x85 and \\u2028, which real headlines contain, and shift all later pairs.

    name:     the file's name, for messages.
    encoding: None means UTF-8 that the user cannot change.
    whole:    False for the beginning of a file, which may end inside a character.

    Raises ValueError for a file that is not text in lines: UTF-16 if another encoding is expected, lines that end in
    '\\r' only, and damaged gzip data.
    """
    number, begun = 0, []  # the parts of a line whose end has not been read yet
    try:
        for text in _decoded(file, name, encoding, whole):
            if "\n" not in text:
                begun.append(text)
                continue
            text = "".join((*begun, text))
            *ended, last = text.split("\n")
            doubtful = "\0" in text or "\udcff" in text
            for line in ended:
                number += 1
                yield _checked(f"{line}\n", f"{name}:{number}", encoding) if doubtful else f"{line}\n"
            begun = [last]
    except _DAMAGE as error:
        raise DataError(f"{name}:{number + 1}: damaged gzip file: {error}") from error
    rest = "".join(begun)
    if number == 0 and whole and "\r" in rest.rstrip("\r"):
        raise DataError(f"{name}: its lines end in a carriage return alone (\\r); convert the line ends to \\n")
    if rest:
        yield _checked(rest, f"{name}:{number + 1}", encoding)


def _decoded(file: io.BufferedIOBase, name: str, encoding: str | None, whole: bool) -> Iterator[str]:
    """The text, in chunks. Bytes that cannot be decoded are replaced by `_BAD` with their position in the file."""
    decoder = codecs.getincrementaldecoder(encoding or UTF8)("attnorm.mark")
    read, more, begun = 0, True, False
    while more:
        chunk = file.read1(_CHUNK)  # returns available data, so that lines from a pipe are not delayed
        more = bool(chunk)
        if not read:
            _refuse_wide(chunk, name, encoding)
        pending = read - len(decoder.getstate()[0])
        text = decoder.decode(chunk, not more and whole)
        if "\udcff" in text:
            text = _BAD.sub(partial(_shifted, pending), text)
        if text:
            yield text if begun else text.removeprefix("\ufeff")
            begun = True
        read += len(chunk)


def _checked(line: str, where: str, encoding: str | None) -> str | BadRow:
    if "\udcff" in line and (found := _BAD.search(line)):
        said = "UTF-8" if encoding is None or is_utf8(encoding) else encoding
        other = "" if encoding is None else "; if it is in another encoding, set data.encoding"
        return BadRow(f"{where}: not {said} text (byte {found[1]} is 0x{found[2]}){other}")
    if "\0" in line:
        return BadRow(f"{where}: a NUL byte (character {line.index(chr(0)) + 1} of the line), so this is not text")
    return line


def _refuse_wide(head: bytes, name: str, encoding: str | None) -> None:
    """Raises ValueError if a file starts like UTF-16 or UTF-32, unless that is the encoding."""
    if codecs.lookup(encoding or UTF8).name.startswith(("utf-16", "utf-32")):
        return
    found = next((wide for mark, wide in _WIDE if head.startswith(mark)), None)
    evens, odds = (head[start:_HEAD:2] for start in (0, 1))
    fewer, more = sorted((evens.count(0), odds.count(0)))
    if found is None and fewer <= len(odds) / 8 < len(odds) / 2 < more:  # every other byte is 0: two bytes per letter
        found = "UTF-16-LE" if odds.count(0) == more else "UTF-16-BE"
    if found:
        advice = "convert it to UTF-8" if encoding is None else f"set data.encoding={found.lower()}"
        raise DataError(f"{name}: this file is {found}, not {encoding or 'UTF-8'}; {advice}")


def is_utf8(encoding: str) -> bool:
    return codecs.lookup(encoding).name == UTF8


def _shifted(by: int, found: re.Match[str]) -> str:
    """A `_BAD` whose place counts from `by` bytes further back."""
    return f"\udcff{by + int(found[1])},{found[2]}\udcff"


def encoding_problem(encoding: object) -> list[str]:
    """A problem if `encoding` is not the name of a text encoding of Python."""
    try:
        if isinstance(encoding, str):
            decoder = codecs.getincrementaldecoder(encoding)("attnorm.mark")
            if decoder.decode("a\n".encode(encoding), True) == "a\n":
                return []
    except (LookupError, TypeError, ValueError, AssertionError):  # AssertionError: some codecs know "strict" alone
        pass
    from encodings.aliases import aliases

    names = sorted({name.replace("_", "-") for name in aliases.values()} - {"hex-codec", "base64-codec"})
    said = f"data.encoding={encoding}: not a text encoding of Python"
    return [f"{said}; allowed: utf-8, utf-16, latin-1, cp1252, ...{nearest(encoding, names)}"]


def read_lines(path: Path, encoding: str | None = None) -> Iterator[str]:
    """Streams the lines of a file, like `lines`. Also raises ValueError for a line that is not text."""
    for line in path_lines(path, encoding):
        if isinstance(line, BadRow):
            raise line
        yield line


def path_lines(path: Path, encoding: str | None = None) -> Iterator[str | BadRow]:
    """`lines` of a file."""
    with open_bytes(path) as file:
        yield from lines(file, str(path), encoding)


def count_lines(path: Path, encoding: str | None = None) -> int:
    """The number of lines of `path_lines`. Raises ValueError for damaged gzip data and for unexpected UTF-16."""
    number, last = 0, ""
    try:
        with open_bytes(path) as file:
            for text in _decoded(file, str(path), encoding, True):
                number += text.count("\n")
                last = text[-1]
    except _DAMAGE as error:
        raise DataError(f"{path}:{number + 1}: damaged gzip file: {error}") from error
    return number + (last not in ("", "\n"))


def read_json(path: Path, unique_keys: bool = False) -> Any:
    """The JSON document in a file, plain or gzipped, in UTF-8, UTF-16 or UTF-32.

    unique_keys: whether an object with the same key twice is an error. Raises ValueError, naming the line, for anything
    that is not JSON or that Python cannot hold.
    """
    try:
        with open_bytes(path) as file:
            content = file.read()
    except _DAMAGE as error:
        raise DataError(f"{path}: damaged gzip file: {error}") from error
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
        place = f"{name}:{number or error.lineno}"
        raise BadRow(f"{place}: not JSON ({error.msg} at column {error.colno})") from error
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
        for line in lines(io.BytesIO(head), str(path), encoding, whole=len(head) < _HEAD):
            if isinstance(line, BadRow) and not skip_bad:
                raise line
    except _DAMAGE as error:
        return [f"{key}: {path}: damaged gzip file: {error}"]
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
