"""Ends a process that hangs, and prints the stacks of its threads."""

import faulthandler
from contextlib import AbstractContextManager
from typing import Any

import pytorch_lightning as pl

from attnorm import progress

SLOW = 10  # times the limit, outside updates and in the first of them
FIRST_BATCHES = 10  # which may have to be compiled
STDERR = 2  # also where `sys.stderr` is not a file, as in a notebook


class Watchdog(pl.Callback, AbstractContextManager["Watchdog"]):
    """Ends this process with exit code 1 if there is no progress for `timeout` seconds, or SLOW times as long outside
    updates. `faulthandler` does so, also while C code holds the interpreter lock, and prints the stacks of all threads
    to standard error. The other processes of the run have the same limit.

    It is used both as a callback of the trainer and as a context manager around training and the final scores.

    timeout: None for no limit.
    """

    def __init__(self, timeout: float | None):
        self.timeout = timeout
        self.batches = 0
        self.children: list[Any] = []

    def arm(self, *_: Any, **__: Any) -> None:
        """There was progress, and what follows may be slow."""
        self._allow(SLOW)

    def _allow(self, times: int) -> None:
        if self.timeout is not None:
            faulthandler.dump_traceback_later(times * self.timeout, exit=True, file=STDERR)

    def __enter__(self) -> "Watchdog":
        progress.listeners.append(self.arm)  # called after an item under a progress bar
        return self

    def __exit__(self, *_: object) -> None:
        self.children.clear()  # Lightning kills this process after one of them has failed: it has to record why
        progress.listeners.remove(self.arm)
        faulthandler.cancel_dump_traceback_later()

    def setup(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        self.children = getattr(trainer.strategy.launcher, "procs", self.children)
        self.arm()

    on_validation_start = on_validation_batch_end = on_validation_end = on_save_checkpoint = on_train_end = arm

    def on_train_batch_start(self, *_: object) -> None:
        self.batches += 1
        self._allow(SLOW if self.batches <= FIRST_BATCHES else 1)

    def on_exception(self, *_: object) -> None:
        self.children.clear()
        self.arm()
