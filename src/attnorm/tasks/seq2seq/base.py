"""The base class of the tasks that map a text to a text with an encoder-decoder."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from attnorm.data.preprocess import Split
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import Problem
from attnorm.models.config import TransformerConfig
from attnorm.models.generation import Decoding, generate
from attnorm.progress import tracked
from attnorm.schema import Share
from attnorm.tasks.seq2seq.features import PairCollator, PairFeaturizer
from attnorm.tasks.seq2seq.generate import cut, special_tokens, write_texts
from attnorm.tasks.task import Task, TaskConfig, Tokens


@dataclass(frozen=True, kw_only=True)
class Seq2SeqTaskConfig(TaskConfig):
    """Options of every task of this kind.

    label_smoothing: the share of the target's probability that is spread over the vocabulary.
    """

    label_smoothing: Share = 0.0


class Seq2SeqTask(Task):
    """Pairs of texts and an encoder-decoder. A subclass implements `module` and `score`.

    names: what the two texts of a pair are called, in the plural.
    """

    Config: ClassVar[type[TaskConfig]] = Seq2SeqTaskConfig
    groups: ClassVar[dict[str, type]] = {"decoding": Decoding}
    interface, unit = "seq2seq", "pairs"
    scoring: ClassVar[tuple[str, ...]] = ("decoding",)
    names: ClassVar[tuple[str, str]] = ("sources", "targets")

    def featurizer(self) -> PairFeaturizer:
        model = self.cfg["model"]
        return PairFeaturizer(model["max_source"], model["max_target"], self.schema, self.names)

    def model(self, tokenizer: Tokenizer) -> Any:
        return self.build_model(vocab_size=tokenizer.vocab_size, pad_id=tokenizer.pad_id)

    def collator(self, split: Split) -> PairCollator:
        tokenizer = split.tokenizer
        return PairCollator(split.rows, tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)

    def decoding(self) -> Decoding:
        """The decoding options of the final texts."""
        return self.group("decoding")

    def generate(self, model: Any, tokenizer: Tokenizer, texts: list[str]) -> list[str]:
        return self.write(model, tokenizer, cut(tokenizer.encode(texts), self.cfg["model"]["max_source"]))

    def write(
        self, model: Any, tokenizer: Tokenizer, sources: Sequence[list[int]], progress: Callable = iter
    ) -> list[str]:
        """One text for each source, token ids without special tokens. `progress` wraps the list of batches."""
        with self.while_decoding(model):
            return write_texts(model, tokenizer, sources, self.decoding(), self.cfg["data"]["batch_tokens"], progress)

    def write_split(self, model: Any, split: Split) -> tuple[list[str], float]:
        """The texts for all sources of a split, with a progress bar, and the seconds that this took."""
        started = time.perf_counter()
        what = f"{split.name} {self.names[1]}"
        texts = self.write(model, split.tokenizer, split.rows["source"], lambda items: tracked(items, what))
        return texts, time.perf_counter() - started

    def attended(self, model: Any, tokenizer: Tokenizer, text: str) -> tuple[tuple[Tensor, ...], Tokens]:
        """The model reads the source and the target that it has generated."""
        [source] = cut(tokenizer.encode([text]), self.cfg["model"]["max_source"])
        source, special = [*source, tokenizer.eos_id], special_tokens(tokenizer)
        device = next(model.parameters()).device
        with self.while_decoding(model):
            [written] = generate(model, torch.tensor([source], device=device), special, self.decoding())
        target = [tokenizer.bos_id, *written]
        read, wrote = ([tokenizer.token(number) for number in ids] for ids in (source, target))

        def tokens(layer: str) -> tuple[list[str], list[str]]:
            of_decoder, to_source = layer.startswith("decoder"), layer.endswith("cross")
            return wrote if of_decoder else read, wrote if of_decoder and not to_source else read

        return (torch.tensor([source]), torch.tensor([target])), tokens

    def problems(self, is_valid: Callable[..., bool]) -> Iterator[str]:
        model = {"max_target": TransformerConfig.max_target, **self.cfg["model"]}
        data = self.cfg["data"]
        yield from length_problems(self.cfg, is_valid)
        if is_valid("data.batch_tokens", "model.max_source", "model.max_target"):
            longest = model["max_source"] + model["max_target"]
            if data["batch_tokens"] < longest:
                message = f"must be at least {longest}, the tokens of the longest possible pair"
                yield Problem("data.batch_tokens", message, data["batch_tokens"])


def length_problems(cfg: Mapping[str, Any], is_valid: Callable[..., bool]) -> Iterator[Problem]:
    """Problems with the lengths of the texts that a model may generate. is_valid: as in `Task.problems`."""
    decoding, positions = cfg["decoding"], cfg["model"].get("max_target", TransformerConfig.max_target)
    if is_valid("decoding.max_length", "model.max_target") and decoding["max_length"] >= positions:
        message = f"must be below model.max_target={positions}, because the begin token takes a position"
        yield Problem("decoding.max_length", message, decoding["max_length"])
    if is_valid("decoding.min_length", "decoding.max_length") and decoding["min_length"] > decoding["max_length"]:
        message = f"must be at most decoding.max_length={decoding['max_length']}"
        yield Problem("decoding.min_length", message, decoding["min_length"])
