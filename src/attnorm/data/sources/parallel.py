"""Sentences with their translations: the structure of the rows, and files in Moses format."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from attnorm.data.readers import text as files
from attnorm.data.sources.aligned_files import AlignedFiles
from attnorm.data.sources.base import RowSchema
from attnorm.data.sources.table_source import reading_settings
from attnorm.schema import Text

PARALLEL = RowSchema("parallel", "pair", *[("source", "target")] * 4)
FileName = Annotated[str, Field(pattern="^[^/]+$", description="part of a file's name, such as de or train")]
AUTO, NAMES = "auto", ("valid", "val", "dev", "validation")  # of validation files


class ParallelFiles(AlignedFiles):
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
        self.stems = {"train": train, "validation": validation, "test": test}

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(split for split, stem in self.stems.items() if stem is not None)

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Missing or empty files, a missing folder, equal languages, and several names of validation files."""
        source, target = self.languages.values()
        problems = [
            f"data.{split}=null: must be the name of its files" for split in splits if self.stems[split] is None
        ]
        if source == target:
            problems.append(f"data.target_language={target}: must differ from data.source_language")
        there = self._names_there()
        if "validation" in splits and self.stems["validation"] == AUTO and len(there) != 1 and Path(self.dir).is_dir():
            several = f"{' and '.join(there)} all name validation files there; type data.validation=<one of them>"
            none = f"no validation files; expected {', '.join(NAMES)} with the endings of the languages"
            none += ", or another name as data.validation=<name>"
            problems.append(f"data.dir={self.dir}: {several if there else none}")
        return problems or super().check(splits)

    def fingerprint(self, split: str) -> str:
        """A hash of the two files as stored on disk, and of all settings that determine their rows."""
        return files.digest(["moses", 1, *reading_settings(self.encoding, self.skip_bad)], *self.paths(split))

    def names(self, split: str) -> tuple[str, str]:
        stem = self.stems[split]
        return self._named([*self._names_there(), NAMES[0]][0] if split == "validation" and stem == AUTO else stem)

    def _names_there(self) -> list[str]:
        """Those of NAMES of which there is a file."""
        return [name for name in NAMES if any(path.exists() for path in self.existing(self._named(name)))]

    def _named(self, stem: str | None) -> tuple[str, str]:
        source, target = self.languages.values()
        return f"{stem}.{source}", f"{stem}.{target}"
