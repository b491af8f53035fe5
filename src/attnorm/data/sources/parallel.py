"""Sentences with their translations: the structure of the rows, and files in Moses format."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from attnorm.data.readers import text as files
from attnorm.data.readers.bad_rows import BadRow, usable
from attnorm.data.sources.base import RowSchema, Source
from attnorm.data.sources.table_source import reading_settings
from attnorm.errors import DataError
from attnorm.schema import Text

PARALLEL = RowSchema("parallel", "pair", *[("source", "target")] * 4)
FileName = Annotated[str, Field(pattern="^[^/]+$", description="part of a file's name, such as de or train")]
AUTO, NAMES = "auto", ("valid", "val", "dev", "validation")  # of validation files


class ParallelFiles(Source):
    """Pairs from a folder with two files per split, one per language, as the Moses tools use them.

    dir:  the folder. Line i of `train.de` belongs to line i of `train.en`. Each file may be plain or .gz; if both
          exist, the plain one is read.
    source_language, target_language: the endings of the files' names.
    train, validation, test: the names of the splits' files without the ending; None: there is no such split. "auto"
          for validation: valid, val, dev or validation, whichever is there.
    encoding: the encoding of all files. skip_bad: skip pairs with a line that is not text and log their number, instead
          of raising an error.
    """

    schema = PARALLEL

    def __init__(
        self,
        *,
        dir: Text,
        source_language: FileName,
        target_language: FileName,
        train: FileName = "train",
        validation: FileName | None = AUTO,
        test: FileName | None = None,
        encoding: str = files.UTF8,
        skip_bad: bool = False,
    ):
        self.dir, self.encoding, self.skip_bad = dir, encoding, skip_bad
        self.languages = {"source_language": source_language, "target_language": target_language}
        self.stems = {"train": train, "validation": validation, "test": test}

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(split for split, stem in self.stems.items() if stem is not None)

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Missing or empty files, a missing folder, and equal languages."""
        problems = [
            *files.encoding_problem(self.encoding),
            *(f"data.{split}=null: must be the name of its files" for split in splits if self.stems[split] is None),
        ]
        source, target = self.languages.values()
        if source == target:
            problems.append(f"data.target_language={target}: must differ from data.source_language")
        return problems or self._folder_problems(splits)

    def _folder_problems(self, splits: Sequence[str]) -> list[str]:
        key = f"data.dir={self.dir}"
        if not Path(self.dir).is_dir():
            return [f"{key}: no such folder"]
        there = self._names_there()
        if "validation" in splits and self.stems["validation"] == AUTO and len(there) != 1:
            several = f"{' and '.join(there)} all name validation files there; type data.validation=<one of them>"
            none = f"no validation files; expected {', '.join(NAMES)} with the endings of the languages"
            return [f"{key}: {several if there else f'{none}, or another name as data.validation=<name>'}"]
        return [
            problem
            for split in splits
            for path in self._paths(split)
            for problem in files.text_problem(key, path, self.encoding, self.skip_bad)
        ]

    def fingerprint(self, split: str) -> str:
        """A hash of the two files as stored on disk, and of all settings that determine their rows."""
        return files.digest(["moses", 1, *reading_settings(self.encoding, self.skip_bad)], *self._paths(split))

    def rows(self, split: str) -> Iterator[tuple[str, str]]:
        """Streams the pairs. Raises DataError before the first one if the two files differ in length."""
        paths = self._paths(split)
        counts = [files.count_lines(path, self.encoding) for path in paths]
        names = [path.name for path in paths]
        if counts[0] != counts[1]:
            raise DataError(
                f"data.dir={self.dir}: {names[0]} has {counts[0]:,} lines but {names[1]} has {counts[1]:,}: "
                "line i of one must be the translation of line i of the other"
            )
        if counts[0] == 0:
            raise DataError(f"data.dir={self.dir}: {names[0]} and {names[1]} are empty")
        lines = zip(*(files.path_lines(path, self.encoding) for path in paths), strict=True)
        yield from usable(lines, _pair, self.skip_bad)

    def _paths(self, split: str) -> tuple[Path, Path]:
        """The two files of a split."""
        stem = self.stems[split]
        return self._files([*self._names_there(), NAMES[0]][0] if split == "validation" and stem == AUTO else stem)

    def _names_there(self) -> list[str]:
        """Those of NAMES of which there is a file."""
        return [name for name in NAMES if any(path.exists() for path in self._files(name))]

    def _files(self, stem: str | None) -> tuple[Path, Path]:
        """The two files of this name: the plain one, or its .gz if only that exists."""
        plain = [Path(self.dir) / f"{stem}.{language}" for language in self.languages.values()]
        packed = [path.with_name(f"{path.name}.gz") for path in plain]
        source, target = (p if p.exists() or not z.exists() else z for p, z in zip(plain, packed, strict=True))
        return source, target


def _pair(lines: tuple[str | BadRow, str | BadRow]) -> tuple[str, str]:
    """The two lines without their ends. Raises BadRow if one of them is bad."""
    for line in lines:
        if isinstance(line, BadRow):
            raise line
    source, target = map(str, lines)
    return source.rstrip("\r\n"), target.rstrip("\r\n")
