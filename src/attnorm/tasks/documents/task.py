"""Classification of documents of several sentences. The baseline always predicts the most frequent label."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from attnorm.data.preprocess import Split
from attnorm.data.sources.passages import PASSAGES
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import Problem
from attnorm.tasks.documents.features import DocumentCollator, DocumentFeaturizer, encode_sentences
from attnorm.tasks.documents.module import DocumentModule
from attnorm.tasks.labels import LabelTask
from attnorm.tasks.task import Tokens


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
