"""Image captioning: predicts the words of the captions of an image, with teacher forcing."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnorm.attention.transfer import index_by_mask, on_both, on_cpu
from attnorm.data.featurizer import Table
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.models.generation import Decoding
from attnorm.tasks.bleu import sacrebleu
from attnorm.tasks.captioning.generate import write
from attnorm.tasks.captioning.metric import CaptionMetric
from attnorm.tasks.module import Loss, TaskModule, sums_per_row
from attnorm.tasks.seq2seq.base import smoothed_cross_entropy


def sample(image: str, references: Sequence[str], caption: str) -> dict[str, str]:
    """An image, one of its captions and the generated one, for display."""
    return {"image": image, "reference": references[0], "caption": caption}


def references(texts: Table) -> list[list[str]]:
    """The captions of each image of a split, from its texts."""
    return [cell.split("\n") for cell in texts["captions"]]


class CaptioningModule(TaskModule):
    """Loss, validation loss, and scores of greedy captions of the first `scored_images` validation images.

    validation: a table with the columns id and captions. Row i corresponds to row i of the validation batches.
    """

    counters = ("loss", "tokens")

    model: Any  # with the interface "captioning"

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        validation: Table,
        *,
        label_smoothing: float,
        scored_images: int,
        max_length: int,
    ):
        super().__init__(model, tokenizer)
        sacrebleu()  # if it is missing, the user should learn it before the training
        self.validation, self.label_smoothing, self.scored_images = validation, label_smoothing, scored_images
        self.greedy = Decoding(max_length=max_length)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """The decoder's states (C, T, W) for the captions of a batch."""
        return self.model(batch["image"], batch.get("present"), batch["target"][:, :-1], batch["owner"])

    def target_logits(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Scores (tokens, V) of the real target tokens, these tokens, and where they are, bool (C, T)."""
        real = on_both(lambda target: target[:, 1:] != self.tokenizer.pad_id, batch["target"])
        labels = index_by_mask(batch["target"][:, 1:], real)
        return self.model.logits(index_by_mask(self(batch), real)).float(), labels, real

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        """Cross-entropy summed over target tokens. The objective includes label smoothing."""
        logits, labels, _ = self.target_logits(batch)
        plain, smoothed = smoothed_cross_entropy(logits, labels, self.label_smoothing)
        return Loss(smoothed, len(labels), plain if self.label_smoothing else None)

    def tokens(self, batch: dict[str, Tensor]) -> Tensor:
        """Number of predicted target tokens."""
        return (batch["target"][:, 1:] != self.tokenizer.pad_id).sum()

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        logits, labels, real = self.target_logits(batch)
        losses = F.cross_entropy(logits, labels, reduction="none")
        rows, loss = on_cpu(batch["rows"], losses.sum())
        self.add(loss=loss.item(), tokens=len(labels))
        if self.keep_examples:
            of_image = torch.zeros(len(batch["rows"]), dtype=torch.float64)
            owner = batch["owner"].cpu()
            self.record(
                rows,
                loss_sum=of_image.index_add(0, owner, sums_per_row(losses, real)),
                n_tokens=of_image.long().index_add(0, owner, real.sum(1).cpu()),
            )
        [scored] = (rows < self.scored_images).nonzero(as_tuple=True)
        if len(scored):
            at = scored.to(logits.device, non_blocking=True)
            present = batch["present"][at] if "present" in batch else None
            written = write(self.model, self.tokenizer, batch["image"][at], present, self.greedy)
            captions = map(self.tokenizer.decode, written)
            self.outputs += zip(rows[scored].tolist(), captions, strict=True)

    def metrics(self) -> dict[str, float]:
        """loss (nats per target token), perplexity, and the scores of greedy captions if there are any."""
        loss = self.sums["loss"] / self.sums["tokens"]
        metrics = {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
        if self.outputs:
            rows, captions = zip(*sorted(self.outputs), strict=True)
            table = self.validation[list(rows)]
            gold = references(table)
            self.samples = list(map(sample, table["id"], gold, captions))
            metrics |= CaptionMetric(gold)(captions)
        return metrics

    def format_line(self, metrics: dict[str, float]) -> str:
        names = [name for name in ("CIDEr-D", "BLEU-4") if name in metrics]
        scores = "".join(f"  {name} {metrics[name]:.1f}" for name in names) + " (greedy)" * bool(names)
        return f"perplexity {metrics['perplexity']:,.2f}{scores}"
