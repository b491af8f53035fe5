"""Masked language modelling: documents in blocks, a BERT-shaped encoder, and scores at the masked tokens only."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated

from pydantic import Field

from attnorm.data.preprocess import Split
from attnorm.data.sources.base import DOCUMENTS
from attnorm.data.tokenizers.base import Tokenizer, tokenizer_class
from attnorm.errors import Problem
from attnorm.models.bert import MaskedLM
from attnorm.parts import TARGET, names_of
from attnorm.schema import NonNegative, Probability
from attnorm.tasks.bert import EncoderTask
from attnorm.tasks.input_hashes import hash_of
from attnorm.tasks.mlm.masking import MaskedLMCollator, Masking
from attnorm.tasks.mlm.module import MaskedLMModule
from attnorm.tasks.mlm.packing import PackedFeaturizer
from attnorm.tasks.results import Predictions, Results
from attnorm.tasks.task import TaskConfig

EVALUATION_SEED = 0  # of the masks of validation and test splits: runs with different seeds can be compared


@dataclass(frozen=True, kw_only=True)
class MaskedLMTaskConfig(TaskConfig):
    """The keys of `task`, as in conf/task/mlm.yaml: those of `Masking`, and packed (several documents per block)."""

    packed: bool = True
    mask_prob: Annotated[float, Field(gt=0, le=1)] = 0.15
    span_weights: tuple[NonNegative, ...] = (1.0, 0.5, 0.3333)
    whole_words: bool = False
    keep_prob: Probability = 0.1
    random_prob: Probability = 0.1


class MaskedLMTask(EncoderTask):
    """task=mlm."""

    Config, schema, unit, head = MaskedLMTaskConfig, DOCUMENTS, "documents", MaskedLM

    def featurizer(self) -> PackedFeaturizer:
        return PackedFeaturizer(self.cfg["model"]["max_source"], self.config.packed, self.config.mask_prob)

    def masking(self) -> Masking:
        """Which tokens are masked, and what replaces them."""
        return Masking(**{name: getattr(self.config, name) for name in names_of(Masking)})

    def module(self, model: MaskedLM, tokenizer: Tokenizer, validation: Split) -> MaskedLMModule:
        return MaskedLMModule(model, tokenizer)

    def collator(self, split: Split) -> MaskedLMCollator:
        """Batches whose masks depend on the seed of the run in training, and are the same for all runs otherwise."""
        seed = self.cfg["seed"] if split.name == "train" else EVALUATION_SEED
        return MaskedLMCollator(split.rows, split.tokenizer, self.masking(), seed)

    def input_hashes(self, split: Split) -> list[str]:
        return [hash_of(row) for row in split.rows]

    def score(self, module: MaskedLMModule, split: Split) -> Results:
        """Loss, perplexity and accuracy at the masked tokens. The predictions have one row per block."""
        scores, examples = super().score(module, split), module.examples
        text = cache(lambda token: split.tokenizer.decode([token]))  # few distinct tokens, so decoding is cached
        masked, filled = ([list(map(text, row)) for row in examples[name]] for name in ("reference", "output"))
        counts = list(zip(examples["correct"], examples["n_tokens"], strict=True))
        scores.predictions = Predictions(
            ids=range(len(split)),
            references=masked,
            outputs=filled,
            scores={"accuracy": [100.0 * correct / count if count else None for correct, count in counts]},
            loss_sum=examples["loss_sum"],
            n_tokens=examples["n_tokens"],
            statistics={"correct": examples["correct"]},
        )
        return scores

    def problems(self, is_valid: Callable[..., bool]) -> Iterator[str]:
        yield from super().problems(is_valid)
        if is_valid("task"):
            options = {name: value for name, value in self.cfg["task"].items() if name in names_of(Masking)}
            yield from Masking.check(options, "task")
        if is_valid("tokenizer") and not tokenizer_class(self.cfg["tokenizer"]).has_mask:
            message = "has no mask token, which this task needs; use tokenizer=wordpiece"
            yield Problem(f"tokenizer.{TARGET}", message, self.cfg["tokenizer"][TARGET])
