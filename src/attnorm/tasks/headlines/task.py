"""Headline generation: articles and headlines, the encoder-decoder, and ROUGE compared to the lead-8 baseline."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from attnorm.data.preprocess import Split
from attnorm.data.sources.base import PAIRS
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.tasks.headlines.rouge import METRICS, Rouge, lead, means, rouge_line
from attnorm.tasks.seq2seq.base import Seq2SeqModule, Seq2SeqTask, Seq2SeqTaskConfig, TextScores


class HeadlineModule(Seq2SeqModule):
    """Loss, validation loss, and ROUGE of greedy headlines. scorer: a `Rouge`."""

    counters = ("loss", "tokens", "pairs", *METRICS)
    shown = ("article", "title", "headline")

    def add_scores(self, texts: list[str], targets: list[str]) -> None:
        self.add(**self.scorer.sums(texts, targets), pairs=len(texts))

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
        rouge, pairs = Rouge(self.config.stemmer), self.config.rouge_pairs
        return HeadlineModule(model, tokenizer, validation.texts, rouge, **self.module_options(pairs))

    def text_scores(self, module: HeadlineModule, split: Split, texts: list[str]) -> TextScores:
        """ROUGE, and that of the lead-8 baseline."""
        articles, titles, rouge = split.texts["article"], list(split.texts["title"]), module.scorer
        examples = rouge.each(texts, titles)
        baselines = {"lead-8": rouge([lead(article) for article in articles], titles)}
        return TextScores(means(examples), examples, baselines, rouge.describe())
