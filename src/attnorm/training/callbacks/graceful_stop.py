"""Stopping a run in good order: by a signal, because its time is up, or because it no longer improves."""

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Timer

from attnorm.errors import Interrupted
from attnorm.run.checkpoint import LAST
from attnorm.schema import Count

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)  # NCCL catches SIGUSR1


class GracefulStop(pl.Callback):
    """Turns SIGTERM, SIGINT and SIGUSR2 into `Interrupted`, after last.ckpt has been saved if the run is training.

    It is used both as a context manager around the whole run and as a callback of its trainer. Before and after
    training, when there is nothing to save, a signal raises at once. During training the update in progress is
    finished and saved by `Checkpoints`, on which all ranks agree. A second SIGINT raises at once in any case. Processes
    forked from this one, such as data workers, ignore the signals. Outside the main thread, where Python allows no
    handlers, signals are left alone.

    checkpoints: the folder of last.ckpt.
    """

    def __init__(self, checkpoints: Path):
        self.checkpoints = checkpoints
        self.training = False
        self.received = self.saved_for = 0
        self.owner = os.getpid()
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> "GracefulStop":
        if threading.current_thread() is threading.main_thread():
            self.previous = {number: signal.getsignal(number) for number in SIGNALS}
        self._install()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def _install(self) -> None:
        for number in self.previous:
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self.owner:
            return
        second_interrupt = self.received and number == signal.SIGINT
        self.received = number
        if not self.training or second_interrupt:
            raise self._interrupted(number)

    def _interrupted(self, number: int) -> Interrupted:
        last = self.checkpoints / f"{LAST}.ckpt"
        return Interrupted(number, signal.Signals(number).name, last if last.exists() else None)

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.owner = os.getpid()  # a rank that was forked from the process that made this object
        self._install()  # Lightning has wrapped the handler of SIGTERM in one that does not save
        self.training = True

    def on_train_batch_start(self, *_: object) -> None:
        if self.saved_for:  # only now, so that the metrics of the update before have been logged
            raise self._interrupted(self.saved_for)

    def on_exception(self, *_: object) -> None:
        self.training = False

    def on_train_end(self, *_: object) -> None:
        self.training = False
        if stopped_by := self.saved_for or self.received:  # a signal during the last update or its validation
            raise self._interrupted(stopped_by)


class TimeLimit(Timer):
    """`trainer.max_time`: ends training after the update in which the time of this process is up.

    Lightning's own timer can end it between two accumulated batches, whose gradients would then be lost. It also saves
    the time in checkpoints, so that a run that its limit has ended would never continue.
    """

    def __init__(self, duration: str):
        super().__init__(duration=duration, interval="step", verbose=False)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: object, batch: object, index: int
    ) -> None:
        if (index + 1) % trainer.accumulate_grad_batches == 0:
            super().on_train_batch_end(trainer, module, outputs, batch, index)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing: an earlier version has saved the time."""


class EarlyStopping(pl.callbacks.EarlyStopping):
    """Lightning's early stopping on the metric that the task monitors.

    patience: validations without an improvement; None never stops.
    """

    def __init__(self, monitor: str, mode: str, patience: Count | None = None):
        super().__init__(monitor, mode=mode, patience=sys.maxsize if patience is None else patience)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues to count, with the patience that is set now."""
        super().load_state_dict({**state_dict, "patience": self.patience})
