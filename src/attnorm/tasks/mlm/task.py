"""Masked language modelling: documents in blocks, a BERT-shaped encoder, scores at the hidden tokens only."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from attnorm.data.preprocess import Split
from attnorm.data.sources.base import DOCUMENTS
from attnorm.data.tokenizers.base import tokenizer_class
from attnorm.errors import Problem
from attnorm.models.bert import MaskedLM
from attnorm.parts import TARGET, names_of
from attnorm.schema import NonNegative, Probability
from attnorm.tasks.bert import BertRecipe
from attnorm.tasks.mlm.masking import MaskedBatches, Masking
from attnorm.tasks.mlm.module import MaskedLMTask
from attnorm.tasks.mlm.packing import Blocks
from attnorm.tasks.task import TaskConfig


@dataclass(frozen=True, kw_only=True)
class MaskedLMConfig(TaskConfig):
    """The keys of `task`, as in conf/task/mlm.yaml; those of `Masking`, and packed: several documents to a block."""

    packed: bool = True
    share: Annotated[float, Field(gt=0, le=1)] = 0.15
    span_weights: tuple[NonNegative, ...] = (1.0, 0.5, 0.3333)
    whole_words: bool = False
    keep: Probability = 0.1
    random: Probability = 0.1


class MaskedLanguageModel(BertRecipe):
    """task=mlm."""

    Config, schema, counts, head = MaskedLMConfig, DOCUMENTS, "documents", MaskedLM

    def layout(self) -> Blocks:
        return Blocks(self.cfg["model"]["max_source"], self.config.packed, self.config.share)

    def masking(self) -> Masking:
        """Which tokens are masked, and what stands in their place."""
        return Masking(**{name: getattr(self.config, name) for name in names_of(Masking)})

    def task(self, model: MaskedLM, tokenizer, validation: Split) -> MaskedLMTask:
        return MaskedLMTask(model, tokenizer, self.optimization())

    def batches(self, split: Split) -> MaskedBatches:
        return MaskedBatches(split.rows, split.tokenizer, self.masking(), self.cfg["seed"])

    def problems(self, is_valid: Callable[..., bool]) -> Iterator[Problem]:
        yield from super().problems(is_valid)
        if is_valid("task"):
            yield from Masking.check({name: self.cfg["task"][name] for name in names_of(Masking)}, "task")
        if is_valid("tokenizer") and not tokenizer_class(self.cfg["tokenizer"]).has_mask:
            message = "has no mask token, which this task needs; use tokenizer=wordpiece"
            yield Problem(f"tokenizer.{TARGET}", message, self.cfg["tokenizer"][TARGET])
