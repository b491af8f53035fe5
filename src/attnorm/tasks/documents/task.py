"""Classification of documents of several sentences. The baseline always predicts the most frequent label."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from attnorm.data import validation as checks
from attnorm.data.featurizer import Featurizer, Table, list_lengths, pad
from attnorm.data.preprocess import Split
from attnorm.data.sampler import MicroBatch
from attnorm.data.sentences import split_sentences
from attnorm.data.sources.passages import PASSAGES
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import DataError, Problem
from attnorm.tasks.labels import LabelModule, LabelTask
from attnorm.tasks.task import Tokens


class DocumentFeaturizer(Featurizer):
    """One row per document: the tokens of its sentences, truncated to `max_tokens` tokens in all.

    labels: the names of the labels, whose order defines their numbers.
    """

    schema = PASSAGES

    def __init__(self, max_tokens: int, labels: Sequence[str]):
        self.max_tokens, self.labels = max_tokens, list(labels)

    def settings(self) -> list:
        return ["documents", 1, self.max_tokens, self.labels]

    def columns(self) -> dict:
        """ids; sentences, the number of the sentence of each token, from 0; label, its number."""
        import pyarrow as pa

        return {"ids": pa.list_(pa.int32()), "sentences": pa.list_(pa.int32()), "label": pa.int32()}

    def encode(
        self, texts: dict[str, list[str]], first: int, tokenizer: Tokenizer
    ) -> tuple[Mapping[str, Sequence], dict[str, int]]:
        numbers = {name: number for number, name in enumerate(self.labels)}
        if unknown := sorted(set(texts["label"]) - numbers.keys()):
            message = f"data: label {unknown[0]!r} is not one that the model was trained on"
            raise DataError(checks.unknown(message, unknown[0], self.labels))
        documents = [encode_sentences(text, tokenizer) for text in texts["text"]]
        table: dict[str, list] = {
            "ids": [ids[: self.max_tokens] for ids, _ in documents],
            "sentences": [sentences[: self.max_tokens] for _, sentences in documents],
            "label": [numbers[name] for name in texts["label"]],
        }
        labels = Counter(texts["label"])
        counts = {f"label {name}": labels[name] for name in self.labels}
        counts["truncated"] = sum(len(ids) > self.max_tokens for ids, _ in documents)
        counts["sentences"] = sum(sentences[-1] + 1 for sentences in table["sentences"])
        return table, counts

    def lengths(self, ids: Table) -> np.ndarray:
        return list_lengths(ids, "ids").astype(np.int32)[:, None]

    def weights(self, ids: Table) -> np.ndarray:
        return np.ones(len(ids), np.int64)

    def describe(self, counts: dict[str, int]) -> str:
        shares = ", ".join(f"{name} {counts[f'label {name}'] / counts['kept']:.1%}" for name in self.labels)
        sentences = f"{counts['sentences'] / counts['kept']:.1f} sentences on average"
        return f"{counts['kept']:,} documents ({sentences}, {counts['truncated']:,} truncated; {shares})"


def encode_sentences(text: str, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The tokens of a text, and the number of the sentence of each.

    Sentences without tokens are not counted. A text without tokens is a single unknown one.
    """
    sentences = [ids for ids in tokenizer.encode(split_sentences(text)) if ids] or [[tokenizer.unk_id]]
    numbers = [[number] * len(ids) for number, ids in enumerate(sentences)]
    return list(chain.from_iterable(sentences)), list(chain.from_iterable(numbers))


class DocumentCollator(Dataset):
    """`MicroBatch` -> tensors, padded to the longest document of the batch. rows: a table of `DocumentFeaturizer`."""

    def __init__(self, rows: Table, pad_id: int):
        self.rows, self.pad_id = rows, pad_id

    def __getitem__(self, part: MicroBatch) -> dict[str, Tensor]:
        """Returns the tensors of a batch.

        ids: int64 (B, N). sentences: (B, N), the number of the sentence of each token, 0 at padding. labels: (B,).
        rows: (B,). divisor: (), the number of rows of the update.
        """
        table = self.rows[part.rows]
        return {
            "ids": pad(table["ids"], self.pad_id),
            "sentences": pad(table["sentences"], 0),
            "labels": torch.tensor(table["label"]),
            "rows": torch.tensor(part.rows),
            "divisor": torch.tensor(part.divisor),
        }


class DocumentModule(LabelModule):
    """Cross-entropy over the labels of documents; accuracy."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Scores (B, labels)."""
        return self.model(batch["ids"], batch["sentences"]).float()

    def tokens(self, batch: dict[str, Tensor]) -> Tensor:
        return (batch["ids"] != self.tokenizer.pad_id).sum()


class DocumentTask(LabelTask):
    """task=document_classification.

    The model has the options `max_tokens` and `queries` of `attnorm.models.documents.DocumentConfig`. The contiguous
    part of a text that a passage is from is its group: whether the best checkpoint is selected on it, or runs are
    compared on it, is decided for whole parts.
    """

    interface, schema, unit = "documents", PASSAGES, "passages"

    def problems(self, is_valid: Callable[..., bool]) -> Iterator[str]:
        if is_valid("data.batch_tokens", "model.max_tokens"):
            longest, tokens = self.cfg["model"]["max_tokens"], self.cfg["data"]["batch_tokens"]
            if tokens < longest:
                yield Problem("data.batch_tokens", f"must be at least {longest}, the tokens of a document", tokens)

    def featurizer(self) -> DocumentFeaturizer:
        return DocumentFeaturizer(self.cfg["model"]["max_tokens"], self.labels)

    def model(self, tokenizer: Tokenizer) -> nn.Module:
        words = {"vocab_size": tokenizer.vocab_size, "pad_id": tokenizer.pad_id}
        return self.build_model(labels=len(self.labels), **words)

    def module(self, model: nn.Module, tokenizer: Tokenizer, validation: Split) -> DocumentModule:
        return DocumentModule(model, tokenizer, validation.texts, self.labels)

    def collator(self, split: Split) -> DocumentCollator:
        return DocumentCollator(split.rows, split.tokenizer.pad_id)

    def row_groups(self, split: Split) -> Sequence[object]:
        return list(split.texts["part"])

    def attended(self, model: Any, tokenizer: Tokenizer, text: str) -> tuple[tuple, Tokens]:
        """The model reads the sentences of the text. A query is named by its number, with that of its sentence if every
        sentence has queries of its own."""
        ids, sentences = encode_sentences(text, tokenizer)
        most = self.cfg["model"]["max_tokens"]
        ids, sentences = ids[:most], sentences[:most]
        words = [tokenizer.token(number) for number in ids]
        queries = [f"query {number}" for number in range(self.cfg["model"]["queries"])]
        numbered = [f"sentence {number}" for number in range(sentences[-1] + 1)]
        of_words = queries
        if "sentence" in self.model_class().sites:
            of_words = [f"s{sentence}, {query}" for sentence in range(len(numbered)) for query in queries]

        def tokens(layer: str) -> tuple[list[str], list[str]]:
            return (queries, numbered) if layer == "sentence" else (of_words, words)

        return (torch.tensor([ids]), torch.tensor([sentences])), tokens
