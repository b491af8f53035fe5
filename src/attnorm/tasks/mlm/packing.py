"""Packs documents into blocks of token ids. Each document becomes [CLS] ... [SEP], split if it is too long."""

from collections.abc import Mapping, Sequence

import numpy as np

from attnorm.data import validation as checks
from attnorm.data.featurizer import Featurizer, Table, list_lengths
from attnorm.data.packing import best_fit
from attnorm.data.sources.base import DOCUMENTS
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import DataError
from attnorm.tasks.mlm.masking import masked_count


class PackedFeaturizer(Featurizer):
    """Blocks of at most `max_length` tokens, including special tokens. A longer document is split into pieces.

    packed:    put several whole pieces into a block, by best fit decreasing among the documents that are encoded
               together.
               False: one piece per block.
    mask_prob: share of the tokens that are masked. It affects the weights of rows, but not the ids.

    Columns: ids, and documents, the lengths of the pieces in the block. Raises ValueError if no token fits into
    `max_length`.
    """

    schema = DOCUMENTS

    def __init__(self, max_length: int, packed: bool, mask_prob: float):
        if problems := checks.whole_number("max_length", max_length, least=3):
            raise DataError("\n".join(problems))
        self.max_length, self.packed, self.mask_prob = max_length, packed, mask_prob

    def settings(self) -> list:
        return ["blocks", 1, self.max_length, self.packed]

    def columns(self) -> dict:
        import pyarrow as pa

        return dict.fromkeys(("ids", "documents"), pa.list_(pa.int32()))

    def encode(
        self, texts: dict[str, list[str]], first: int, tokenizer: Tokenizer
    ) -> tuple[Mapping[str, Sequence], dict[str, int]]:
        inner = self.max_length - 2
        documents = tokenizer.encode(texts["text"])
        pieces = [
            [tokenizer.bos_id, *ids[start : start + inner], tokenizer.eos_id]
            for ids in documents
            for start in range(0, len(ids), inner)
        ]
        lengths = [len(piece) for piece in pieces]
        blocks = best_fit(lengths, self.max_length) if self.packed else [[number] for number in range(len(pieces))]
        counts = {
            "documents": len(documents),
            "wordless": sum(not ids for ids in documents),
            "cut": sum(len(ids) > inner for ids in documents),
            "blocks": len(blocks),
            "tokens": sum(lengths),
        }
        columns = {
            "ids": [[token for number in block for token in pieces[number]] for block in blocks],
            "documents": [[lengths[number] for number in block] for block in blocks],
        }
        return columns, counts

    def weights(self, ids: Table) -> np.ndarray:
        return masked_count(list_lengths(ids, "ids") - 2 * list_lengths(ids, "documents"), self.mask_prob)

    def describe(self, counts: dict[str, int]) -> str:
        full = counts["tokens"] / max(1, counts["blocks"] * self.max_length)
        return (
            f"{counts['documents']:,} documents in {counts['blocks']:,} blocks of {self.max_length} tokens, {full:.1%} "
            f"full ({counts['empty'] + counts['wordless']:,} empty skipped, {counts['cut']:,} cut into pieces)"
        )
