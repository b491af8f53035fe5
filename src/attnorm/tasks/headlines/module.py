"""Headline generation: maps articles to headlines, trained with teacher forcing and evaluated with ROUGE."""

from typing import Any

from torch import Tensor

from attnorm.data.featurizer import Table
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.tasks.headlines.rouge import METRICS, Rouge, rouge_line
from attnorm.tasks.seq2seq.module import Seq2SeqModule


def sample(article: str, title: str, headline: str) -> dict[str, str]:
    """An article, its title and the generated headline, for display."""
    return {"article": article, "title": title, "headline": headline}


class HeadlineModule(Seq2SeqModule):
    """Loss, validation loss, and ROUGE of greedy headlines on the first `rouge_pairs` validation pairs.

    validation: a table with the columns article and title. Row i corresponds to row i of the validation batches.
    """

    counters = ("loss", "tokens", "pairs", *METRICS)

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        validation: Table,
        *,
        label_smoothing: float,
        rouge_pairs: int,
        stemmer: bool,
        max_length: int,
    ):
        super().__init__(model, tokenizer, label_smoothing=label_smoothing, max_length=max_length)
        self.validation, self.rouge_pairs = validation, rouge_pairs
        self.rouge = Rouge(stemmer)

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        super().validation_step(batch, batch_index)
        scored = batch["rows"] < self.rouge_pairs
        if scored.any():
            rows = batch["rows"][scored].tolist()
            table, headlines = self.validation[rows], self.write_greedy(batch["source"][scored])
            self.add(**self.rouge.sums(headlines, table["title"]), pairs=len(rows))
            self.samples += map(sample, table["article"], table["title"], headlines)

    def metrics(self) -> dict[str, float]:
        """loss (nats per target token), perplexity, and ROUGE if headlines were generated."""
        rouge = {metric: self.sums[metric] / self.sums["pairs"] for metric in METRICS if self.sums["pairs"]}
        return {**super().metrics(), **rouge}

    def format_line(self, metrics: dict[str, float]) -> str:
        rouge = f"  {rouge_line(metrics)} (greedy)" if "rouge1" in metrics else ""
        return f"perplexity {metrics['perplexity']:,.1f}{rouge}"
