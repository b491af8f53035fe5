"""Documents from text files: a line, a paragraph or a file each, or a column of a table of texts."""

import codecs
import glob
import gzip
import zlib
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from attnorm.data import checks, files, table_files
from attnorm.data.sources import Source

DOCUMENTS = ("line", "paragraph", "file")
OPTIONS = {"train": "files", "validation": "validation", "test": "test"}  # the option that names a split's files
_HEAD = 8192  # bytes of a file that are looked at before anything is read
_NAMED = 10  # problems with files that are listed for an entry; the others are counted


class TextFiles(Source):
    """`files`, `validation` and `test` are a path or a list of them: files (plain or .gz), folders (all files in them,
    hidden ones not, sorted) and globs. A .jsonl, .json, .csv, .tsv or .parquet file has a document in each row, in
    `column`; in other files each `document` is a "line", a "paragraph" (blank lines separate them) or the "file".

    Where `validation` is None, the share `holdout` of the documents of `files`, evenly spread, is the validation
    split, and train is the others.
    """

    yields = "documents"

    def __init__(
        self,
        *,
        files: str | Sequence[str],
        validation: str | Sequence[str] | None = None,
        test: str | Sequence[str] | None = None,
        holdout: float = 0.05,
        document: str = "line",
        column: str = "text",
    ):
        self.entries = {"train": files, "validation": validation, "test": test}
        self.holdout, self.document, self.column = holdout, document, column

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have files, or a share of them."""
        given = [split for split, entries in self.entries.items() if entries is not None]
        return tuple(split for split in OPTIONS if split in given or (split == "validation" and self.holdout))

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Impossible options; files that are missing, empty or not text; what nothing matches; a split without files;
        files of one split that are also in train."""
        problems = []
        if self.document not in DOCUMENTS:
            what = f"data.document={self.document}: no such kind of document"
            problems.append(checks.unknown(what, self.document, DOCUMENTS))
        problems += checks.non_empty_text("data.column", self.column)
        if not isinstance(self.holdout, (int, float)) or isinstance(self.holdout, bool) or not 0 <= self.holdout < 1:
            problems.append(f"data.holdout={self.holdout}: must be a share, at least 0 and below 1")
        elif "validation" in splits and self._held_out("validation") and not self.holdout:
            problems.append(
                "data.validation=null: the validation split is asked for; name its files, or set data.holdout above 0"
            )
        own = [split for split in splits if split != "validation" or not self._held_out(split)]
        if len(own) < len(splits) and "train" not in own:
            own.append("train")  # the validation split lies in its files
        for split in own:
            problems += self._file_problems(split)
        return problems

    def fingerprint(self, split: str) -> str:
        """A hash of the files, of their formats and of what cuts them into documents."""
        paths = self._paths(split)
        share = [split, self.holdout] if self._held_out(split) else None
        return files.digest(["text", 1, self.document, self.column, share, [_format(path) for path in paths]], *paths)

    def rows(self, split: str) -> Iterator[tuple[str]]:
        """Stream the documents. Raises ValueError, naming file and line, for what cannot be read."""
        documents = (text for path in self._paths(split) for text in self._read(path))
        if not self._held_out(split):
            yield from ((text,) for text in documents)
            return
        number = found = 0
        for number, text in enumerate(documents, start=1):
            # the running sum of the shares passes a half: 1 of 20 documents is number 10, 30, 50, ...
            held_out = int(number * self.holdout + 0.5) > int((number - 1) * self.holdout + 0.5)
            if held_out == (split == "validation"):
                found += 1
                yield (text,)
        if number and not found:
            raise ValueError(
                f"data.holdout={self.holdout}: no document is left for the {split} split, data.files has {number}; "
                "change the share or name the files of data.validation"
            )

    def _held_out(self, split: str) -> bool:
        """Whether the split is a part of the documents of `files`."""
        return self.entries["validation"] is None and split != "test"

    def _read(self, path: Path) -> Iterator[str]:
        if _format(path) != "text":
            for where, (cell,) in table_files.read(path, [("data.column", self.column)]):
                yield table_files.text_cell(where, self.column, cell)
            return
        lines = files.read_lines(path)
        if self.document == "file":
            yield "".join(lines)
        elif self.document == "line":
            yield from (line for line in lines if line.strip())
        else:
            yield from ("".join(group) for words, group in groupby(lines, lambda line: bool(line.strip())) if words)

    def _entries(self, split: str) -> list:
        """What the option of the split names, one by one."""
        entries = self.entries["train" if self._held_out(split) else split]
        return list(entries) if isinstance(entries, (list, tuple)) else [entries]

    def _paths(self, split: str) -> list[Path]:
        """The files of the split, each once, in the order in which they are named."""
        return list(dict.fromkeys(path for entry in self._entries(split) for path in _matching(entry)))

    def _file_problems(self, split: str) -> list[str]:
        option, entries = f"data.{OPTIONS[split]}", self._entries(split)
        if entries in ([], [None]):
            return [f"{option}={'[]' if entries == [] else 'null'}: the {split} split is asked for; name its files"]
        problems = []
        for entry in entries:
            if not isinstance(entry, str) or not entry:
                problems.append(f"{option}={entry}: must be a file, a folder or a glob, or a list of them")
                continue
            key, paths = f"{option}={entry}", _matching(entry)
            found = [problem for path in paths for problem in _problems(key, path)]
            if split != "train" and _usable(self._entries("train")):
                train = {path.resolve() for path in self._paths("train")}
                found += [f"{key}: also in data.files: {path}" for path in paths if path.resolve() in train]
            if not paths:
                found.append(f"{key}: {_nothing(entry)}")
            problems += found[:_NAMED]
            if len(found) > _NAMED:
                problems.append(f"{key}: {len(found) - _NAMED:,} more files with problems")
        return problems


def _usable(entries: list) -> bool:
    return all(isinstance(entry, str) and entry for entry in entries)


def _matching(entry: str) -> list[Path]:
    """The files that an entry stands for, sorted."""
    path = Path(entry)
    if path.is_dir():
        inside = (found.relative_to(path) for found in path.rglob("*") if found.is_file())
        return sorted(path / found for found in inside if not any(part.startswith(".") for part in found.parts))
    if path.exists():
        return [path]
    return sorted(found for found in map(Path, glob.glob(entry, recursive=True)) if found.is_file())


def _nothing(entry: str) -> str:
    if Path(entry).is_dir():
        return "no file in this folder"
    return "no file matches" if glob.has_magic(entry) else f"no such file: {entry}"


def _format(path: Path) -> str:
    """The ending of a table's format, or "text"."""
    suffix = table_files.suffix(path)
    return suffix if suffix in table_files.READERS else "text"


def _problems(key: str, path: Path) -> list[str]:
    """A problem if the file is empty, or if it begins with what is not text."""
    found = _format(path)
    problems = files.file_problem(key, path) if found == "text" else table_files.problem(key, path)
    return problems or ([] if found == ".parquet" else _not_text(key, path))


def _not_text(key: str, path: Path) -> list[str]:
    try:
        with files.open_bytes(path) as file:
            head = file.read(_HEAD)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        return [f"{key}: {path}: damaged gzip file: {error}"]
    places = [place for place in (head.find(0),) if place >= 0]
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the last character may go on behind the head
    except UnicodeDecodeError as error:
        places.append(error.start)
    if not places:
        return []
    place = min(places)
    line = head.count(b"\n", 0, place) + 1
    return [f"{key}: {path}:{line}: not UTF-8 text (byte {place} is 0x{head[place]:02x})"]
