"""Masked language modelling ("BERT", Sec. 3.1): documents in blocks, and scores at the masked tokens only."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import torch.nn.functional as F
from torch import Tensor

from attnorm.attention.transfer import on_cpu
from attnorm.data.preprocess import Split
from attnorm.data.sources.base import DOCUMENTS
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import Problem
from attnorm.models.heads import MaskedLM
from attnorm.parts import TARGET
from attnorm.tasks.bert import EncoderTask
from attnorm.tasks.input_hashes import hash_of
from attnorm.tasks.mlm.masking import MaskedLMCollator, Masking
from attnorm.tasks.mlm.packing import PackedFeaturizer
from attnorm.tasks.module import Loss, TaskModule, sums_per_row
from attnorm.tasks.results import Predictions, Results
from attnorm.tasks.task import TaskConfig

SHOWN_ROWS, SHOWN_TOKENS = 5, 24  # samples show the first tokens of the first rows


class MaskedLMModule(TaskModule):
    """Cross-entropy at the masked tokens. Validation reports loss, perplexity and accuracy."""

    counters = ("loss", "masked", "correct")

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Scores of the vocabulary at the masked positions only, (K, V)."""
        return self.model(batch["ids"], batch["segments"], batch["masked_positions"])

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        return Loss(F.cross_entropy(self(batch).float(), batch["labels"], reduction="sum"), len(batch["labels"]))

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        scores, labels = self(batch).float(), batch["labels"]
        guesses = scores.argmax(-1)
        loss, correct = F.cross_entropy(scores, labels, reduction="sum"), (guesses == labels).sum()
        shown = (batch[name] for name in ("rows", "ids", "masked_positions", "labels"))
        loss, correct, *read = on_cpu(loss, correct, *shown, guesses)
        self.add(loss=loss.item(), masked=len(labels), correct=correct.item())
        self._show(*read)
        if self.keep_examples:
            self._record(batch, F.cross_entropy(scores, labels, reduction="none"), guesses)

    def _record(self, batch: dict[str, Tensor], losses: Tensor, guesses: Tensor) -> None:
        """Records the sums of each row, and its masked tokens with the predicted ones."""
        mask, labels = batch["masked_positions"], batch["labels"]
        counts = mask.sum(1).tolist()
        reference, output = ([part.tolist() for part in tokens.split(counts)] for tokens in (labels, guesses))
        correct = sums_per_row(guesses == labels, mask).long()
        loss_sum = sums_per_row(losses, mask)
        self.record(
            batch["rows"], reference=reference, output=output, loss_sum=loss_sum, n_tokens=counts, correct=correct
        )

    def _show(self, rows: Tensor, ids: Tensor, mask: Tensor, labels: Tensor, guesses: Tensor) -> None:
        """Shows the first rows of the split: the model's input, the original text, and the model's completion."""
        truth, filled = (ids.masked_scatter(mask, tokens) for tokens in (labels, guesses))
        for row in (rows < SHOWN_ROWS).nonzero().flatten().tolist():
            texts = (self.tokenizer.decode(shown[row, :SHOWN_TOKENS].tolist()) for shown in (ids, truth, filled))
            self.samples.append(dict(zip(("shown", "text", "filled"), texts, strict=True)))

    def metrics(self) -> dict[str, float]:
        """loss (nats per masked token), perplexity, and accuracy in percent."""
        loss = self.sums["loss"] / self.sums["masked"]
        accuracy = 100.0 * self.sums["correct"] / self.sums["masked"]
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "accuracy": accuracy}

    def format_line(self, metrics: dict[str, float]) -> str:
        return f"perplexity {metrics['perplexity']:,.1f}  accuracy {metrics['accuracy']:.1f}"


EVALUATION_SEED = 0  # of the masks of validation and test splits: runs with different seeds can be compared


@dataclass(frozen=True, kw_only=True)
class MaskedLMTaskConfig(Masking, TaskConfig):
    """The keys of `task`, as in conf/task/mlm.yaml: those of `Masking`, and packed (several documents per block)."""

    packed: bool = True


class MaskedLMTask(EncoderTask):
    """task=mlm."""

    Config, schema, unit, head = MaskedLMTaskConfig, DOCUMENTS, "documents", MaskedLM

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

    def problems(self, is_valid: Callable[..., bool]) -> Iterator[str]:
        yield from super().problems(is_valid)
        if is_valid("tokenizer") and not self.cfg.tokenizer.cls.has_mask:
            message = "has no mask token, which this task needs; use tokenizer=wordpiece"
            yield Problem(f"tokenizer.{TARGET}", message, self.cfg.settings["tokenizer"][TARGET])
