"""Words with twins that training never shows: the source, the tokenizer, the model and the start of the experiment.

Every second word of the built-in corpus has a twin, `police` and `police2`. The two start with the same embedding, as
synonyms have in a pretrained model. Training articles contain the words, and those of validation and test their twins.
"""

import hashlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from pytorch_lightning import Callback
from torch import Tensor

from attnorm.attention.normalizers.ot import squared_distance
from attnorm.data import validation as checks
from attnorm.data.sources.base import LABELLED, SHORT, SPLITS, Source
from attnorm.data.sources.labelled_files import label_problems
from attnorm.data.synthetic import newswire
from attnorm.data.tokenizers.wordpiece import WordPiece
from attnorm.data.tokenizers.wordpiece_trainer import SPECIAL, pipeline
from attnorm.models.encoder import Encoder
from attnorm.schema import Count

WORD = re.compile(r"(?<!\S)[a-z]{4,}(?!\S)")  # shorter words say little about an event


def has_twin(word: str) -> bool:
    """Whether a word has a twin: about every second word of at least four letters."""
    return WORD.fullmatch(word) is not None and zlib.crc32(word.encode()) % 2 == 0


def twin(word: str) -> str:
    """The twin of a word: 'police2'."""
    return f"{word}2"


def with_twins(text: str) -> str:
    """The text with each word that has a twin replaced by it."""
    return WORD.sub(lambda match: twin(match[0]) if has_twin(match[0]) else match[0], text)


class TwinNewswire(Source):
    """The articles of the built-in corpus, labelled with the kinds of their events, such as "interest rates".

    twins: replace words by their twins in the validation and test splits.
    """

    schema, splits = LABELLED, SPLITS

    def __init__(
        self,
        *,
        labels: Sequence[str],
        train_size: int = 20_000,
        valid_size: int = 2_000,
        test_size: int = 2_000,
        corpus_seed: int = 0,
        twins: bool = True,
    ):
        self.labels, self.corpus_seed, self.twins = list(labels), corpus_seed, twins
        self.sizes = {"train": train_size, "validation": valid_size, "test": test_size}

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        problems = label_problems(self.labels) or [
            f"data.labels: {name!r} is missing" for name in newswire.EVENT_KINDS if name not in self.labels
        ]
        problems += checks.whole_number("data.corpus_seed", self.corpus_seed, least=0)
        for split in splits:
            problems += checks.whole_number(f"data.{SHORT[split]}_size", self.sizes[split])
        return problems

    def fingerprint(self, split: str) -> str:
        first = [row for row, _ in zip(self.rows(split), range(200), strict=False)]
        settings = json.dumps(["newswire_twins", 1, split, self.sizes[split], self.corpus_seed, self.twins, first])
        return hashlib.blake2b(settings.encode(), digest_size=16).hexdigest()

    def rows(self, split: str) -> Iterator[tuple[str, str, str]]:
        change = with_twins if self.twins and split != "train" else str
        for index in range(self.sizes[split]):
            story = newswire.story(split, index, self.corpus_seed, "easy")
            yield change(story.article), "", story.event


class TwinWords(WordPiece):
    """The most frequent `vocab_size` words of the train split, and the twins of those that have one, as whole words."""

    @classmethod
    def from_settings(  # type: ignore[override]  # names its options
        cls, draw: Callable[[int | None], Iterable[str]] | None = None, *, vocab_size: Count = 1_000
    ) -> "TwinWords":
        assert draw is not None
        splitter = pipeline({}, lowercase=True).pre_tokenizer
        counts = Counter(word for text in draw(None) for word, _ in splitter.pre_tokenize_str(text))
        words = [word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:vocab_size]]
        listed = [*SPECIAL, *words, *(twin(word) for word in words if has_twin(word))]
        return cls(pipeline({word: number for number, word in enumerate(listed)}, lowercase=True))

    @classmethod
    def needs_training(cls, options: dict) -> bool:
        return True

    @classmethod
    def check(cls, options: dict) -> list[str]:
        return []


class WithoutPositions(Encoder):
    """An encoder that does not know where a word stands. The words of the bank have no positions either."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        assert self.embeddings.positions is None, "model.positions must be sinusoidal"
        self.embeddings.waves.zero_()


def sharp_distance(targets: Tensor, sources: Tensor) -> Tensor:
    """10 |t - i|^2 / D. A bank has hundreds of words for each twin; with a flatter cost they get most of the mass."""
    return 10 * squared_distance(targets, sources)


class StartAlike(Callback):
    """Gives each twin the embedding of its word before the first update."""

    @torch.no_grad()
    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.global_step:
            return  # a resumed run
        tokenizer, table = pl_module.tokenizer, pl_module.model.encoder.embeddings.tokens.weight
        number = {tokenizer.token(i): i for i in range(tokenizer.vocab_size)}
        for word, row in number.items():
            if has_twin(word):
                table[number[twin(word)]] = table[row]
