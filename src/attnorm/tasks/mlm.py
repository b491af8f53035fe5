"""Masked language modelling ("BERT", Sec. 3.1): documents in blocks, and scores at the masked tokens only."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from attnorm.attention.transfer import on_cpu
from attnorm.data import validation as checks
from attnorm.data.featurizer import Encoded, Featurizer, Table, list_lengths
from attnorm.data.packing import best_fit
from attnorm.data.preprocess import Split
from attnorm.data.sources.base import DOCUMENTS
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import DataError, Problem
from attnorm.models.heads import MaskedLM
from attnorm.parts import TARGET
from attnorm.tasks.bert import EncoderTask
from attnorm.tasks.masking import MaskedLMCollator, Masking, masked_count
from attnorm.tasks.module import TaskModule, sums_per_row
from attnorm.tasks.results import Predictions, Results, hash_of
from attnorm.tasks.task import TaskConfig

SHOWN_ROWS, SHOWN_TOKENS = 5, 24  # samples show the first tokens of the first rows


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

    def encode(self, texts: dict[str, list[str]], first: int, tokenizer: Tokenizer) -> Encoded:
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


class MaskedLMModule(TaskModule[MaskedLM]):
    """Cross-entropy at the masked tokens. Validation reports loss, perplexity and accuracy."""

    counters = ("loss", "masked", "correct")
    line = "perplexity {perplexity:,.1f}  accuracy {accuracy:.1f}"

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Scores of the vocabulary at the masked positions only, (K, V)."""
        return self.model(batch["ids"], batch["segments"], batch["masked_positions"])

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        scores, labels, mask = self(batch).float(), batch["labels"], batch["masked_positions"]
        guesses = scores.argmax(-1)
        loss, correct = F.cross_entropy(scores, labels, reduction="sum"), (guesses == labels).sum()
        shown = (batch[name] for name in ("rows", "ids", "masked_positions", "labels"))
        loss, correct, rows, ids, masked, *tokens = on_cpu(loss, correct, *shown, guesses)
        self.add(loss=loss.item(), masked=len(labels), correct=correct.item())
        truth, filled = (ids.masked_scatter(masked, each) for each in tokens)
        for row in (rows < SHOWN_ROWS).nonzero().flatten().tolist():
            decoded = (self.tokenizer.decode(each[row, :SHOWN_TOKENS].tolist()) for each in (ids, truth, filled))
            self.samples.append(dict(zip(("shown", "text", "filled"), decoded, strict=True)))
        if self.keep_examples:
            counts = mask.sum(1).tolist()
            reference, output = ([part.tolist() for part in tokens.split(counts)] for tokens in (labels, guesses))
            correct = sums_per_row(guesses == labels, mask).long()
            loss_sum = sums_per_row(F.cross_entropy(scores, labels, reduction="none"), mask)
            texts: dict[str, Any] = {"reference": reference, "output": output}
            self.record(batch["rows"], **texts, loss_sum=loss_sum, n_tokens=counts, correct=correct)

    def metrics(self) -> dict[str, float]:
        """loss (nats per masked token), perplexity, and accuracy in percent."""
        loss = self.sums["loss"] / self.sums["masked"]
        accuracy = 100.0 * self.sums["correct"] / self.sums["masked"]
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "accuracy": accuracy}


EVALUATION_SEED = 0  # of the masks of validation and test splits: runs with different seeds can be compared


@dataclass(frozen=True, kw_only=True)
class MaskedLMTaskConfig(Masking, TaskConfig):
    """The keys of `task`, as in conf/task/mlm.yaml: those of `Masking`, and packed (several documents per block)."""

    packed: bool = True


class MaskedLMTask(EncoderTask[MaskedLM, MaskedLMModule]):
    """task=mlm."""

    Config, schema, unit, head = MaskedLMTaskConfig, DOCUMENTS, "documents", MaskedLM
    measured: ClassVar[dict[str, str]] = {"perplexity": "min", "accuracy": "max"}

    def featurizer(self) -> PackedFeaturizer:
        return PackedFeaturizer(self.cfg.model.max_source, self.config.packed, self.config.mask_prob)

    def module(self, model: MaskedLM, tokenizer: Tokenizer, validation: Split) -> MaskedLMModule:
        return MaskedLMModule(model, tokenizer)

    def collator(self, split: Split) -> MaskedLMCollator:
        """Batches whose masks depend on the seed of the run in training, and are the same for all runs otherwise."""
        seed = self.cfg.seed if split.name == "train" else EVALUATION_SEED
        return MaskedLMCollator(split.rows, split.tokenizer, self.config, seed)

    def input_hashes(self, split: Split) -> list[str]:
        return [hash_of(row) for row in split.rows]

    def score(self, module: MaskedLMModule, split: Split) -> Results:
        """Loss, perplexity and accuracy at the masked tokens. The predictions have one row per block."""
        scores, examples = super().score(module, split), module.examples
        text = cache(lambda token: split.tokenizer.decode([token]))  # few distinct tokens, so decoding is cached
        masked, filled = ([list(map(text, row)) for row in examples[name]] for name in ("reference", "output"))
        counts = list(zip(examples["correct"], examples["n_tokens"], strict=True))
        scores.predictions = Predictions(
            ids=range(len(split)),
            references=masked,
            outputs=filled,
            scores={"accuracy": [100.0 * correct / count if count else None for correct, count in counts]},
            loss_sum=examples["loss_sum"],
            n_tokens=examples["n_tokens"],
            statistics={"correct": examples["correct"]},
        )
        return scores

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not self.cfg.tokenizer.cls.has_mask:
            message = "has no mask token, which this task needs; use tokenizer=wordpiece"
            yield Problem(f"tokenizer.{TARGET}", message, self.cfg.settings["tokenizer"][TARGET])
