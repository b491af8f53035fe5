"""Stopping a run in good order: by a signal, because its time is up, or because it no longer improves."""

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Timer

from attnorm import progress
from attnorm.errors import Interrupted, stopping
from attnorm.run.checkpoint import LAST
from attnorm.run.run import Run
from attnorm.schema import Count


class GracefulStop(pl.Callback):
    """Turns the signals of `errors.SIGNALS` into `Interrupted`, after last.ckpt has been saved if the run is training.
    A reader that closes standard output counts as SIGPIPE. SIGUSR1 is left to NCCL if several GPUs take part.

    It is used both as a context manager around the whole run and as a callback of its trainer. Before and after
    training, when there is nothing to save, a signal raises at once. During training the update in progress is
    finished and saved by `Checkpoints`, on which all ranks agree. A second SIGINT raises at once in any case. Processes
    forked from this one, such as data workers, ignore the signals. Outside the main thread, where Python allows no
    handlers, signals are left alone.

    run: what is saved and continued.
    """

    def __init__(self, run: Run):
        self.run = run
        self.training = False
        self.received = self.saved_for = 0
        self.owner = os.getpid()
        self.previous: dict[int, Any] = {}
        self.ignores = sys.unraisablehook

    def __getstate__(self) -> dict[str, Any]:
        """For processes that are spawned, which have hooks of their own."""
        return {**vars(self), "ignores": None}

    def __enter__(self) -> "GracefulStop":
        self._install(may_use_nccl=torch.cuda.is_available())
        progress.stops.append(self._receive)
        self.ignores, sys.unraisablehook = sys.unraisablehook, self._ignored
        return self

    def __exit__(self, *_: object) -> None:
        sys.unraisablehook = self.ignores
        progress.stops.remove(self._receive)
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def _install(self, may_use_nccl: bool) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in stopping():
                if number != signal.SIGUSR1 or not may_use_nccl:
                    self.previous.setdefault(number, signal.getsignal(number))
                    signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self.owner:
            return
        if number == signal.SIGHUP:
            progress.leave_terminal()
        second_interrupt = self.received and number == signal.SIGINT
        self.received = number
        if not self.training or second_interrupt:
            raise self._interrupted(number)

    def _ignored(self, exception: Any) -> None:
        """Sends a signal again that came inside a `__del__`, whose exceptions Python prints and ignores."""
        if isinstance(stopped := exception.exc_value, Interrupted):
            self.received = 0
            threading.Timer(0.01, os.kill, (os.getpid(), stopped.signal_number)).start()
        else:
            self.ignores(exception)

    def _interrupted(self, number: int) -> Interrupted:
        last = self.run.checkpoint_file(LAST)
        return Interrupted(number, signal.Signals(number).name, last if last.exists() else None)

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.owner = os.getpid()  # a rank that was forked from the process that made this object
        # again, because Lightning has wrapped the handler of SIGTERM in one that does not save
        self._install(may_use_nccl=trainer.world_size > 1 and trainer.strategy.root_device.type == "cuda")
        self.training = True

    def on_train_batch_start(self, *_: object) -> None:
        if self.saved_for:  # only now, so that the metrics of the update before have been logged
            raise self._interrupted(self.saved_for)

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Lets early stopping decide anew. Lightning trains until `min_epochs`, but keeps an earlier decision to stop,
        although the metric may have improved since (Lightning#19966)."""
        if any(each.wait_count >= each.patience for each in trainer.early_stopping_callbacks):
            trainer.should_stop = False

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

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: object, batch: object, index: int
    ) -> None:
        if (index + 1) % trainer.accumulate_grad_batches == 0:
            super().on_train_batch_end(trainer, module, outputs, batch, index)

    def state_dict(self) -> dict[str, Any]:
        return {}


class EarlyStopping(pl.callbacks.EarlyStopping):
    """Lightning's early stopping on the metric that the task monitors.

    patience: validations without an improvement; None never stops.
    """

    def __init__(self, monitor: str, mode: str, patience: Count | None = None):
        super().__init__(monitor, mode=mode, patience=sys.maxsize if patience is None else patience)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues to count, with the patience that is set now."""
        super().load_state_dict({**state_dict, "patience": self.patience})
