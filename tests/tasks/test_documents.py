"""Documents as rows of ids: the sentence of each token, truncation, counts, and batches."""

import pytest
import runs
import torch
from datasets import Dataset

from attnorm.data.sampler import MicroBatch
from attnorm.errors import ConfigError
from attnorm.skeleton.lab.tokenizer import Characters
from attnorm.tasks.documents import DocumentCollator, DocumentFeaturizer

TEXTS = {"text": ["ab c. d!", "a", ". b? . c d e f"], "label": ["x", "y", "x"], "group": ["0", "1", "2"]}


@pytest.fixture
def tokenizer():
    return Characters("abcdef")  # ids from 4; all other characters are the unknown token, 3


@pytest.fixture
def encoded(tokenizer):
    return DocumentFeaturizer(6, ["x", "y"]).encode(TEXTS, 0, tokenizer)


def test_a_text_without_tokens_is_an_unknown_one(tokenizer, monkeypatch):
    """Such as one of characters that a tokenizer drops."""
    monkeypatch.setattr(type(tokenizer), "_encode_words", lambda self, words: [[] for _ in words])
    rows = {"text": ["\u200b"], "label": ["x"], "group": ["0"]}
    table, counts = DocumentFeaturizer(6, ["x", "y"]).encode(rows, 0, tokenizer)
    assert table["ids"] == [[tokenizer.unk_id]] and table["sentences"] == [[0]] and counts["sentences"] == 1


def test_every_token_has_the_number_of_its_sentence_and_long_documents_are_truncated(encoded):
    table, counts = encoded
    assert table["ids"] == [[4, 5, 6, 3, 7, 3], [4], [3, 5, 3, 3, 6, 7]]
    assert table["sentences"] == [[0, 0, 0, 0, 1, 1], [0], [0, 1, 1, 2, 3, 3]]
    assert table["label"] == [0, 1, 0]
    assert counts == {"truncated": 1, "sentences": 2 + 1 + 4, "label x": 2, "label y": 1}
    shown = DocumentFeaturizer(6, ["x", "y"]).describe({**counts, "kept": 3})
    assert shown == "3 documents (2.3 sentences on average, 1 truncated; x 66.7%, y 33.3%)"


def test_a_batch_is_padded_with_its_own_ids(encoded, tokenizer):
    batches = DocumentCollator(Dataset.from_dict(encoded[0]), tokenizer.pad_id)
    batch = batches[MicroBatch([2, 1], 5)]
    assert batch["ids"].tolist() == [[3, 5, 3, 3, 6, 7], [4, 0, 0, 0, 0, 0]]
    assert batch["sentences"].tolist() == [[0, 1, 1, 2, 3, 3], [0] * 6]
    assert batch["labels"].tolist() == [0, 1] and batch["rows"].tolist() == [2, 1] and int(batch["divisor"]) == 5
    assert batch["ids"].dtype == batch["sentences"].dtype == torch.int64


def test_a_label_that_the_model_does_not_know_is_refused(tokenizer):
    with pytest.raises(ValueError, match="'x' is not one that the model was trained on; allowed: y, z"):
        DocumentFeaturizer(6, ["y", "z"]).encode(TEXTS, 0, tokenizer)


def test_documents_of_one_label_are_refused(tmp_path):
    (tmp_path / "texts").mkdir()
    for name in ("a", "b"):
        (tmp_path / "texts" / f"{name}.txt").write_text("A text.\n")
    one, two = (("task=document_classification", f"data.folder={folder}") for folder in (tmp_path, tmp_path / "texts"))
    with pytest.raises(ConfigError, match="all documents have the label texts; expected several labels"):
        runs.checked(runs.composed(*one))
    assert runs.checked(runs.composed(*two)).source.build().labels == ["a", "b"]
