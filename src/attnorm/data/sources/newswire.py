"""The built-in corpus `newswire`, as pairs and as documents. It is generated, so that no other data is needed."""

from collections.abc import Iterator
from typing import Literal

from attnorm.data.cleaning import read_unknown
from attnorm.data.readers import text as files
from attnorm.data.sources.base import DOCUMENTS, SPLITS, Source
from attnorm.data.synthetic import newswire
from attnorm.schema import Count, WholeNumber

Level = Literal["easy", "hard"]
STORIES = 3  # stories per document
_WINDOW = 20  # number of documents whose stories are sorted by event, so that a document has similar stories


class Newswire(Source):
    """`train_size`, `valid_size` and `test_size` pairs. `corpus_seed` selects another corpus of the same kind.

    difficulty: "hard" for articles with a second event, rare names and several wordings, see
                `attnorm.data.synthetic.newswire.generate`; "easy" for articles without them.
    """

    splits = SPLITS

    def __init__(
        self,
        *,
        train_size: Count = 40_000,
        valid_size: Count = 1_000,
        test_size: Count = 1_000,
        corpus_seed: WholeNumber = 0,
        difficulty: Level = "hard",
    ):
        self.sizes = {"train": train_size, "validation": valid_size, "test": test_size}
        self.corpus_seed, self.difficulty = corpus_seed, difficulty

    def clean(self, text: str, column: str) -> str:
        """Replaces the word UNK by <unk>. It only occurs in published headlines, which a run may read."""
        return read_unknown(text)

    def fingerprint(self, split: str) -> str:
        """A hash of the parameters and of the first pairs, which change if the generator changes."""
        size = self.sizes[split]
        first = [newswire.pair(split, index, self.corpus_seed, self.difficulty) for index in range(min(200, size))]
        return files.digest(["newswire", 1, split, size, self.corpus_seed, self.difficulty, first])

    def rows(self, split: str) -> Iterator[tuple[str, ...]]:
        """Generates the pairs one by one."""
        for index in range(self.sizes[split]):
            yield newswire.pair(split, index, self.corpus_seed, self.difficulty)


class NewswireText(Newswire):
    """`train_size`, `valid_size` and `test_size` documents of a few stories each, with headline and lead sentence.

    `corpus_seed` selects another corpus of the same kind. The stories are those of `newswire` of the same difficulty,
    split by split.
    """

    schema = DOCUMENTS
    clean = Source.clean  # UNK only occurs in headline files

    def __init__(
        self,
        *,
        train_size: Count = 20_000,
        valid_size: Count = 500,
        test_size: Count = 500,
        corpus_seed: WholeNumber = 0,
        difficulty: Level = "easy",
    ):
        sizes = {"train_size": train_size, "valid_size": valid_size, "test_size": test_size}
        super().__init__(**sizes, corpus_seed=corpus_seed, difficulty=difficulty)

    def fingerprint(self, split: str) -> str:
        """A hash of the parameters and of the first stories, which change if the generator changes."""
        return files.digest(["newswire_text", 1, STORIES, _WINDOW, super().fingerprint(split)])

    def rows(self, split: str) -> Iterator[tuple[str]]:
        """Generates the documents one by one."""
        for index in range(self.sizes[split]):
            if index % _WINDOW == 0:
                numbers = range(index * STORIES, (index + _WINDOW) * STORIES)
                drawn = [newswire.story(split, number, self.corpus_seed, self.difficulty) for number in numbers]
                drawn.sort(key=lambda story: story.event)
            start = index % _WINDOW * STORIES
            yield (" ".join(f"{story.headline} . {story.article}" for story in drawn[start : start + STORIES]),)
