"""Classification of texts or pairs of texts. The baseline always predicts the most frequent label."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attnorm.data import validation as checks
from attnorm.data.featurizer import pad, second_part
from attnorm.data.preprocess import Split
from attnorm.data.sampler import MicroBatch
from attnorm.data.sources.base import LABELLED, Source
from attnorm.data.sources.labelled_files import label_problems
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import DataError
from attnorm.models.heads import Classifier
from attnorm.tasks.bert import EncoderTask
from attnorm.tasks.labels import LabelFeaturizer, LabelModule, LabelTask, classified
from attnorm.tasks.module import Collator


class ClassificationFeaturizer(LabelFeaturizer):
    """One row per text or pair, truncated to `max_length` tokens, including special tokens.

    In a pair, the longer text is truncated first; if both have the same length, the second one. Raises ValueError if
    `max_length` is too small for two texts, and for invalid labels.
    """

    schema = LABELLED
    unknown = "label {!r} is not in data.labels"

    def __init__(self, max_length: int, labels: Sequence[str]):
        if problems := checks.whole_number("model.max_source", max_length, least=5) + label_problems(labels):
            raise DataError("\n".join(problems))
        super().__init__(labels)
        self.max_length = max_length

    def settings(self) -> list:
        return ["labelled", 1, self.max_length, self.labels]

    def columns(self) -> dict:
        """ids; `first`, the number of tokens of the first part, including [CLS] and [SEP]; label, its number."""
        import pyarrow as pa

        return {"ids": pa.list_(pa.int32()), "first": pa.int32(), "label": pa.int32()}

    def inputs(self, texts: dict[str, list[str]], tokenizer: Tokenizer) -> tuple[dict[str, list], dict[str, int]]:
        table: dict[str, list] = {"ids": [], "first": []}
        truncated = 0
        encoded = (tokenizer.encode(texts[column]) for column in ("text", "second"))
        for ids, second, text in zip(*encoded, texts["second"], strict=True):
            specials = 3 if text else 2
            kept = keep(len(ids), len(second), self.max_length - specials)
            truncated += kept != (len(ids), len(second))
            row = [tokenizer.bos_id, *ids[: kept[0]], tokenizer.eos_id]
            table["first"].append(len(row))
            table["ids"].append([*row, *second[: kept[1]], tokenizer.eos_id] if text else row)
        return table, {"truncated": truncated}

    def describe(self, counts: dict[str, int]) -> str:
        skipped = f"{counts['empty']:,} empty skipped, {counts['truncated']:,} truncated"
        return f"{counts['kept']:,} rows ({skipped}; {self.shares(counts)})"


def keep(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of two sequences fit into `room` if the longer one (in a tie, the second) is truncated first."""
    kept = min(second, max(room // 2, room - first))
    return min(first, room - kept), kept


class ClassificationCollator(Collator):
    """Rows of `ClassificationFeaturizer` -> tensors, padded to the longest row of the batch."""

    def tensors(self, table: dict[str, list], part: MicroBatch) -> dict[str, Tensor]:
        """Returns int64 tensors:

        ids:    (B, N).
        types:  (B, N), 1 in the second text.
        labels: (B,).
        """
        return {
            "ids": pad(table["ids"], self.pad_id),
            "types": second_part(table["first"], table["ids"]).long(),
            "labels": torch.tensor(table["label"]),
        }


class ClassificationModule(LabelModule):
    """Cross-entropy over the labels; accuracy and macro F1.

    texts: the validation split, with the columns text, second and label. labels: the names of the labels, by number.
    """

    inputs = ("ids", "types")


class ClassificationTask(LabelTask[Classifier, ClassificationModule], EncoderTask[Classifier, ClassificationModule]):
    """task=classify, task=mnli."""

    schema, unit, head = LABELLED, "rows", Classifier

    @property
    def labels(self) -> list[str]:
        """The names of the labels, by number."""
        return list(self.cfg.source.options["labels"])

    def featurizer(self) -> ClassificationFeaturizer:
        return ClassificationFeaturizer(self.cfg.model.max_source, self.labels)

    def model(self, tokenizer: Tokenizer) -> Classifier:
        return self.build_model(tokenizer, self.head, encoder=self.cfg.model_class, labels=len(self.labels))

    def module(self, model: Classifier, tokenizer: Tokenizer, validation: Split) -> ClassificationModule:
        return ClassificationModule(model, tokenizer, validation.texts, self.labels, self.class_weights())

    def collator(self, split: Split) -> ClassificationCollator:
        return ClassificationCollator(split.rows, split.tokenizer.pad_id)

    def clean(self, text: str, cleaner: Source) -> str:
        return "\t".join(super(ClassificationTask, self).clean(part, cleaner) for part in text.split("\t"))

    def generate(self, model: Classifier, tokenizer: Tokenizer, texts: list[str]) -> list[str]:
        """As `classified`. texts: texts, or pairs of texts with a tab between them."""
        pairs = [text.partition("\t") for text in texts]
        columns = {"text": [first for first, _, _ in pairs], "second": [second for _, _, second in pairs]}
        if self.cfg.source.options.get("second") and (single := [text for text, tab, _ in pairs if not tab]):
            raise DataError(f"{single[0]}: expected two texts with a tab between them")
        rows = {**columns, "label": self.labels[:1] * len(texts)}
        return classified(self, model, tokenizer, rows, labels=self.labels)

    def input_texts(self, split: Split) -> list[str]:
        return ["\n".join(filter(None, pair)) for pair in zip(split.texts["text"], split.texts["second"], strict=True)]
