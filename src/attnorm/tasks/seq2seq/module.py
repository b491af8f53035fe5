"""Training an encoder-decoder with teacher forcing, and validating it with its loss and with greedy texts."""

import math
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from attnorm.data.tokenizers.base import Tokenizer
from attnorm.models.generation import Decoding, generate
from attnorm.tasks.module import Loss, TaskModule, sums_per_row
from attnorm.tasks.seq2seq.generate import real_targets, special_tokens, target_logits


class Seq2SeqModule(TaskModule):
    """The loss of target tokens given the source and the earlier target tokens.

    A subclass extends `validation_step` and `metrics`, and implements `format_line`.
    """

    counters: tuple[str, ...] = ("loss", "tokens")

    model: Any  # a model with the interface "seq2seq"

    def __init__(self, model: Any, tokenizer: Tokenizer, *, label_smoothing: float, max_length: int):
        super().__init__(model, tokenizer)
        self.label_smoothing = label_smoothing
        self.special = special_tokens(tokenizer)
        self.greedy = Decoding(max_length=max_length)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """The decoder's states (B, T, W) under teacher forcing."""
        return self.model(batch["source"], batch["target"][:, :-1])

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        """Cross-entropy summed over target tokens. The objective includes label smoothing."""
        logits, labels = target_logits(self.model, batch)
        plain, smoothed = smoothed_cross_entropy(logits, labels, self.label_smoothing)
        return Loss(smoothed, len(labels), plain if self.label_smoothing else None)

    def tokens(self, batch: dict[str, Tensor]) -> Tensor:
        """Number of source tokens and predicted target tokens."""
        pad = self.special.pad
        return (batch["source"] != pad).sum() + (batch["target"][:, 1:] != pad).sum()

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        logits, labels = target_logits(self.model, batch)
        logits = logits.float()
        self.add(loss=F.cross_entropy(logits, labels, reduction="sum").item(), tokens=len(labels))
        if self.keep_examples:
            losses, real = F.cross_entropy(logits, labels, reduction="none"), real_targets(self.model, batch)
            self.record(batch["rows"], loss_sum=sums_per_row(losses, real), n_tokens=real.sum(1))

    def write_greedy(self, source: Tensor) -> list[str]:
        """One text for each row of source, int (B, N), without beam search."""
        return [self.tokenizer.decode(ids) for ids in generate(self.model, source, self.special, self.greedy)]

    def metrics(self) -> dict[str, float]:
        """loss (nats per target token) and perplexity."""
        loss = self.sums["loss"] / self.sums["tokens"]
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """The cross-entropy summed over tokens, and the same with label smoothing (Szegedy et al., 2016, Sec. 7):

        (1 - smoothing) * sum_i -log p_i(y_i) + smoothing * sum_i mean_v -log p_i(v)

    Both are computed from the same log-probabilities. The second one equals
    `F.cross_entropy(..., label_smoothing=smoothing)` bit for bit, because it uses the same operations.
    logits: (tokens, V). labels: int64 (tokens,).
    """
    log_p = logits.log_softmax(-1)
    plain = F.nll_loss(log_p, labels, reduction="sum")
    if not smoothing:
        return plain, plain
    return plain, (1.0 - smoothing) * plain + -log_p.sum(-1).sum() * (smoothing / logits.shape[-1])
