"""Masked language modelling ("BERT", Sec. 3.1): predicts the masked tokens, with scores at masked positions only."""

import math

import torch.nn.functional as F
from torch import Tensor

from attnorm.data.tokenizers.base import Tokenizer
from attnorm.models.bert import MaskedLM
from attnorm.tasks.module import Loss, TaskModule, sums_per_row

SHOWN_ROWS, SHOWN_TOKENS = 5, 24  # samples show the first tokens of the first rows


class MaskedLMModule(TaskModule):
    """Cross-entropy at the masked tokens. Validation reports loss, perplexity and accuracy."""

    counters = ("loss", "masked", "correct")

    def __init__(self, model: MaskedLM, tokenizer: Tokenizer):
        super().__init__(model, tokenizer)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Scores of the vocabulary at the masked positions only, (K, V)."""
        return self.model(batch["ids"], batch["segments"], batch["masked_positions"])

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        return Loss(F.cross_entropy(self(batch).float(), batch["labels"], reduction="sum"), len(batch["labels"]))

    def tokens(self, batch: dict[str, Tensor]) -> Tensor:
        return (batch["ids"] != self.tokenizer.pad_id).sum()

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        scores, labels = self(batch).float(), batch["labels"]
        guesses = scores.argmax(-1)
        self._show(batch, guesses)
        loss = F.cross_entropy(scores, labels, reduction="sum").item()
        self.add(loss=loss, masked=len(labels), correct=(guesses == labels).sum().item())
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

    def _show(self, batch: dict[str, Tensor], guesses: Tensor) -> None:
        """Shows the first rows of the split: the model's input, the original text, and the model's completion."""
        masked = batch["ids"], batch["masked_positions"]
        truth, filled = (masked[0].masked_scatter(masked[1], tokens) for tokens in (batch["labels"], guesses))
        for place in (batch["rows"] < SHOWN_ROWS).nonzero().flatten().tolist():
            texts = (self.tokenizer.decode(ids[place, :SHOWN_TOKENS].tolist()) for ids in (batch["ids"], truth, filled))
            self.samples.append(dict(zip(("shown", "text", "filled"), texts, strict=True)))

    def metrics(self) -> dict[str, float]:
        """loss (nats per masked token), perplexity, and accuracy in percent."""
        loss = self.sums["loss"] / self.sums["masked"]
        accuracy = 100.0 * self.sums["correct"] / self.sums["masked"]
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "accuracy": accuracy}

    def format_line(self, metrics: dict[str, float]) -> str:
        return f"perplexity {metrics['perplexity']:,.1f}  accuracy {metrics['accuracy']:.1f}"
