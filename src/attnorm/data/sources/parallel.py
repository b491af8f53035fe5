"""Files the lines of which belong together: their base class, and sentences with their translations in Moses format."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from attnorm.data.readers import text as files
from attnorm.data.readers.bad_rows import BadRow, usable
from attnorm.data.sources.base import NamedSplits, RowSchema, Source
from attnorm.errors import DataError
from attnorm.schema import Text
from attnorm.wording import listed

PARALLEL = RowSchema("parallel", "pair", *[("source", "target")] * 4)
FileName = Annotated[str, Field(pattern="^[^/]+$", description="part of a file's name, such as de or train")]
AUTO, NAMES = "auto", ("valid", "val", "dev", "validation")  # of validation files


class AlignedFiles(Source):
    """Pairs of lines: line i of one file of a split belongs to line i of the other.

    dir:      the folder of the files. Each may be plain or .gz; if both exist, the plain one is read.
    encoding: the encoding of all files.
    skip_bad: skip pairs with a line that is not text and log their number, instead of raising an error.
    """

    def __init__(self, dir: str, encoding: str, skip_bad: bool):
        self.dir, self.encoding, self.skip_bad = dir, encoding, skip_bad

    @abstractmethod
    def names(self, split: str) -> tuple[str, str]:
        """The names of the two files of a split, without .gz."""

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Missing or empty files, or a missing folder."""
        problems = files.encoding_problem(self.encoding)
        if not Path(self.dir).is_dir():
            return [*problems, f"data.dir={self.dir}: no such folder"]
        paths = [path for split in splits for path in self.paths(split)]
        texts = (files.text_problem(f"data.dir={self.dir}", path, self.encoding, self.skip_bad) for path in paths)
        return problems + [problem for problems_of_file in texts for problem in problems_of_file]

    def rows(self, split: str) -> Iterator[tuple[str, str]]:
        """Streams the pairs. Raises DataError before the first one if the two files differ in length."""
        paths = self.paths(split)
        first, second = (files.count_lines(path, self.encoding) for path in paths)
        names = [path.name for path in paths]
        if first != second:
            raise DataError(
                f"data.dir={self.dir}: {names[0]} has {first:,} lines but {names[1]} has {second:,}: "
                "line i of one must belong to line i of the other"
            )
        if first == 0:
            raise DataError(f"data.dir={self.dir}: {names[0]} and {names[1]} are empty")
        lines = zip(*(files.path_lines(path, self.encoding) for path in paths), strict=True)
        yield from usable(lines, _pair, self.skip_bad)

    def paths(self, split: str) -> tuple[Path, Path]:
        """The two files of a split."""
        return self.existing(self.names(split))

    def existing(self, names: tuple[str, str]) -> tuple[Path, Path]:
        """The files of these names: the plain ones, or .gz if only that exists."""
        paths = []
        for name in names:
            plain, packed = Path(self.dir) / name, Path(self.dir) / f"{name}.gz"
            paths.append(packed if packed.exists() and not plain.exists() else plain)
        return paths[0], paths[1]


def _pair(lines: tuple[str | BadRow, str | BadRow]) -> tuple[str, str]:
    """The two lines without their ends. Raises BadRow if one of them is bad."""
    for line in lines:
        if isinstance(line, BadRow):
            raise line
    first, second = map(str, lines)
    return first.rstrip("\r\n"), second.rstrip("\r\n")


class ParallelFiles(NamedSplits, AlignedFiles):
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
        super().__init__(dir, encoding, skip_bad)
        self.languages = {"source_language": source_language, "target_language": target_language}
        self.named = {"train": train, "validation": validation, "test": test}

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Missing or empty files, a missing folder, equal languages, and several names of validation files."""
        source, target = self.languages.values()
        problems = [
            f"data.{split}=null: must be the name of its files" for split in splits if self.named[split] is None
        ]
        if source == target:
            problems.append(f"data.target_language={target}: must differ from data.source_language")
        existing = self._existing_names()
        is_auto = "validation" in splits and self.named["validation"] == AUTO
        if is_auto and len(existing) != 1 and Path(self.dir).is_dir():
            several = f"{' and '.join(existing)} all name validation files there; type data.validation=<one of them>"
            none = f"no validation files; expected {', '.join(NAMES)} with the endings of the languages"
            none += ", or another name as data.validation=<name>"
            problems.append(f"data.dir={self.dir}: {several if existing else none}")
        problems = problems or super().check(splits)
        if problems and (marked := sorted(path.name for path in Path(self.dir).glob("*.sgm*"))):
            problems.append(f"data.dir={self.dir}: {listed(marked, 3)}: SGML is not read; write one sentence per line")
        return problems

    def fingerprint(self, split: str) -> str:
        """A hash of the two files as stored on disk, and of all settings that determine their rows."""
        return files.digest(["moses", 1, *files.reading_settings(self.encoding, self.skip_bad)], *self.paths(split))

    def names(self, split: str) -> tuple[str, str]:
        stem = self.named[split]
        return self._named([*self._existing_names(), NAMES[0]][0] if split == "validation" and stem == AUTO else stem)

    def _existing_names(self) -> list[str]:
        """Those of NAMES of which there is a file."""
        return [name for name in NAMES if any(path.exists() for path in self.existing(self._named(name)))]

    def _named(self, stem: str | None) -> tuple[str, str]:
        source, target = self.languages.values()
        return f"{stem}.{source}", f"{stem}.{target}"
