"""Headline generation: articles and headlines, the encoder-decoder, and ROUGE compared to the lead-8 baseline."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from attnorm.data.featurizer import Table
from attnorm.data.preprocess import Split
from attnorm.data.sources.base import PAIRS
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.tasks.headlines.rouge import METRICS, Rouge, lead, means, rouge_line
from attnorm.tasks.results import Predictions, Results
from attnorm.tasks.seq2seq.base import Seq2SeqModule, Seq2SeqTask, Seq2SeqTaskConfig


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


@dataclass(frozen=True, kw_only=True)
class HeadlineTaskConfig(Seq2SeqTaskConfig):
    """The keys of `task`, as in conf/task/gigaword.yaml."""

    rouge_pairs: Annotated[int, Field(ge=0, le=1000)] = 200
    stemmer: bool = True


class HeadlineTask(Seq2SeqTask):
    """task=gigaword."""

    Config, schema, names = HeadlineTaskConfig, PAIRS, ("articles", "headlines")
    primary = "rougeL"
    scoring, monitoring = ("task.stemmer", "decoding"), ("task.rouge_pairs",)

    def module(self, model: Any, tokenizer: Tokenizer, validation: Split) -> HeadlineModule:
        return HeadlineModule(
            model,
            tokenizer,
            validation.texts,
            label_smoothing=self.config.label_smoothing,
            rouge_pairs=self.config.rouge_pairs,
            stemmer=self.config.stemmer,
            max_length=self.cfg["decoding"]["max_length"],
        )

    def score(self, module: HeadlineModule, split: Split) -> Results:
        """Loss and ROUGE of beam-searched headlines on the whole split, and the lead-8 baseline."""
        module.rouge_pairs = 0  # greedy headlines are for monitoring only
        loss = self.evaluate(module, split)["loss"]
        losses, n_tokens = module.examples["loss_sum"], module.examples["n_tokens"]
        rouge = Rouge(self.config.stemmer)
        headlines, seconds = self.write_split(module.model, split)
        articles, titles = list(split.texts["article"]), list(split.texts["title"])
        scores = rouge.each(headlines, titles)
        return Results(
            split.name,
            self.unit,
            len(titles),
            {**means(scores), "loss": loss},
            baselines={"lead-8": rouge([lead(article) for article in articles], titles)},
            note=rouge.describe(),
            settings=vars(self.decoding()),
            files={".txt": "\n".join(headlines) + "\n"},
            predictions=Predictions(range(len(titles)), titles, headlines, scores, losses, n_tokens, inputs=articles),
            samples=list(map(sample, articles, titles, headlines)),
            extra={"headlines_per_second": round(len(titles) / seconds, 1), "seconds": round(seconds, 1)},
        )
