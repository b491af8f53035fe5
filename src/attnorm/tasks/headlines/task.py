"""Headline generation: articles and headlines, the encoder-decoder, and ROUGE compared to the lead-8 baseline."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from attnorm.data.preprocess import Split
from attnorm.data.sources.base import PAIRS
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import Problem
from attnorm.models.config import TransformerConfig
from attnorm.models.generation import Decoding, generate
from attnorm.models.seq2seq import Seq2Seq
from attnorm.progress import tracked
from attnorm.schema import Share
from attnorm.tasks.headlines.features import PairCollator, PairFeaturizer
from attnorm.tasks.headlines.generate import cut, special_tokens, write_headlines
from attnorm.tasks.headlines.module import HeadlineModule, sample
from attnorm.tasks.headlines.rouge import Rouge, lead, means
from attnorm.tasks.results import Predictions, Results
from attnorm.tasks.task import Task, TaskConfig, Tokens


@dataclass(frozen=True, kw_only=True)
class HeadlineTaskConfig(TaskConfig):
    """The keys of `task`, as in conf/task/gigaword.yaml."""

    label_smoothing: Share = 0.0
    rouge_pairs: Annotated[int, Field(ge=0, le=1000)] = 200
    stemmer: bool = True


class HeadlineTask(Task):
    """task=gigaword."""

    Config, groups = HeadlineTaskConfig, {"decoding": Decoding}
    interface, schema, unit = "seq2seq", PAIRS, "pairs"
    primary = "rougeL"
    scoring, monitoring = ("task.stemmer", "decoding"), ("task.rouge_pairs",)

    def featurizer(self) -> PairFeaturizer:
        return PairFeaturizer(self.cfg["model"]["max_source"], self.cfg["model"]["max_target"])

    def model(self, tokenizer: Tokenizer) -> Seq2Seq:
        return self.build_model(vocab_size=tokenizer.vocab_size, pad_id=tokenizer.pad_id)

    def module(self, model: Seq2Seq, tokenizer: Tokenizer, validation: Split) -> HeadlineModule:
        return HeadlineModule(
            model,
            tokenizer,
            validation.texts,
            label_smoothing=self.config.label_smoothing,
            rouge_pairs=self.config.rouge_pairs,
            stemmer=self.config.stemmer,
            max_length=self.cfg["decoding"]["max_length"],
        )

    def collator(self, split: Split) -> PairCollator:
        tokenizer = split.tokenizer
        return PairCollator(split.rows, tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)

    def decoding(self) -> Decoding:
        """The decoding options of the final headlines."""
        return self.group("decoding")

    def generate(self, model: Seq2Seq, tokenizer: Tokenizer, texts: list[str]) -> list[str]:
        sources = cut(tokenizer.encode(texts), self.cfg["model"]["max_source"])
        return write_headlines(model, tokenizer, sources, self.decoding(), self.cfg["data"]["batch_tokens"])

    def attended(self, model: Seq2Seq, tokenizer: Tokenizer, text: str) -> tuple[tuple[Tensor, ...], Tokens]:
        """The model reads the article and the headline that it has generated."""
        [source] = cut(tokenizer.encode([text]), self.cfg["model"]["max_source"])
        source, special = [*source, tokenizer.eos_id], special_tokens(tokenizer)
        device = next(model.parameters()).device
        [written] = generate(model, torch.tensor([source], device=device), special, self.decoding())
        target = [tokenizer.bos_id, *written]
        read, wrote = ([tokenizer.token(number) for number in ids] for ids in (source, target))

        def tokens(layer: str) -> tuple[list[str], list[str]]:
            of_decoder, to_article = layer.startswith("decoder"), layer.endswith("cross")
            return wrote if of_decoder else read, wrote if of_decoder and not to_article else read

        return (torch.tensor([source]), torch.tensor([target])), tokens

    def problems(self, is_valid: Callable[..., bool]) -> Iterator[str]:
        model = {"max_target": TransformerConfig.max_target, **self.cfg["model"]}
        decoding, data = self.cfg["decoding"], self.cfg["data"]
        if is_valid("decoding.max_length", "model.max_target") and decoding["max_length"] >= model["max_target"]:
            message = f"must be below model.max_target={model['max_target']}, because the begin token takes a position"
            yield Problem("decoding.max_length", message, decoding["max_length"])
        if is_valid("decoding.min_length", "decoding.max_length") and decoding["min_length"] > decoding["max_length"]:
            message = f"must be at most decoding.max_length={decoding['max_length']}"
            yield Problem("decoding.min_length", message, decoding["min_length"])
        if is_valid("data.batch_tokens", "model.max_source", "model.max_target"):
            longest = model["max_source"] + model["max_target"]
            if data["batch_tokens"] < longest:
                message = f"must be at least {longest}, the tokens of the longest possible pair"
                yield Problem("data.batch_tokens", message, data["batch_tokens"])

    def score(self, module: HeadlineModule, split: Split) -> Results:
        """Loss and ROUGE of beam-searched headlines on the whole split, and the lead-8 baseline."""
        module.rouge_pairs = 0  # greedy headlines are for monitoring only
        loss = self.evaluate(module, split)["loss"]
        losses, n_tokens = module.examples["loss_sum"], module.examples["n_tokens"]
        decoding, rouge = self.decoding(), Rouge(self.config.stemmer)
        started = time.perf_counter()
        headlines = write_headlines(
            module.model,
            split.tokenizer,
            split.rows["source"],
            decoding,
            self.cfg["data"]["batch_tokens"],
            lambda items: tracked(items, f"{split.name} headlines"),
        )
        seconds = time.perf_counter() - started
        articles, titles = list(split.texts["article"]), list(split.texts["title"])
        scores = rouge.each(headlines, titles)
        return Results(
            split.name,
            self.unit,
            len(titles),
            {**means(scores), "loss": loss},
            baselines={"lead-8": rouge([lead(article) for article in articles], titles)},
            note=rouge.describe(),
            settings=vars(decoding),
            files={".txt": "\n".join(headlines) + "\n"},
            predictions=Predictions(range(len(titles)), titles, headlines, scores, losses, n_tokens, inputs=articles),
            samples=list(map(sample, articles, titles, headlines)),
            extra={"headlines_per_second": round(len(titles) / seconds, 1), "seconds": round(seconds, 1)},
        )
