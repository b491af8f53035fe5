"""How the texts of a split are laid out as rows of token ids: what a task trains on."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from datasets import Dataset

    from attnorm.data.tokenizers.base import Tokenizer


class Layout(ABC):
    """What a layout must offer. A batch of texts comes as columns by name, and so do the ids that it becomes; the rows
    of one need not be those of the other."""

    kind: str  # of the source's rows, of `sources.KINDS`

    @abstractmethod
    def settings(self) -> list:
        """JSON-able values that decide the ids, for the key of the cache."""

    @abstractmethod
    def columns(self) -> dict:
        """Arrow's type of each column of ids."""

    @abstractmethod
    def encode(
        self, texts: dict[str, list[str]], first: int, tokenizer: "Tokenizer"
    ) -> tuple[dict[str, Sequence], dict[str, int]]:
        """Texts, the first of which is row `first` of the split -> ids, and counts that are added up over the split."""

    @abstractmethod
    def lengths(self, ids: "Dataset") -> np.ndarray:
        """int32 (rows, k): the tokens of each of a row's k sequences, special tokens included."""

    @abstractmethod
    def weights(self, ids: "Dataset") -> np.ndarray:
        """int64 (rows,): how much each row adds to what the loss of an update is divided by."""

    @abstractmethod
    def describe(self, counts: dict[str, int]) -> str:
        """What a user should know of a split: "11,022 pairs (0 empty skipped)"."""


def list_lengths(ids: "Dataset", column: str) -> np.ndarray:
    """int64 (rows,): the lengths of the lists in a column."""
    import pyarrow.compute as pc

    return pc.list_value_length(ids.data.column(column)).to_numpy().astype(np.int64)


def cut(sequences: Sequence[Sequence[int]], limit: int) -> tuple[list[Sequence[int]], int]:
    """Each sequence cut to `limit` tokens, and how many had to be."""
    return [sequence[:limit] for sequence in sequences], sum(len(sequence) > limit for sequence in sequences)


class PairLayout(Layout):
    """One row a pair: source and target without special tokens, cut so that the one that each gets still fits.

    max_source, max_target: in tokens, specials included.
    """

    kind = "pairs"

    def __init__(self, max_source: int, max_target: int):
        self.limits = {"source": max_source - 1, "target": max_target - 1}

    def settings(self) -> list:
        return ["pairs", *self.limits.values()]

    def columns(self) -> dict:
        import pyarrow as pa

        return dict.fromkeys(self.limits, pa.list_(pa.int32()))

    def encode(self, texts, first, tokenizer):
        ids, counts = {}, {}
        for column, (side, limit) in zip(texts.values(), self.limits.items(), strict=True):
            ids[side], counts[f"truncated_{side}"] = cut(tokenizer.encode(column), limit)
        return ids, counts

    def lengths(self, ids) -> np.ndarray:
        return np.stack([list_lengths(ids, side) + 1 for side in self.limits], axis=1).astype(np.int32)

    def weights(self, ids) -> np.ndarray:
        return list_lengths(ids, "target") + 1

    def describe(self, counts) -> str:
        return (
            f"{counts['kept']:,} pairs ({counts['empty']:,} empty skipped, {counts['truncated_source']:,} articles and "
            f"{counts['truncated_target']:,} headlines truncated)"
        )
