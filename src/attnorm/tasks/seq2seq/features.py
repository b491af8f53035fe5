"""Converts pairs of texts to rows of token ids, and rows to padded batches."""

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from attnorm.data.featurizer import Featurizer, Table, cut, list_lengths, pad
from attnorm.data.sampler import MicroBatch
from attnorm.data.sources.base import RowSchema
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.tasks.collator import Collator


class PairCollator(Collator):
    """Rows of `PairFeaturizer` -> tensors, padded to the longest sequence of the batch."""

    def __init__(self, rows: Table, pad_id: int, bos_id: int, eos_id: int):
        super().__init__(rows, pad_id)
        self.bos_id, self.eos_id = bos_id, eos_id

    def tensors(self, table: dict[str, list], part: MicroBatch) -> dict[str, Tensor]:
        """Returns int64 tensors:

        source: (B, N), with the end token.
        target: (B, T + 1), with the begin and end tokens.
        """
        return {
            "source": pad([[*ids, self.eos_id] for ids in table["source"]], self.pad_id),
            "target": pad([[self.bos_id, *ids, self.eos_id] for ids in table["target"]], self.pad_id),
        }


class PairFeaturizer(Featurizer):
    """One row per pair: source and target without special tokens, truncated so that one special token still fits.

    schema: of the source's rows, with two columns.
    names:  what the two texts of a pair are called, in the plural.
    max_source, max_target: maximum lengths in tokens, including special tokens.
    """

    def __init__(self, max_source: int, max_target: int, schema: RowSchema, names: tuple[str, str]):
        self.schema, self.names = schema, names
        self.limits = {"source": max_source - 1, "target": max_target - 1}

    def settings(self) -> list:
        return ["pairs", *self.limits.values()]

    def columns(self) -> dict:
        import pyarrow as pa

        return dict.fromkeys(self.limits, pa.list_(pa.int32()))

    def encode(
        self, texts: dict[str, list[str]], first: int, tokenizer: Tokenizer
    ) -> tuple[Mapping[str, Sequence], dict[str, int]]:
        ids, counts = {}, {}
        for column, (side, limit) in zip(texts.values(), self.limits.items(), strict=True):
            ids[side], counts[f"truncated_{side}"] = cut(tokenizer.encode(column), limit)
        return ids, counts

    def lengths(self, ids: Table) -> np.ndarray:
        return np.stack([list_lengths(ids, side) + 1 for side in self.limits], axis=1).astype(np.int32)

    def weights(self, ids: Table) -> np.ndarray:
        return list_lengths(ids, "target") + 1

    def describe(self, counts: dict[str, int]) -> str:
        sources, targets = self.names
        cut_off = f"{counts['truncated_source']:,} {sources} and {counts['truncated_target']:,} {targets} truncated"
        return f"{counts['kept']:,} pairs ({counts['empty']:,} empty skipped, {cut_off})"
