"""From texts to rows of token ids: the interface that each task implements, and what implementations share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from attnorm.data.sources.base import RowSchema
    from attnorm.data.tokenizers.base import Tokenizer

Table = Any  # a datasets.Dataset: rows by number, columns by name


class Featurizer(ABC):
    """What a layout must offer. A batch of texts comes as columns by name, and so do the ids that it becomes; the rows
    of one need not be those of the other."""

    schema: "RowSchema"  # of the source's rows

    @abstractmethod
    def settings(self) -> list:
        """JSON-able values that decide the ids, for the key of the cache."""

    @abstractmethod
    def columns(self) -> dict:
        """Arrow's type of each column of ids."""

    @abstractmethod
    def encode(
        self, texts: dict[str, list[str]], first: int, tokenizer: "Tokenizer"
    ) -> tuple[Mapping[str, Sequence], dict[str, int]]:
        """Texts, the first of which is row `first` of the split -> ids, and counts that are added up over the split."""

    @abstractmethod
    def lengths(self, ids: Table) -> np.ndarray:
        """int32 (rows, k): the tokens of each of a row's k sequences, special tokens included."""

    @abstractmethod
    def weights(self, ids: Table) -> np.ndarray:
        """int64 (rows,): how much each row adds to what the loss of an update is divided by."""

    @abstractmethod
    def describe(self, counts: dict[str, int]) -> str:
        """What a user should know of a split: "11,022 pairs (0 empty skipped)"."""


def list_lengths(ids: Table, column: str) -> np.ndarray:
    """int64 (rows,): the lengths of the lists in a column."""
    import pyarrow.compute as pc

    return pc.list_value_length(ids.data.column(column)).to_numpy().astype(np.int64)


def cut(sequences: Sequence[Sequence[int]], limit: int) -> tuple[list[Sequence[int]], int]:
    """Each sequence cut to `limit` tokens, and how many had to be."""
    return [sequence[:limit] for sequence in sequences], sum(len(sequence) > limit for sequence in sequences)


def pad(sequences: list[list[int]], pad_id: int) -> Tensor:
    """Lists of ids as one int64 tensor (B, longest)."""
    table = np.full((len(sequences), max(map(len, sequences))), pad_id, dtype=np.int64)
    for row, ids in zip(table, sequences, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(table)


def second_part(first: Sequence[int], sequences: Sequence[Sequence[int]]) -> Tensor:
    """bool (B, N): the tokens behind the first part, whose lengths are `first`; padding is not among them."""
    lengths = torch.tensor([len(sequence) for sequence in sequences])[:, None]
    places = torch.arange(int(lengths.max()))
    return (places >= torch.tensor(first)[:, None]) & (places < lengths)
