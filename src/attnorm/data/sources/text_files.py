"""Documents from text files: each line, paragraph or file is a document, or each row of a table."""

import glob
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attnorm.data.readers import table_files
from attnorm.data.readers import text as files
from attnorm.data.readers.bad_rows import BadRow, usable
from attnorm.data.readers.documents import Unit, documents
from attnorm.data.sources.base import DOCUMENTS, DividedTrain, Entries, entries_of, matching_files
from attnorm.errors import Problem
from attnorm.schema import Share

OPTIONS = {"train": "files", "validation": "validation", "test": "test"}  # the option with the files of a split
_NAMED = 10  # maximum number of listed problems per entry; the others are only counted


class TextFiles(DividedTrain):
    """`files`, `validation` and `test` are a path or a list of paths: files, folders and globs.

    Files may be plain or gzipped. A folder stands for all files in it except hidden ones, sorted. A .jsonl, .json,
    .csv, .tsv or .parquet file has one document per row, in `column`. In other files, each `document` is a "line", a
    "paragraph" (separated by blank lines) or the whole "file".

    If `validation` is None, the share `holdout` of the documents of `files`, evenly spaced, is the validation split,
    and the others are the train split.
    encoding: the encoding of all files except parquet files.
    skip_bad: skip unreadable lines and rows and log their number, instead of raising an error.
    """

    schema = DOCUMENTS

    def __init__(
        self,
        *,
        files: Entries,
        validation: Entries | None = None,
        test: Entries | None = None,
        holdout: Share = 0.05,
        document: Unit = "line",
        column: table_files.Column = "text",
        encoding: str = "utf-8",
        skip_bad: bool = False,
    ):
        self.named = {"train": files, "validation": validation, "test": test}
        self.holdout, self.document, self.column = holdout, document, column
        self.encoding, self.skip_bad = encoding, skip_bad

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Problems with the options and the files.

        These are files that are missing, empty or not text; entries that match nothing; splits without
        files; and files of other splits that are also in train.
        """
        paths = [path for split in splits for path in self._paths(split)]
        tables = [path for path in paths if _format(path) != "text"]
        problems: list[str] = table_files.column_problems([("data.column", self.column)], tables)
        problems += self.holdout_problems(splits, "files")
        problems += table_files.encoding_problems(self.encoding, paths)
        for split in dict.fromkeys(map(self.origin, splits)):
            problems += self._file_problems(split)
        return problems

    def fingerprint(self, split: str) -> str:
        """A hash of the files, of their formats, and of the settings that divide them into documents."""
        paths = self._paths(split)
        share = [split, self.holdout] if self.is_divided(split) else None
        settings = ["text", 1, self.document, self.column, share, [_format(path) for path in paths]]
        return files.digest([*settings, *files.reading_settings(self.encoding, self.skip_bad)], *paths)

    def rows(self, split: str) -> Iterator[tuple[str]]:
        """Streams the documents. Raises ValueError that names file and line if something cannot be read."""
        texts: Iterator[Any] = (text for path in self._paths(split) for text in self._read(path))
        return self.part(usable(texts, self._row, self.skip_bad), split, "data.files")

    def _read(self, path: Path) -> Iterator[str | table_files.Cells | BadRow]:
        if _format(path) == "text":
            return documents(files.path_lines(path, self.encoding), self.document)
        return table_files.read_rows(path, [("data.column", self.column)], self.encoding)

    def _row(self, document: str | table_files.Cells) -> tuple[str]:
        if isinstance(document, str):
            return (document,)
        where, (cell,) = document
        return (table_files.text_cell(where, self.column, cell),)

    def _entries(self, split: str) -> list[str]:
        """The entries of the option that names the files of the split."""
        return entries_of(self.named[self.origin(split)])

    def _paths(self, split: str) -> list[Path]:
        """The distinct files of the split, in the order in which they are named."""
        return list(dict.fromkeys(path for entry in self._entries(split) for path in _matching(entry)))

    def _file_problems(self, split: str) -> list[str]:
        option, entries = f"data.{OPTIONS[split]}", self._entries(split)
        if not entries:
            return [Problem(option, f"the {split} split is asked for; name its files", self.named[split])]
        problems: list[str] = []
        for entry in entries:
            key, paths = f"{option}={entry}", _matching(entry)
            wrong: list[str] = []
            for path in paths:
                check = files.text_problem if _format(path) == "text" else table_files.problem
                wrong += check(key, path, self.encoding, self.skip_bad)
            if split != "train":
                train = {path.resolve() for path in self._paths("train")}
                wrong += [f"{key}: also in data.files: {path}" for path in paths if path.resolve() in train]
            if not paths and Path(entry).is_dir():
                wrong.append(f"{key}: no file in this folder")
            elif not paths:
                wrong.append(f"{key}: {'no file matches' if glob.has_magic(entry) else f'no such file: {entry}'}")
            problems += wrong[:_NAMED]
            if len(wrong) > _NAMED:
                problems.append(f"{key}: {len(wrong) - _NAMED:,} more files with problems")
        return problems


def _matching(entry: str) -> list[Path]:
    """The files that match an entry, which may be a folder, sorted."""
    return files.files_in(Path(entry)) if Path(entry).is_dir() else matching_files(entry)


def _format(path: Path) -> str:
    """The file name extension of a table's format, or "text"."""
    suffix = table_files.suffix(path)
    return suffix if suffix in table_files.READERS else "text"
