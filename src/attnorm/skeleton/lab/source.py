"""A data source with columns of its own: two numbers and their sum."""

import hashlib
import random
from collections.abc import Iterator, Sequence

from attnorm.data.sources.base import RowSchema, Source

SUMS = RowSchema("sums", "sum", *[("left", "right", "total")] * 2, cleaned=(), words=("left", "right"))


class Sums(Source):
    schema = SUMS
    splits = ("train", "validation", "test")

    def __init__(self, *, count: int = 200, largest: int = 49):
        self.count, self.largest = count, largest

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        return [] if self.count > 0 else [f"data.count={self.count}: must be above 0"]

    def fingerprint(self, split: str) -> str:
        return hashlib.sha256(repr((split, self.count, self.largest)).encode()).hexdigest()

    def rows(self, split: str) -> Iterator[tuple[str, ...]]:
        numbers = random.Random(split)
        for _ in range(self.count):
            left, right = (numbers.randint(0, self.largest) for _ in "ab")
            yield str(left), str(right), str(left + right)
