"""Counting the tokens that a run trains on."""

import time
from typing import Any

import pytorch_lightning as pl
from torch import Tensor

from attnorm.tasks.module import TaskModule


class Throughput(pl.Callback):
    """Real training tokens (no padding; source + target of a pair) a second on this device, validation not counted."""

    def __init__(self) -> None:
        self.tokens: Tensor | int = 0
        self.seconds = 0.0
        self.since: float | None = None

    def on_train_batch_start(self, *_: Any) -> None:
        if self.since is None:
            self.since = time.perf_counter()

    def on_train_batch_end(
        self, trainer: pl.Trainer, task: pl.LightningModule, outputs: Any, batch: Any, *_: Any
    ) -> None:
        assert isinstance(task, TaskModule)
        self.tokens = self.tokens + task.tokens(batch)

    def on_validation_start(self, *_: Any) -> None:
        self._pause()

    def on_train_end(self, *_: Any) -> None:
        self._pause()

    def on_exception(self, *_: Any) -> None:
        self._pause()

    def _pause(self) -> None:
        if self.since is not None:
            self.seconds += time.perf_counter() - self.since
            self.since = None

    def per_second(self) -> float | None:
        """Tokens a second so far; None before the first pause."""
        return round(float(self.tokens) / self.seconds, 1) if self.seconds else None
