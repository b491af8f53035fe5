"""Masked language modelling ("BERT", Sec. 3.1): what stands behind the hidden tokens, computed at these places only."""

import math

import torch.nn.functional as F
from torch import Tensor

from attnorm.models.bert import MaskedLM
from attnorm.optim import Optimization
from attnorm.tasks.module import Task

SHOWN_ROWS, SHOWN_TOKENS = 5, 24  # samples: the first tokens of the first rows


class MaskedLMTask(Task):
    """Cross-entropy at the hidden tokens; validation loss, perplexity and accuracy there."""

    counted = ("loss", "hidden", "right")

    def __init__(self, model: MaskedLM, tokenizer, optim: Optimization):
        super().__init__(model, tokenizer, optim)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Scores of the vocabulary at the hidden places only, (K, V)."""
        return self.model(batch["ids"], batch["segments"], batch["places"])

    def loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
        return F.cross_entropy(self(batch).float(), batch["labels"], reduction="sum"), len(batch["labels"])

    def tokens(self, batch: dict[str, Tensor]) -> Tensor:
        return (batch["ids"] != self.tokenizer.pad_id).sum()

    def judge(self, batch: dict[str, Tensor]) -> dict[str, float]:
        scores, labels = self(batch).float(), batch["labels"]
        guesses = scores.argmax(-1)
        self._show(batch, guesses)
        loss = F.cross_entropy(scores, labels, reduction="sum").item()
        return {"loss": loss, "hidden": len(labels), "right": (guesses == labels).sum().item()}

    def _show(self, batch: dict[str, Tensor], guesses: Tensor) -> None:
        """The first rows of the split: as the model sees them, as they were, as it fills them."""
        truth, filled = (batch["ids"].masked_scatter(batch["places"], tokens) for tokens in (batch["labels"], guesses))
        for place in (batch["rows"] < SHOWN_ROWS).nonzero().flatten().tolist():
            texts = (self.tokenizer.decode(ids[place, :SHOWN_TOKENS].tolist()) for ids in (batch["ids"], truth, filled))
            self.samples.append(dict(zip(("shown", "text", "filled"), texts, strict=True)))

    def results(self) -> dict[str, float]:
        """loss (nats per hidden token), perplexity, and accuracy in percent."""
        loss = self.totals["loss"] / self.totals["hidden"]
        accuracy = 100.0 * self.totals["right"] / self.totals["hidden"]
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "accuracy": accuracy}

    def line(self, metrics: dict[str, float]) -> str:
        return f"perplexity {metrics['perplexity']:,.1f}  accuracy {metrics['accuracy']:.1f}"
