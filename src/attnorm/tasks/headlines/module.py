"""Headline generation: maps articles to headlines, trained with teacher forcing and evaluated with ROUGE."""

import math

import torch.nn.functional as F
from torch import Tensor

from attnorm.data.featurizer import Table
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.models.generation import Decoding, generate
from attnorm.models.seq2seq import Seq2Seq
from attnorm.tasks.headlines.generate import real_targets, special_tokens, target_logits
from attnorm.tasks.headlines.rouge import METRICS, Rouge, rouge_line
from attnorm.tasks.module import Loss, TaskModule, sums_per_row


def sample(article: str, title: str, headline: str) -> dict[str, str]:
    """An article, its title and the generated headline, for display."""
    return {"article": article, "title": title, "headline": headline}


class HeadlineModule(TaskModule):
    """Loss, validation loss, and ROUGE of greedy headlines on the first `rouge_pairs` validation pairs.

    validation: a table with the columns article and title. Row i corresponds to row i of the validation batches.
    """

    counters = ("loss", "tokens", "pairs", *METRICS)

    model: Seq2Seq

    def __init__(
        self,
        model: Seq2Seq,
        tokenizer: Tokenizer,
        validation: Table,
        *,
        label_smoothing: float,
        rouge_pairs: int,
        stemmer: bool,
        max_length: int,
    ):
        super().__init__(model, tokenizer)
        self.validation, self.label_smoothing, self.rouge_pairs = validation, label_smoothing, rouge_pairs
        self.special = special_tokens(tokenizer)
        self.greedy = Decoding(max_length=max_length)
        self.rouge = Rouge(stemmer)

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
        scored = batch["rows"] < self.rouge_pairs
        if scored.any():
            rows = batch["rows"][scored].tolist()
            table = self.validation[rows]
            generated = generate(self.model, batch["source"][scored], self.special, self.greedy)
            headlines = [self.tokenizer.decode(ids) for ids in generated]
            self.add(**self.rouge.sums(headlines, table["title"]), pairs=len(rows))
            self.samples += map(sample, table["article"], table["title"], headlines)

    def metrics(self) -> dict[str, float]:
        """loss (nats per target token), perplexity, and ROUGE if headlines were generated."""
        loss = self.sums["loss"] / self.sums["tokens"]
        rouge = {metric: self.sums[metric] / self.sums["pairs"] for metric in METRICS if self.sums["pairs"]}
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), **rouge}

    def format_line(self, metrics: dict[str, float]) -> str:
        rouge = f"  {rouge_line(metrics)} (greedy)" if "rouge1" in metrics else ""
        return f"perplexity {metrics['perplexity']:,.1f}{rouge}"


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
