"""The built-in parallel corpus `phrases` as a source. It is generated, so that everything runs without other data."""

from collections.abc import Iterator

from attnorm.data.readers import text as files
from attnorm.data.sources.base import SPLITS, Source
from attnorm.data.sources.parallel import PARALLEL
from attnorm.data.synthetic import phrases
from attnorm.schema import Count, WholeNumber


class Phrases(Source):
    """`train_size`, `valid_size` and `test_size` pairs of Kelvan and English. `corpus_seed` selects another corpus."""

    schema = PARALLEL
    splits = SPLITS

    def __init__(
        self,
        *,
        train_size: Count = 40_000,
        valid_size: Count = 1_000,
        test_size: Count = 1_000,
        corpus_seed: WholeNumber = 0,
    ):
        self.sizes = {"train": train_size, "validation": valid_size, "test": test_size}
        self.corpus_seed = corpus_seed

    def fingerprint(self, split: str) -> str:
        """A hash of the parameters and of the first pairs, which change if the generator changes."""
        size = self.sizes[split]
        first = [phrases.sentence_pair(split, index, self.corpus_seed) for index in range(min(200, size))]
        return files.digest(["phrases", 1, split, size, self.corpus_seed, first])

    def rows(self, split: str) -> Iterator[tuple[str, str]]:
        """Generates the pairs one by one."""
        for index in range(self.sizes[split]):
            yield phrases.sentence_pair(split, index, self.corpus_seed)
