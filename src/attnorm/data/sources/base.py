"""Where the rows come from: one class per source, named by `_target_` in conf/data/<name>.yaml.

A source reads and checks; `preprocess.prepare` cleans and tokenizes. To add one, write a subclass of `Source` and name
it in a YAML file. Put any changes that it makes to its texts into `clean` instead of `rows`, so that `generate.py`
makes the same changes to its input.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

SPLITS = ("train", "validation", "test")
# The config says data.valid_size and data.max_valid: the short name of each split, for keys in messages.
SHORT = {"train": "train", "validation": "valid", "test": "test"}


@dataclass(frozen=True)
class RowSchema:
    """What a row of a source is.

    name:    of the schema, for messages.
    unit:    what one row is called, in the singular.
    columns: the names of its texts, in order.
    needed:  a row is used only if none of these is empty.
    cleaned: the texts that cleaning may change.
    words:   the texts that a tokenizer is trained on.
    """

    name: str
    unit: str
    columns: tuple[str, ...]
    needed: tuple[str, ...]
    cleaned: tuple[str, ...]
    words: tuple[str, ...]


PAIRS = RowSchema("pairs", "pair", *[("article", "title")] * 4)
DOCUMENTS = RowSchema("documents", "document", *[("text",)] * 4)
# answers: JSON {"texts": [...], "starts": [...]}, without texts if there is no answer; starts count characters
QUESTIONS = RowSchema(
    "questions", "question", ("id", "context", "question", "answers"), ("context",), (), ("question", "context")
)
# second: "" if there is none
LABELLED = RowSchema("labelled", "row", ("text", "second", "label"), ("text",), *[("text", "second")] * 2)
# answers: JSON list of the annotators' answers, one or ten; kind: of the answer, "yes/no", "number", "other", or "" if
# unknown. The source also has `views`, see `image_features.VisualSource`
VISUAL = RowSchema(
    "visual", "question", ("id", "image", "question", "answers", "kind"), ("question",), (), ("question",)
)


def path_of(paths: Mapping[str, str | None], split: str) -> Path:
    """The file of a split that has one, as `Source.check` found."""
    path = paths[split]
    assert path is not None, f"no file for the {split} split"
    return Path(path)


class Source(ABC):
    """What a source must offer. Its options are keyword-only arguments of its constructor, which reads no files.

    schema: what a row is; one of the schemas above, or a source's own.
    """

    schema: ClassVar[RowSchema] = PAIRS

    @property
    @abstractmethod
    def splits(self) -> tuple[str, ...]:
        """The splits it can give, of "train", "validation", "test"."""

    @abstractmethod
    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """All problems with these splits that show without reading the data, each starting with its config key."""

    @abstractmethod
    def fingerprint(self, split: str) -> str:
        """A hash of everything that decides the results of `rows(split)` and `clean`: file contents and settings, not
        paths."""

    @abstractmethod
    def rows(self, split: str) -> Iterator[tuple[str, ...]]:
        """Stream the raw rows. Raises ValueError, naming file and line, for unreadable data."""

    def clean(self, text: str, column: str) -> str:
        """Cleans a raw text of this column (of `schema.cleaned`), before white space, case and digits are normalized.

        A run keeps the cleaning of the source that it was trained on: `generate.py` applies it to its input, and
        `eval.py` applies it to the data of any other source.
        """
        return text
