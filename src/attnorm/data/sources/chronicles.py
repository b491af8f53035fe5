"""The built-in corpus of long documents as a source. It is generated, so that everything runs without other data."""

from collections.abc import Iterator

from attnorm.data.readers import text as files
from attnorm.data.sources.base import DOCUMENTS, SPLITS, Source
from attnorm.data.synthetic.chronicles import chronicle
from attnorm.schema import Count, WholeNumber


class Chronicles(Source):
    """`train_size`, `valid_size` and `test_size` documents of at least `words` words.

    `corpus_seed` selects another corpus.
    """

    schema = DOCUMENTS
    splits = SPLITS

    def __init__(
        self,
        *,
        train_size: Count = 400,
        valid_size: Count = 40,
        test_size: Count = 40,
        words: Count = 3_000,
        corpus_seed: WholeNumber = 0,
    ):
        self.sizes = {"train": train_size, "validation": valid_size, "test": test_size}
        self.words, self.corpus_seed = words, corpus_seed

    def fingerprint(self, split: str) -> str:
        """A hash of the parameters and of the first documents, which change if the generator changes."""
        size = self.sizes[split]
        first = [chronicle(split, index, self.corpus_seed, self.words) for index in range(min(10, size))]
        return files.digest(["chronicles", 1, split, size, self.words, self.corpus_seed, first])

    def rows(self, split: str) -> Iterator[tuple[str]]:
        """Generates the documents one by one."""
        for index in range(self.sizes[split]):
            yield (chronicle(split, index, self.corpus_seed, self.words),)
