"""Headline generation: articles and headlines, the encoder-decoder, and ROUGE compared to the lead-8 baseline."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import Field

from attnorm.data.preprocess import Split
from attnorm.data.readers.text import read_json
from attnorm.data.sources.base import PAIRS
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import RunError
from attnorm.models.interfaces import Seq2SeqModel
from attnorm.tasks.rouge import METRICS, SAMPLE, Rouge, Words, lead, means, words_for
from attnorm.tasks.seq2seq import Seq2SeqModule, Seq2SeqTask, Seq2SeqTaskConfig, TextScores

FILE = "rouge.json"


class HeadlineModule(Seq2SeqModule):
    """Loss, validation loss, and ROUGE of greedy headlines. scorer: a `Rouge`."""

    counters = ("loss", "tokens", "pairs", *METRICS)
    shown = ("article", "title", "headline")
    sampled_line = "  ROUGE-1/2/L {rouge1:.1f} / {rouge2:.1f} / {rougeL:.1f} (greedy)"

    def add_scores(self, texts: list[str], targets: list[str]) -> None:
        scores = self.scorer.each(texts, targets)
        self.add(**{metric: sum(scores[metric]) for metric in METRICS}, pairs=len(texts))

    def metrics(self) -> dict[str, float]:
        """loss (nats per target token), perplexity, and ROUGE if headlines were generated."""
        rouge = {metric: self.sums[metric] / self.sums["pairs"] for metric in METRICS if self.sums["pairs"]}
        return {**super().metrics(), **rouge}


@dataclass(frozen=True, kw_only=True)
class HeadlineTaskConfig(Seq2SeqTaskConfig):
    """The keys of `task`, as in conf/task/gigaword.yaml."""

    rouge_pairs: Annotated[int, Field(ge=0, le=1000)] = 200
    stemmer: bool = True
    rouge_words: Words | None = None
    rouge_lsum: bool = False


class HeadlineTask(Seq2SeqTask[HeadlineModule]):
    """task=gigaword.

    Without `task.rouge_words`, the training references decide about the words of ROUGE. A run folder keeps the decision
    in rouge.json.
    """

    Config, schema, names = HeadlineTaskConfig, PAIRS, ("articles", "headlines")
    primary, sampled = "rougeL", METRICS
    scoring = ("task.stemmer", "task.rouge_words", "task.rouge_lsum", "decoding")
    monitoring = ("task.rouge_pairs",)
    decided: Words = "ascii"

    def splits(self, *arguments: Any, **options: Any) -> dict[str, Split]:
        splits = super().splits(*arguments, **options)
        if self.config.rouge_words is None and "train" in splits:
            texts = splits["train"].texts
            self.decided = words_for(texts[:: max(1, len(texts) // SAMPLE)]["title"])
        return splits

    def save(self, folder: Path) -> None:
        if self.config.rouge_words is None:
            (folder / FILE).write_text(json.dumps({"words": self.decided}) + "\n", encoding="utf-8")

    def load(self, folder: Path) -> None:
        if self.config.rouge_words is not None:
            return
        try:
            self.decided = read_json(folder / FILE)["words"]
        except (ValueError, OSError, RecursionError, KeyError, TypeError) as error:
            raise RunError(f"{folder / FILE}: expected an object with words; or type task.rouge_words=ascii") from error
        if self.decided not in get_args(Words):
            raise RunError(f"{folder / FILE}: words={self.decided}; allowed: {', '.join(get_args(Words))}")

    def module(self, model: Seq2SeqModel, tokenizer: Tokenizer, validation: Split) -> HeadlineModule:
        rouge = Rouge(self.config.stemmer, self.config.rouge_words or self.decided, self.config.rouge_lsum)
        pairs = self.config.rouge_pairs
        return HeadlineModule(model, tokenizer, validation.texts, rouge, **self.module_options(pairs))

    def text_scores(self, module: HeadlineModule, split: Split, texts: list[str]) -> TextScores:
        """ROUGE, and that of the lead-8 baseline."""
        articles, titles, rouge = split.texts["article"], list(split.texts["title"]), module.scorer
        examples = rouge.each(texts, titles)
        baselines = {"lead-8": rouge([lead(article) for article in articles], titles)}
        extra = {"undefined": rouge.undefined((title,) for title in titles)}
        return TextScores(means(examples), examples, baselines, rouge.describe(), extra=extra)
