"""The built-in parallel corpus `phrases` as a source. It is generated, so that everything runs without other data."""

from collections.abc import Iterator, Sequence

from attnorm.data import validation as checks
from attnorm.data.readers import text as files
from attnorm.data.sources.base import SHORT, SPLITS, Source
from attnorm.data.sources.parallel import PARALLEL
from attnorm.data.synthetic import phrases


class Phrases(Source):
    """`train_size`, `valid_size` and `test_size` pairs of Kelvan and English. `corpus_seed` selects another corpus."""

    schema = PARALLEL
    splits = SPLITS

    def __init__(
        self,
        *,
        train_size: int = 40_000,
        valid_size: int = 1_000,
        test_size: int = 1_000,
        corpus_seed: int = 0,
    ):
        self.sizes = {"train": train_size, "validation": valid_size, "test": test_size}
        self.corpus_seed = corpus_seed

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Sizes and a seed that are not whole numbers."""
        problems = checks.whole_number("data.corpus_seed", self.corpus_seed, least=0)
        for split, size in self.sizes.items():
            problems += checks.whole_number(f"data.{SHORT[split]}_size", size)
        return problems

    def fingerprint(self, split: str) -> str:
        """A hash of the parameters and of the first pairs, which change if the generator changes."""
        size = self.sizes[split]
        first = [phrases.pair(split, index, self.corpus_seed) for index in range(min(200, size))]
        return files.digest(["phrases", 1, split, size, self.corpus_seed, first])

    def rows(self, split: str) -> Iterator[tuple[str, str]]:
        """Generates the pairs one by one."""
        for index in range(self.sizes[split]):
            yield phrases.pair(split, index, self.corpus_seed)
