"""Where the texts come from: one class a source, chosen by `data=<name>`.

A source reads and checks; `corpus.prepare` cleans and tokenizes. To add one, write a subclass of `Source` and put it
into SOURCES, or name it in YAML by its dotted path. Put any changes that it makes to its texts into `clean` instead of
`rows`, so that `generate.py` makes the same changes to its input.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attnorm.data import validation as checks
from attnorm.imports import find

SOURCES = {
    "newswire": "attnorm.data.sources.newswire:Newswire",
    "rush": "attnorm.data.sources.gigaword:Rush",
    "pairs": "attnorm.data.sources.pair_files:Pairs",
    "hub": "attnorm.data.sources.hub:Hub",
    "newswire_text": "attnorm.data.sources.newswire_text:NewswireText",
    "text": "attnorm.data.sources.text_files:TextFiles",
    "text_hub": "attnorm.data.sources.hub_text:TextHub",
    "squad": "attnorm.data.sources.squad:Squad",
    "labelled": "attnorm.data.sources.labelled_files:LabelledFiles",
    "scenes": "attnorm.data.sources.scenes:Scenes",
    "easy_vqa": "attnorm.data.sources.easy_vqa:EasyVqa",
    "vqa_v2": "attnorm.data.sources.vqa_v2:VqaV2",
}

SPLITS = ("train", "validation", "test")
# The config says data.valid_size and data.max_valid: the short name of each split, for keys in messages.
SHORT = {"train": "train", "validation": "valid", "test": "test"}


@dataclass(frozen=True)
class Kind:
    """What a row of a source is: the names of its texts, in order.

    needed: a row is used only when none of these is empty. cleaned: what cleaning may change. words: what a tokenizer
    is trained on.
    """

    columns: tuple[str, ...]
    needed: tuple[str, ...]
    cleaned: tuple[str, ...]
    words: tuple[str, ...]


KINDS = {
    "pairs": Kind(*[("article", "title")] * 4),
    "documents": Kind(*[("text",)] * 4),
    # answers: JSON {"texts": [...], "starts": [...]}, without texts where there is no answer; starts count characters
    "questions": Kind(("id", "context", "question", "answers"), ("context",), (), ("question", "context")),
    "labelled": Kind(("text", "second", "label"), ("text",), *[("text", "second")] * 2),  # second: "" if there is none
    # answers: JSON list of the annotators' answers, one or ten; kind: of the answer, "yes/no", "number", "other", or ""
    # if it is not known. The source also has `views`, see `views.VisualSource`
    "visual": Kind(("id", "image", "question", "answers", "kind"), ("question",), (), ("question",)),
}


class Source(ABC):
    """What a source must offer. Its options are keyword-only arguments of its constructor, which reads no files."""

    yields = "pairs"  # what a row is, of KINDS

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
        """Cleans a raw text of this column (of `Kind.cleaned`), before white space, case and digits are normalized.

        A run keeps the cleaning of the source that it was trained on: `generate.py` applies it to its input, and
        `eval.py` applies it to the data of any other source.
        """
        return text


def build_source(name: str, **options: object) -> Source:
    """The source called `name`. Raises ValueError for an unknown name or option: the allowed ones and the nearest."""
    cls = find("data", name, SOURCES, Source)
    if problems := checks.option_problems("data", name, cls, options):
        raise ValueError("\n".join(problems))
    return cls(**options)
