"""What a run does besides training: counting tokens, stopping by signal."""

import signal
import time
from pathlib import Path

import pytorch_lightning as pl
import torch
from torch import Tensor

from attnorm.tasks.base import Task
from attnorm.training.checkpoints import LAST
from attnorm.training.errors import Interrupted


class Throughput(pl.Callback):
    """Real training tokens (no padding; source + target of a pair) a second on this device, validation not counted."""

    def __init__(self):
        self.tokens: Tensor | int = 0
        self.seconds, self.since = 0.0, None

    def on_train_batch_start(self, *_) -> None:
        if self.since is None:
            self.since = time.perf_counter()

    def on_train_batch_end(self, trainer: pl.Trainer, task: Task, outputs, batch: dict, *_) -> None:
        self.tokens = self.tokens + task.tokens(batch)

    def on_validation_start(self, *_) -> None:
        self._pause()

    def on_train_end(self, *_) -> None:
        self._pause()

    def _pause(self) -> None:
        if self.since is not None:
            self.seconds += time.perf_counter() - self.since
            self.since = None

    def per_second(self) -> float | None:
        """Tokens a second so far; None before the first pause."""
        return round(float(self.tokens) / self.seconds, 1) if self.seconds else None


class StopOnSignal(pl.Callback):
    """On SIGTERM or SIGINT: finish the update, save last.ckpt, stop with the signal's exit code.

    Every rank has to agree, for saving is done together; a second SIGINT stops at once.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self, checkpoints: Path):
        self.checkpoints = checkpoints
        self.received = self.saved_for = self.step = 0
        self.previous: dict = {}

    def on_train_start(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        self.step = trainer.global_step
        for number in self.SIGNALS:
            self.previous[number] = signal.signal(number, self._receive)

    def _receive(self, number: int, frame) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number

    def on_train_batch_end(self, trainer: pl.Trainer, task: pl.LightningModule, *_) -> None:
        if trainer.global_step == self.step:
            return  # gradients of an update under way would be lost
        self.step, received = trainer.global_step, self.received
        if trainer.world_size > 1:
            received = int(trainer.strategy.reduce(torch.tensor(received, device=task.device), reduce_op="max"))
        if received and not self.saved_for:
            trainer.save_checkpoint(self.checkpoints / f"{LAST}.ckpt")
            self.saved_for = received

    def on_train_batch_start(self, *_) -> None:
        if self.saved_for:  # only now, so that this update's metrics have been logged
            raise Interrupted(self.saved_for, signal.Signals(self.saved_for).name)

    def teardown(self, trainer: pl.Trainer, task: pl.LightningModule, stage: str) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
        self.previous = {}
