"""A task: how sums become tokens, its loss and metric, and the class that builds both."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import torch
import torch.nn.functional as F
from lab.source import SUMS
from torch import Tensor

from attnorm.data.featurizer import Featurizer, pad
from attnorm.data.preprocess import Split
from attnorm.data.sampler import MicroBatch
from attnorm.errors import Problem
from attnorm.tasks.module import Collator, Loss, TaskModule
from attnorm.tasks.results import Predictions, Results
from attnorm.tasks.task import Task, TaskConfig


class SumFeaturizer(Featurizer):
    """left [eos] right, and the last digit of the sum."""

    schema = SUMS

    def settings(self) -> list:
        return ["sums", 1]

    def columns(self) -> dict:
        return {"ids": pa.list_(pa.int32()), "digit": pa.int32()}

    def encode(self, texts, first, tokenizer):
        pairs = zip(tokenizer.encode(texts["left"]), tokenizer.encode(texts["right"]), strict=True)
        ids = [[*left, tokenizer.eos_id, *right] for left, right in pairs]
        return {"ids": ids, "digit": [int(total[-1]) for total in texts["total"]]}, {}

    def describe(self, counts: dict[str, int]) -> str:
        return f"{counts['kept']:,} sums"


class SumCollator(Collator):
    def tensors(self, table: dict[str, list], part: MicroBatch) -> dict[str, Tensor]:
        return {"ids": pad(table["ids"], self.pad_id), "digit": torch.tensor(table["digit"])}


class SumModule(TaskModule):
    monitor, mode = "val/solved", "max"
    counters = ("loss", "sums", "solved")

    def __init__(self, model: torch.nn.Module, tokenizer, label_smoothing: float):
        super().__init__(model, tokenizer)
        self.label_smoothing = label_smoothing

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.model(batch["ids"])

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        scores, digits = self(batch), batch["digit"]
        objective = F.cross_entropy(scores, digits, reduction="sum", label_smoothing=self.label_smoothing)
        return Loss(objective, len(digits), plain=F.cross_entropy(scores, digits, reduction="sum"))

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        scores, digits = self(batch), batch["digit"]
        losses, guesses = F.cross_entropy(scores, digits, reduction="none"), scores.argmax(-1)
        self.add(loss=losses.sum().item(), sums=len(digits), solved=(guesses == digits).sum().item())
        if self.keep_examples:
            self.record(batch["rows"], loss_sum=losses, digit=digits, guess=guesses)

    def metrics(self) -> dict[str, float]:
        count = self.sums["sums"]
        return {"loss": self.sums["loss"] / count, "solved": 100.0 * self.sums["solved"] / count}

    def format_line(self, metrics: dict[str, float]) -> str:
        return f"solved {metrics['solved']:.1f}"


@dataclass(frozen=True, kw_only=True)
class SumConfig(TaskConfig):
    label_smoothing: float = 0.0


class SumTask(Task):
    Config, interface, schema, unit = SumConfig, "digits", SUMS, "sums"

    def featurizer(self) -> SumFeaturizer:
        return SumFeaturizer()

    def module(self, model: torch.nn.Module, tokenizer, validation: Split) -> SumModule:
        return SumModule(model, tokenizer, self.config.label_smoothing)

    def collator(self, split: Split) -> SumCollator:
        return SumCollator(split.rows, split.tokenizer.pad_id)

    def problems(self) -> Iterator[str]:
        largest, longest = self.cfg.source.build().largest, self.cfg.model.longest
        digits, allowed = len(str(largest)), (longest - 1) // 2
        if digits > allowed:
            message = f"allowed: up to {10**allowed - 1:,}, so that a sum fits model.longest={longest}"
            yield Problem("data.largest", message, largest)

    def score(self, module: SumModule, split: Split) -> Results:
        results, examples = super().score(module, split), module.examples
        digits, guesses = examples["digit"], examples["guess"]
        results.predictions = Predictions(
            ids=self.example_ids(split, range(len(digits))),
            references=[str(digit) for digit in digits],
            outputs=[str(guess) for guess in guesses],
            scores={"solved": [100.0 * (digit == guess) for digit, guess in zip(digits, guesses, strict=True)]},
            loss_sum=examples["loss_sum"],
            n_tokens=[1] * len(digits),
        )
        return results
