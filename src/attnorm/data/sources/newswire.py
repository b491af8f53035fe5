"""The built-in corpus `newswire` as a source. It is generated, so that everything can run without other data."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Literal

from attnorm.data import validation as checks
from attnorm.data.cleaning import read_unknown
from attnorm.data.sources.base import SHORT, SPLITS, Source
from attnorm.data.synthetic import newswire

Level = Literal["easy", "hard"]


class Newswire(Source):
    """`train_size`, `valid_size` and `test_size` pairs. `corpus_seed` selects another corpus of the same kind.

    difficulty: "hard" for articles with a second event, rare names and several wordings, see
                `attnorm.data.synthetic.newswire.difficulty`; "easy" for articles without them.
    """

    splits = SPLITS

    def __init__(
        self,
        *,
        train_size: int = 40_000,
        valid_size: int = 1_000,
        test_size: int = 1_000,
        corpus_seed: int = 0,
        difficulty: Level = "hard",
    ):
        self.sizes = {"train": train_size, "validation": valid_size, "test": test_size}
        self.corpus_seed, self.difficulty = corpus_seed, difficulty

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Sizes and a seed that are not whole numbers."""
        problems = checks.whole_number("data.corpus_seed", self.corpus_seed, least=0)
        for split, size in self.sizes.items():
            problems += checks.whole_number(f"data.{SHORT[split]}_size", size)
        return problems

    def clean(self, text: str, column: str) -> str:
        """Replaces the word UNK by <unk>. It only occurs in published headlines, which a run may read."""
        return read_unknown(text)

    def fingerprint(self, split: str) -> str:
        """A hash of the parameters and of the first pairs, which change if the generator changes."""
        first = [self.pair(split, i) for i in range(min(200, self.sizes[split]))]
        settings = json.dumps(["newswire", 1, split, self.sizes[split], self.corpus_seed, self.difficulty, first])
        return hashlib.blake2b(settings.encode(), digest_size=16).hexdigest()

    def rows(self, split: str) -> Iterator[tuple[str, ...]]:
        """Generates the pairs one by one."""
        for index in range(self.sizes[split]):
            yield self.pair(split, index)

    def pair(self, split: str, index: int) -> tuple[str, str]:
        """The article and the headline with this number."""
        return newswire.pair(split, index, self.corpus_seed, self.difficulty)
