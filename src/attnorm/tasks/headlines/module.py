"""Headline generation: article in, headline out, trained by teacher forcing, judged by ROUGE."""

import math

import torch.nn.functional as F
from torch import Tensor

from attnorm.models.generation import Decoding, generate
from attnorm.models.seq2seq import Seq2Seq
from attnorm.optim import Optimization
from attnorm.tasks.headlines.generate import special_tokens, summed_loss, target_logits
from attnorm.tasks.headlines.rouge import METRICS, Rouge, rouge_line
from attnorm.tasks.module import Task


def sample(article: str, title: str, headline: str) -> dict[str, str]:
    """An article, its title, and what the model writes, to be shown."""
    return {"article": article, "title": title, "headline": headline}


class HeadlineTask(Task):
    """Loss, validation loss, and ROUGE of greedy headlines on the first `rouge_pairs` validation pairs.

    validation: table with columns article and title, row i being row i of the validation batches.
    """

    counted = ("loss", "tokens", "pairs", *METRICS)

    def __init__(
        self,
        model: Seq2Seq,
        tokenizer,
        optim: Optimization,
        validation,
        *,
        label_smoothing: float,
        rouge_pairs: int,
        stemmer: bool,
        max_length: int,
    ):
        super().__init__(model, tokenizer, optim)
        self.validation, self.label_smoothing, self.rouge_pairs = validation, label_smoothing, rouge_pairs
        self.special = special_tokens(tokenizer)
        self.greedy = Decoding(max_length=max_length)
        self.rouge = Rouge(stemmer)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """The decoder's states (B, T, W) under teacher forcing."""
        return self.model(batch["source"], batch["target"][:, :-1])

    def loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
        """Cross-entropy summed over target tokens, with label smoothing."""
        logits, labels = target_logits(self.model, batch)
        return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=self.label_smoothing), len(labels)

    def tokens(self, batch: dict[str, Tensor]) -> Tensor:
        """Source tokens and those target tokens that are predicted."""
        pad = self.special.pad
        return (batch["source"] != pad).sum() + (batch["target"][:, 1:] != pad).sum()

    def judge(self, batch: dict[str, Tensor]) -> dict[str, float]:
        loss, tokens = summed_loss(self.model, batch)
        totals = {"loss": loss, "tokens": tokens}
        judged = batch["rows"] < self.rouge_pairs
        if judged.any():
            rows = batch["rows"][judged].tolist()
            table = self.validation[rows]
            generated = generate(self.model, batch["source"][judged], self.special, self.greedy)
            headlines = [self.tokenizer.decode(ids) for ids in generated]
            totals |= {**self.rouge.sums(headlines, table["title"]), "pairs": len(rows)}
            self.samples += map(sample, table["article"], table["title"], headlines)
        return totals

    def results(self) -> dict[str, float]:
        """loss (nats per target token), perplexity, and ROUGE where headlines were judged."""
        loss = self.totals["loss"] / self.totals["tokens"]
        rouge = {metric: self.totals[metric] / self.totals["pairs"] for metric in METRICS if self.totals["pairs"]}
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), **rouge}

    def line(self, metrics: dict[str, float]) -> str:
        rouge = f"  {rouge_line(metrics)} (greedy)" if "rouge1" in metrics else ""
        return f"perplexity {metrics['perplexity']:,.1f}{rouge}"
