"""The interface that converts texts to rows of token ids, implemented by each task, and shared helper functions."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    from attnorm.data.sources.base import RowSchema
    from attnorm.data.tokenizers.base import Tokenizer

Table = Any  # a datasets.Dataset: rows by number, columns by name
# columns of rows of ids, and counts that are summed over a split
Encoded = tuple[Mapping[str, Sequence], dict[str, int]]


class Featurizer(ABC):
    """Converts a batch of texts to a batch of rows of ids. Both are dicts of columns by name.

    The number of rows of ids may differ from the number of texts.
    """

    schema: "RowSchema"  # structure of the source's rows

    @abstractmethod
    def settings(self) -> list:
        """JSON-serializable values that determine the ids, for the key of the cache."""

    @abstractmethod
    def columns(self) -> dict:
        """The Arrow type of each column of ids."""

    @abstractmethod
    def encode(self, texts: dict[str, list[str]], first: int, tokenizer: "Tokenizer") -> Encoded:
        """Converts texts to ids, and returns counts that are summed over the split.

        first: the row number of the first text in the split.
        """

    def lengths(self, ids: Table) -> np.ndarray:
        """int32 (rows, k): the number of tokens of each of a row's k sequences, including special tokens.

        By default, there is one sequence, in the column `ids`.
        """
        return list_lengths(ids, "ids").astype(np.int32)[:, None]

    def weights(self, ids: Table) -> np.ndarray:
        """int64 (rows,): the contribution of each row to the divisor of the loss of an update; by default 1."""
        return np.ones(len(ids), np.int64)

    @abstractmethod
    def describe(self, counts: dict[str, int]) -> str:
        """A summary of a split for the user: "11,022 pairs (0 empty skipped)"."""


def list_lengths(ids: Table, column: str) -> np.ndarray:
    """int64 (rows,): the lengths of the lists in a column."""
    import pyarrow.compute as pc

    return pc.list_value_length(ids.data.column(column)).to_numpy().astype(np.int64)


def cut(sequences: Sequence[list[int]], limit: int) -> tuple[list[list[int]], int]:
    """Truncates each sequence to `limit` tokens. Returns the sequences and the number of truncated ones."""
    return [sequence[:limit] for sequence in sequences], sum(len(sequence) > limit for sequence in sequences)


def pad(sequences: Sequence[Sequence[int]], pad_id: int, begin: int | None = None, end: int | None = None) -> "Tensor":
    """Pads sequences of ids to one int64 tensor (B, longest). begin, end: ids to put around each of them."""
    import torch

    first, last = [] if begin is None else [begin], [] if end is None else [end]
    width = max(map(len, sequences)) + len(first) + len(last)
    table = np.full((len(sequences), width), pad_id, dtype=np.int64)
    for row, ids in zip(table, sequences, strict=True):
        row[: len(first) + len(ids) + len(last)] = [*first, *ids, *last]
    return torch.from_numpy(table)


def second_part(first: Sequence[int], sequences: Sequence[Sequence[int]]) -> "Tensor":
    """bool (B, N): the tokens after the first part, which has the lengths `first`. Padding is False."""
    import torch

    lengths = torch.tensor([len(sequence) for sequence in sequences])[:, None]
    positions = torch.arange(int(lengths.max()))
    return (positions >= torch.tensor(first)[:, None]) & (positions < lengths)
