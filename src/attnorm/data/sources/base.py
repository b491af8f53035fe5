"""Data sources: one class per source, named by `_target_` in conf/data/<name>.yaml.

A source reads and checks its data; `preprocess.prepare` cleans and tokenizes it. To add a source, write a subclass of
`Source` and name it in a YAML file. If the source changes its texts, do so in `clean` instead of `rows`, so that
`generate.py` applies the same changes to its input.
"""

import glob
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from attnorm.errors import DataError, Problem
from attnorm.imports import parameters
from attnorm.schema import Text, read_options

SPLITS = ("train", "validation", "test")
# The name of each split in config keys such as data.valid_size and data.max_valid.
SHORT = {"train": "train", "validation": "valid", "test": "test"}
Row = TypeVar("Row")
Entries = Text | Sequence[Text]  # the files of a split: a file or a glob, or a list of them


@dataclass(frozen=True)
class RowSchema:
    """The structure of the rows of a source.

    name:    name of the schema, for messages.
    unit:    what one row is called, in the singular.
    columns: the names of the texts of a row, in order.
    needed:  a row is used only if none of these columns is empty.
    cleaned: the columns that cleaning may change.
    words:   the columns on which a tokenizer is trained.
    """

    name: str
    unit: str
    columns: tuple[str, ...]
    needed: tuple[str, ...]
    cleaned: tuple[str, ...]
    words: tuple[str, ...]

    def has(self, other: "RowSchema") -> bool:
        """Whether these rows are those of the other schema, or have further columns, which must be named last."""
        first = self.columns[: len(other.columns)]
        return replace(self, name=other.name, columns=first) == other


PAIRS = RowSchema("pairs", "pair", *[("article", "title")] * 4)
DOCUMENTS = RowSchema("documents", "document", *[("text",)] * 4)
# group: the name of what documents have in common, such as their book; in comparisons they are dependent
GROUPED_DOCUMENTS = replace(DOCUMENTS, columns=("text", "group"))
LABELLED_DOCUMENTS = replace(DOCUMENTS, name="labelled documents", columns=("text", "group", "label"))
# answers: JSON {"texts": [...], "starts": [...]}, both empty for a question without an answer; starts are in characters
QUESTIONS = RowSchema(
    "questions", "question", ("id", "context", "question", "answers"), ("context",), (), ("question", "context")
)
# second: the second text of a pair; "" for single texts
LABELLED = RowSchema("labelled", "row", ("text", "second", "label"), ("text",), *[("text", "second")] * 2)
# answers: JSON list of the annotators' answers, one or ten. kind: the type of the answer, "yes/no", "number", "other",
# or "" if unknown. The source also has `views`, see `image_features.VisualSource`.
VISUAL = RowSchema(
    "visual", "question", ("id", "image", "question", "answers", "kind"), ("question",), (), ("question",)
)


def path_of(paths: Mapping[str, str | None], split: str) -> Path:
    """The file of a split that has one, as `Source.check` found."""
    path = paths[split]
    assert path is not None, f"no file for the {split} split"
    return Path(path)


def entries_of(entries: Entries | None) -> list[str]:
    """The files and globs of a split."""
    return [entries] if isinstance(entries, str) else list(entries or ())


def matching_files(entry: str) -> list[Path]:
    """The file or folder of this name, or the files that match a glob, sorted."""
    if os.path.exists(entry):
        return [Path(entry)]
    return sorted(file for file in map(Path, glob.glob(entry, recursive=True)) if file.is_file())


class Source(ABC):
    """The interface of a data source. Its options are keyword-only arguments of the constructor, which reads no files.

    schema: the structure of a row; one of the schemas above, or one defined by the source.
    """

    schema: ClassVar[RowSchema] = PAIRS

    def __new__(cls, *arguments: object, **options: object) -> "Source":
        """Raises ConfigError for options that are not those of the class, or not what their annotations allow."""
        if options:  # a copy is made without them
            read_options("data", cls, options, facts=[*parameters(cls)][: len(arguments)])
        return super().__new__(cls)

    @property
    @abstractmethod
    def splits(self) -> tuple[str, ...]:
        """The available splits, out of "train", "validation" and "test"."""

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """All problems with these splits that are found without reading the data. Each starts with its config key.

        The options have the values that their annotations allow.
        """
        return []

    @abstractmethod
    def fingerprint(self, split: str) -> str:
        """A hash of all contents and settings (not paths) that determine the results of `rows(split)` and `clean`."""

    @abstractmethod
    def rows(self, split: str) -> Iterator[tuple[str, ...]]:
        """Streams the raw rows. Raises ValueError that names file and line if data cannot be read."""

    def clean(self, text: str, column: str) -> str:
        """Cleans a raw text of this column (one of `schema.cleaned`), before white space, case and digits.

        A run keeps the cleaning of the source on which it was trained: `generate.py` applies it to its input, and
        `eval.py` applies it to the data of any other source.
        """
        return text


class NamedSplits(Source):
    """A source whose options name what each split is read from.

    named: what the user has named for each split; None for a split that does not exist.
    """

    named: Mapping[str, Any]

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that are named."""
        return tuple(split for split, named in self.named.items() if named is not None)


class DividedTrain(NamedSplits):
    """A source that needs no validation split of its own: the share `holdout` of the rows of train, evenly spaced, is
    held out for it. They are always the same rows."""

    holdout: float

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that are named, or held out of train."""
        held_out = self.named["train"] if self.is_divided("validation") and self.holdout else self.named["validation"]
        return tuple(split for split, named in {**self.named, "validation": held_out}.items() if named is not None)

    def is_divided(self, split: str) -> bool:
        """Whether the split is a part of the rows of train."""
        return self.named["validation"] is None and split != "test"

    def origin(self, split: str) -> str:
        """The split whose files contain the rows of this one."""
        return "train" if self.is_divided(split) else split

    def holdout_problems(self, splits: Sequence[str], files: str) -> list[str]:
        """A problem if validation is one of `splits`, and has neither `files` of its own nor a share of train."""
        if self.holdout or "validation" not in splits or not self.is_divided("validation"):
            return []
        message = f"the validation split is asked for; name its {files}, or set data.holdout above 0"
        return [Problem("data.validation", message, None)]

    def part(self, rows: Iterable[Row], split: str, key: str) -> Iterator[Row]:
        """The rows of a split, from those of its `origin`.

        key: the config key of the files, for messages. Raises ValueError if there are rows, but none in this split.
        """
        number = kept = 0
        for number, row in enumerate(rows, start=1):
            # the running sum of the shares passes k + 1/2: with a share of 1/20 these are rows 10, 30, 50, ...
            held_out = int(number * self.holdout + 0.5) > int((number - 1) * self.holdout + 0.5)
            if not self.is_divided(split) or held_out == (split == "validation"):
                kept += 1
                yield row
        if number and not kept:
            raise DataError(
                f"data.holdout={self.holdout}: no row is left for the {split} split, because {key} has {number}; "
                "change the share or name the file of data.validation"
            )
