"""Unigram and bigram models of the tokens of the training split: the baselines of a language model.

A unigram model with add-one smoothing, and a bigram model that is interpolated with it by the method of Witten and Bell
("The zero-frequency problem", 1991, method C), where T(v) is the number of different tokens seen after v:

    p(w)     = (c(w) + 1) / (n + V)
    p(w | v) = (c(v, w) + T(v) p(w)) / (c(v) + T(v)),  and p(w) after a token v that was not seen
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attnorm.data.featurizer import Table
from attnorm.errors import RunError

FILE = "bigrams.npz"
MOST = 20_000_000  # tokens that are counted: the first ones of the split


def flat(rows: Table, column: str) -> np.ndarray:
    """All numbers in a column of lists, int64."""
    import pyarrow.compute as pc

    return pc.list_flatten(rows.data.column(column)).to_numpy().astype(np.int64)


@dataclass(frozen=True)
class Bigrams:
    """Counts of pairs of adjacent tokens.

    pairs:  int64 (k,), v * size + w for the different pairs (v, w), sorted. counts: int64 (k,), how often each occurs.
    size:   the number of tokens in the vocabulary.
    """

    pairs: np.ndarray
    counts: np.ndarray
    size: int

    @classmethod
    def of(cls, rows: Table, size: int) -> "Bigrams":
        """Counts the pairs of `ids` and `labels` in the rows of a split."""
        first, second = (flat(rows, column)[:MOST] for column in ("ids", "labels"))
        return cls(*np.unique(first * size + second, return_counts=True), size)

    def log_p(self, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log p(w) and log p(w | v) in nats for tokens w = `second` that follow v = `first`, float64."""
        before, after = np.divmod(self.pairs, self.size)
        of_after = np.bincount(after, self.counts, self.size)
        p = (of_after + 1) / (of_after.sum() + self.size)
        of_before, different = np.bincount(before, self.counts, self.size), np.bincount(before, minlength=self.size)
        wanted = first * self.size + second
        place = np.searchsorted(self.pairs, wanted).clip(max=len(self.pairs) - 1)
        together = np.where(self.pairs[place] == wanted, self.counts[place], 0)
        total = of_before[first] + different[first]
        interpolated = (together + different[first] * p[second]) / np.maximum(total, 1)
        return np.log(p[second]), np.log(np.where(total > 0, interpolated, p[second]))

    def save(self, folder: Path) -> None:
        np.savez_compressed(folder / FILE, pairs=self.pairs, counts=self.counts, size=self.size)

    @classmethod
    def load(cls, folder: Path) -> "Bigrams":
        """What `save` has written. Raises RunError if it is missing or damaged."""
        path = folder / FILE
        try:
            with np.load(path) as arrays:
                return cls(arrays["pairs"], arrays["counts"], int(arrays["size"]))
        except Exception as error:  # a damaged archive raises errors of many kinds
            raise RunError(f"{path}: cannot be read: {error}") from error
