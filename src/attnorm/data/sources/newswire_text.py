"""The built-in corpus as documents: generated collections of news stories, so that pretraining needs no other data."""

from collections.abc import Iterator

from attnorm.data.readers import text as files
from attnorm.data.sources.base import DOCUMENTS, Source
from attnorm.data.sources.newswire import Level, Newswire
from attnorm.data.synthetic import newswire

STORIES = 3  # stories per document
_WINDOW = 20  # number of documents whose stories are sorted by event, so that a document has similar stories


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
        train_size: int = 20_000,
        valid_size: int = 500,
        test_size: int = 500,
        corpus_seed: int = 0,
        difficulty: Level = "easy",
    ):
        super().__init__(
            train_size=train_size,
            valid_size=valid_size,
            test_size=test_size,
            corpus_seed=corpus_seed,
            difficulty=difficulty,
        )

    def fingerprint(self, split: str) -> str:
        """A hash of the parameters and of the first stories, which change if the generator changes."""
        return files.digest(["newswire_text", 1, STORIES, _WINDOW, super().fingerprint(split)])

    def rows(self, split: str) -> Iterator[tuple[str]]:
        """Generates the documents one by one."""
        for index in range(self.sizes[split]):
            if index % _WINDOW == 0:
                first = index * STORIES
                drawn = [self.story(split, first + i) for i in range(_WINDOW * STORIES)]
                drawn.sort(key=lambda story: story.event)
            start = index % _WINDOW * STORIES
            yield (" ".join(f"{story.headline} . {story.article}" for story in drawn[start : start + STORIES]),)

    def story(self, split: str, index: int) -> newswire.Story:
        """The story with this number."""
        return newswire.story(split, index, self.corpus_seed, self.difficulty)
