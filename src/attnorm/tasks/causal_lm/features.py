"""Rows of a language model: packed pieces of documents for training, and windows of single documents for evaluation.

A document becomes [begin] w_1 ... w_n [end]. Each token except [begin] is predicted once, from the tokens before it in
its piece. The first token of a later piece is the last one of the piece before.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnorm.data.featurizer import Encoded, Featurizer, Table, list_lengths, pad
from attnorm.data.packing import best_fit
from attnorm.data.sampler import MicroBatch
from attnorm.data.sources.base import DOCUMENTS
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.tasks.module import Collator

WINDOW = 8  # training lengths that a window has at most


class Piece(NamedTuple):
    """A part of a document: the number of the document, and the tokens, each of which predicts its label."""

    document: int
    ids: list[int]
    labels: list[int]


def pieces_of(documents: Sequence[Sequence[int]], length: int, tokenizer: Tokenizer) -> Iterator[Piece]:
    """The pieces of at most `length` tokens of all documents, given without special tokens."""
    for number, ids in enumerate(documents):
        tokens = [tokenizer.bos_id, *ids, tokenizer.eos_id]
        for start in range(0, len(tokens) - 1, length):
            end = min(start + length, len(tokens) - 1)
            yield Piece(number, tokens[start:end], tokens[start + 1 : end + 1])


class LanguageFeaturizer(Featurizer):
    """What the rows of both kinds have in common: columns `ids` and `labels`, the token that follows each of `ids`.

    length: the number of tokens of the longest piece that the model is trained on.
    """

    schema = DOCUMENTS

    def __init__(self, length: int):
        self.length = length

    def settings(self) -> list:
        return [type(self).__name__, 1, self.length]

    def columns(self) -> dict:
        import pyarrow as pa

        return dict.fromkeys(("ids", "labels"), pa.list_(pa.int32()))

    def encode(self, texts: dict[str, list[str]], first: int, tokenizer: Tokenizer) -> Encoded:
        documents = tokenizer.encode(texts["text"])
        columns = self.rows(documents, texts["text"], first, tokenizer)
        counts = {
            "documents": len(documents),
            "tokens": sum(map(len, columns["ids"])),
            "unknown": sum(ids.count(tokenizer.unk_id) for ids in documents),
            "rows": len(columns["ids"]),
        }
        return columns, counts

    @abstractmethod
    def rows(
        self, documents: list[list[int]], texts: Sequence[str], first: int, tokenizer: Tokenizer
    ) -> dict[str, list]:
        """The columns of the rows of these documents, which are given as ids and as texts."""

    def weights(self, ids: Table) -> np.ndarray:
        return list_lengths(ids, "labels")

    def describe(self, counts: dict[str, int]) -> str:
        unknown = f", {counts['unknown']:,} of them <unk>" if counts["unknown"] else ""
        return f"{counts['documents']:,} documents, {counts['tokens']:,} tokens{unknown}, in {counts['rows']:,} rows"


class PackedDocuments(LanguageFeaturizer):
    """Rows for training: pieces of at most `length` tokens, packed by best fit into rows of at most `length` tokens.

    Columns: ids, labels, and pieces, the lengths of the pieces in the row.
    """

    def columns(self) -> dict:
        return super().columns() | {"pieces": super().columns()["ids"]}

    def rows(
        self, documents: list[list[int]], texts: Sequence[str], first: int, tokenizer: Tokenizer
    ) -> dict[str, list]:
        pieces = list(pieces_of(documents, self.length, tokenizer))
        rows = best_fit([len(piece.ids) for piece in pieces], self.length)
        return {
            "ids": [[token for number in row for token in pieces[number].ids] for row in rows],
            "labels": [[token for number in row for token in pieces[number].labels] for row in rows],
            "pieces": [[len(pieces[number].ids) for number in row] for row in rows],
        }


class DocumentWindows(LanguageFeaturizer):
    """Rows for evaluation: windows of at most `WINDOW * length` tokens of one document.

    Columns: ids, labels, document, and bytes. The UTF-8 bytes of the text of a document are divided among its windows
    in proportion to their tokens.
    """

    def settings(self) -> list:
        return [*super().settings(), WINDOW]

    def columns(self) -> dict:
        import pyarrow as pa

        return super().columns() | {"document": pa.int64(), "bytes": pa.int64()}

    def rows(
        self, documents: list[list[int]], texts: Sequence[str], first: int, tokenizer: Tokenizer
    ) -> dict[str, list]:
        windows = list(pieces_of(documents, WINDOW * self.length, tokenizer))
        sizes = [len(text.encode()) for text in texts]
        tokens = [len(ids) + 1 for ids in documents]
        done, n_bytes = [0] * len(documents), []
        for number, ids, _ in windows:
            before, after = done[number], done[number] + len(ids)
            n_bytes.append(sizes[number] * after // tokens[number] - sizes[number] * before // tokens[number])
            done[number] = after
        return {
            "ids": [window.ids for window in windows],
            "labels": [window.labels for window in windows],
            "document": [first + window.document for window in windows],
            "bytes": n_bytes,
        }


class LanguageCollator(Collator):
    """The tensors that both kinds of rows have: `ids`, `segments` and `labels`."""

    def of_pieces(self, rows: Sequence[Sequence[Sequence[int]]], labels: list[list[int]]) -> dict[str, Tensor]:
        """rows: the pieces of each row. Returns:

        ids:      int64 (B, T).
        segments: int64 (B, T), 1 for the first piece of a row, 2 for the second, and so on; 0 at padding.
        labels:   int64 (K,), the token after each of the K real tokens, row by row.
        """
        numbered = [[number for number, ids in enumerate(row, start=1) for _ in ids] for row in rows]
        return {
            "ids": pad([[token for ids in row for token in ids] for row in rows], self.pad_id),
            "segments": pad(numbered, 0),
            "labels": torch.tensor([token for of_row in labels for token in of_row]),
        }


class PackedCollator(LanguageCollator):
    """Rows of `PackedDocuments` -> tensors."""

    def tensors(self, table: dict[str, list], part: MicroBatch) -> dict[str, Tensor]:
        rows = []
        for ids, lengths in zip(table["ids"], table["pieces"], strict=True):
            ends = np.cumsum(lengths).tolist()
            rows.append([ids[end - length : end] for end, length in zip(ends, lengths, strict=True)])
        return self.of_pieces(rows, table["labels"])


class WindowCollator(LanguageCollator):
    """Rows of `DocumentWindows` -> tensors. A window is cut into pieces of `length` tokens, as in training."""

    def __init__(self, rows: Table, pad_id: int, length: int):
        super().__init__(rows, pad_id)
        self.length = length

    def tensors(self, table: dict[str, list], part: MicroBatch) -> dict[str, Tensor]:
        """Returns the tensors of `of_pieces` for the P pieces, one per row, and:

        window:       int64 (P,), the number of the window in the batch that the piece is from.
        bytes:        int64 (B,), of each window.
        whole:        int64 (W,), the numbers of the windows in the batch that have all `WINDOW * length` tokens.
        whole_ids, whole_labels: int64 (W, WINDOW * length), the tokens of these windows.
        """
        starts = [range(0, len(ids), self.length) for ids in table["ids"]]
        pieces = [
            [ids[start : start + self.length]]
            for ids, of_window in zip(table["ids"], starts, strict=True)
            for start in of_window
        ]
        whole = [number for number, ids in enumerate(table["ids"]) if len(ids) == WINDOW * self.length]
        shape = (len(whole), WINDOW * self.length)
        return {
            **self.of_pieces(pieces, table["labels"]),
            "window": torch.tensor([number for number, of_window in enumerate(starts) for _ in of_window]),
            "bytes": torch.tensor(table["bytes"]),
            "whole": torch.tensor(whole, dtype=torch.int64),
            "whole_ids": torch.tensor([table["ids"][number] for number in whole], dtype=torch.int64).view(shape),
            "whole_labels": torch.tensor([table["labels"][number] for number in whole], dtype=torch.int64).view(shape),
        }
