"""Headline generation: articles and headlines, the encoder-decoder, ROUGE beside the lead-8 baseline."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from attnorm.data.preprocess import Split
from attnorm.data.sources.base import PAIRS
from attnorm.errors import Problem
from attnorm.models.config import Shape
from attnorm.models.generation import Decoding
from attnorm.models.seq2seq import Seq2Seq
from attnorm.progress import tracked
from attnorm.schema import Share
from attnorm.tasks.headlines.features import PairBatches, PairLayout
from attnorm.tasks.headlines.generate import write_headlines
from attnorm.tasks.headlines.module import HeadlineTask, sample
from attnorm.tasks.headlines.rouge import Rouge, lead
from attnorm.tasks.results import Scores
from attnorm.tasks.task import Recipe, TaskConfig


@dataclass(frozen=True, kw_only=True)
class HeadlineConfig(TaskConfig):
    """The keys of `task`, as in conf/task/gigaword.yaml."""

    label_smoothing: Share = 0.0
    rouge_pairs: Annotated[int, Field(ge=0, le=1000)] = 200
    stemmer: bool = True


class Headlines(Recipe):
    """task=gigaword."""

    Config, groups = HeadlineConfig, {"decoding": Decoding}
    interface, schema, counts = "seq2seq", PAIRS, "pairs"
    scoring, monitoring = ("task.stemmer", "decoding"), ("task.rouge_pairs",)

    def layout(self) -> PairLayout:
        return PairLayout(self.cfg["model"]["max_source"], self.cfg["model"]["max_target"])

    def model(self, tokenizer) -> Seq2Seq:
        return self.build_model(vocab_size=tokenizer.vocab_size, pad_id=tokenizer.pad_id)

    def task(self, model: Seq2Seq, tokenizer, validation: Split) -> HeadlineTask:
        return HeadlineTask(
            model,
            tokenizer,
            self.optimization(),
            validation.texts,
            label_smoothing=self.config.label_smoothing,
            rouge_pairs=self.config.rouge_pairs,
            stemmer=self.config.stemmer,
            max_length=self.cfg["decoding"]["max_length"],
        )

    def batches(self, split: Split) -> PairBatches:
        tokenizer = split.tokenizer
        return PairBatches(split.rows, tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)

    def decoding(self) -> Decoding:
        """How final headlines are generated."""
        return self.group("decoding")

    def problems(self, is_valid: Callable[..., bool]) -> Iterator[Problem]:
        model = {"max_target": Shape.max_target, **self.cfg["model"]}
        decoding, data = self.cfg["decoding"], self.cfg["data"]
        if is_valid("decoding.max_length", "model.max_target") and decoding["max_length"] >= model["max_target"]:
            message = f"must be below model.max_target={model['max_target']}, since the begin token takes a position"
            yield Problem("decoding.max_length", message, decoding["max_length"])
        if is_valid("decoding.min_length", "decoding.max_length") and decoding["min_length"] > decoding["max_length"]:
            message = f"must be at most decoding.max_length={decoding['max_length']}"
            yield Problem("decoding.min_length", message, decoding["min_length"])
        if is_valid("data.batch_tokens", "model.max_source", "model.max_target"):
            longest = model["max_source"] + model["max_target"]
            if data["batch_tokens"] < longest:
                message = f"must be at least {longest}, the tokens of the longest possible pair"
                yield Problem("data.batch_tokens", message, data["batch_tokens"])

    def score(self, task: HeadlineTask, split: Split) -> Scores:
        """Loss and ROUGE of beam-searched headlines on the whole split, beside the lead-8 baseline."""
        task.rouge_pairs = 0  # greedy headlines are for watching only
        loss = self.judged(task, split)["loss"]
        decoding, rouge = self.decoding(), Rouge(self.config.stemmer)
        started = time.perf_counter()
        headlines = write_headlines(
            task.model,
            split.tokenizer,
            split.rows["source"],
            decoding,
            self.cfg["data"]["batch_tokens"],
            lambda items: tracked(items, f"{split.name} headlines"),
        )
        seconds = time.perf_counter() - started
        articles, titles = list(split.texts["article"]), list(split.texts["title"])
        return Scores(
            split.name,
            self.counts,
            len(titles),
            {**rouge(headlines, titles), "loss": loss},
            baselines={"lead-8": rouge([lead(article) for article in articles], titles)},
            note=rouge.describe(),
            settings=vars(decoding),
            files={".txt": "\n".join(headlines) + "\n"},
            samples=list(map(sample, articles, titles, headlines)),
            more={"headlines_per_second": round(len(titles) / seconds, 1), "seconds": round(seconds, 1)},
        )
