"""Classification of documents of several sentences. The baseline always predicts the most frequent label."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from attnorm.data.featurizer import pad
from attnorm.data.preprocess import Split
from attnorm.data.sampler import MicroBatch
from attnorm.data.sentences import split_sentences
from attnorm.data.sources.base import LABELLED_DOCUMENTS
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import Problem
from attnorm.models.interfaces import LabelModel
from attnorm.tasks.labels import LabelFeaturizer, LabelModule, SourceLabelTask, classified
from attnorm.tasks.module import Collator
from attnorm.tasks.task import Tokens


class DocumentFeaturizer(LabelFeaturizer):
    """One row per document: the tokens of its sentences, truncated to `max_tokens` tokens in all."""

    schema = LABELLED_DOCUMENTS

    def __init__(self, max_tokens: int, labels: Sequence[str]):
        super().__init__(labels)
        self.max_tokens = max_tokens

    def settings(self) -> list:
        return ["documents", 1, self.max_tokens, self.labels]

    def columns(self) -> dict:
        """ids; sentences, the number of the sentence of each token, from 0; label, its number."""
        import pyarrow as pa

        return {"ids": pa.list_(pa.int32()), "sentences": pa.list_(pa.int32()), "label": pa.int32()}

    def inputs(self, texts: dict[str, list[str]], tokenizer: Tokenizer) -> tuple[dict[str, list], dict[str, int]]:
        documents = [encode_sentences(text, tokenizer) for text in texts["text"]]
        table: dict[str, list] = {
            "ids": [ids[: self.max_tokens] for ids, _ in documents],
            "sentences": [sentences[: self.max_tokens] for _, sentences in documents],
        }
        truncated = sum(len(ids) > self.max_tokens for ids, _ in documents)
        return table, {"truncated": truncated, "sentences": sum(row[-1] + 1 for row in table["sentences"])}

    def describe(self, counts: dict[str, int]) -> str:
        sentences = f"{counts['sentences'] / counts['kept']:.1f} sentences on average"
        return f"{counts['kept']:,} documents ({sentences}, {counts['truncated']:,} truncated; {self.shares(counts)})"


def encode_sentences(text: str, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The tokens of a text, and the number of the sentence of each.

    Sentences without tokens are not counted. A text without tokens is a single unknown one.
    """
    sentences = [ids for ids in tokenizer.encode(split_sentences(text)) if ids] or [[tokenizer.unk_id]]
    numbers = [[number] * len(ids) for number, ids in enumerate(sentences)]
    return list(chain.from_iterable(sentences)), list(chain.from_iterable(numbers))


class DocumentCollator(Collator):
    """Rows of `DocumentFeaturizer` -> tensors, padded to the longest document of the batch."""

    def tensors(self, table: dict[str, list], part: MicroBatch) -> dict[str, Tensor]:
        """Returns int64 tensors:

        ids:       (B, N).
        sentences: (B, N), the number of the sentence of each token, 0 at padding.
        labels:    (B,).
        """
        return {
            "ids": pad(table["ids"], self.pad_id),
            "sentences": pad(table["sentences"], 0),
            "labels": torch.tensor(table["label"]),
        }


class DocumentModule(LabelModule):
    """Cross-entropy over the labels of documents; accuracy."""

    inputs = ("ids", "sentences")


class DocumentTask(SourceLabelTask[DocumentModule]):
    """task=document_classification.

    The model has the options `max_tokens` and `queries` of `attnorm.models.documents.DocumentConfig`. The
    documents of a group, such as those of a file, are either all used to select the best checkpoint, or all used to
    compare runs.
    """

    interface, schema, unit, grouping = "documents", LABELLED_DOCUMENTS, "documents", "group"
    budget = (("model.max_tokens",), "the tokens of a document")

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        source: Any = self.source()
        if len(source.labels) == 1:
            yield Problem.about("data", f"all documents have the label {source.labels[0]}; expected several labels")

    def featurizer(self) -> DocumentFeaturizer:
        return DocumentFeaturizer(self.cfg.model.max_tokens, self.labels)

    def model(self, tokenizer: Tokenizer) -> nn.Module:
        return self.build_model(tokenizer, labels=len(self.labels))

    def module(self, model: LabelModel, tokenizer: Tokenizer, validation: Split) -> DocumentModule:
        return DocumentModule(model, tokenizer, validation.texts, self.labels, self.class_weights())

    def collator(self, split: Split) -> DocumentCollator:
        return DocumentCollator(split.rows, split.tokenizer.pad_id)

    def generate(self, model: LabelModel, tokenizer: Tokenizer, texts: list[str]) -> list[str]:
        rows = {"text": texts, "label": self.labels[:1] * len(texts)}
        return classified(self, model, tokenizer, rows, labels=self.labels)

    def attended(self, model: LabelModel, tokenizer: Tokenizer, text: str) -> tuple[tuple, Tokens]:
        """The model reads the sentences of the text. A query is named by its number, with that of its sentence if every
        sentence has queries of its own."""
        ids, sentences = encode_sentences(text, tokenizer)
        most = self.cfg.model.max_tokens
        ids, sentences = ids[:most], sentences[:most]
        words = [tokenizer.token(number) for number in ids]
        queries = [f"query {number}" for number in range(self.cfg.model.queries)]
        numbered = [f"sentence {number}" for number in range(sentences[-1] + 1)]
        of_words = queries
        if "sentence" in self.cfg.sites:
            of_words = [f"s{sentence}, {query}" for sentence in range(len(numbered)) for query in queries]

        def tokens(layer: str) -> tuple[list[str], list[str]]:
            return (queries, numbered) if layer == "sentence" else (of_words, words)

        return (torch.tensor([ids]), torch.tensor([sentences])), tokens
