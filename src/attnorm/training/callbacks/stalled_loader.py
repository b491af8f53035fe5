"""A notice when training has to wait for data."""

import logging
import os
import time
from collections import deque
from statistics import median
from typing import Any

import pytorch_lightning as pl

from attnorm.data.loader import ResumableLoader
from attnorm.schema import Positive

log = logging.getLogger(__name__)

STEPS = 50  # latest batches that a waiting time is compared with
TIMES = 5.0  # a stall is this many times as long as the training on a batch


class StalledLoader(pl.Callback):
    """Warns when a batch was waited for longer than `seconds`, and 5 times as long as the training on a batch takes.

    There is one warning per stall, however many batches in a row it affects. The wait for the first batch is not
    counted, because the workers start then. A loader that never returns is the business of run.hang_timeout.
    """

    def __init__(self, seconds: Positive = 5.0):
        self.seconds, self.is_stalled = seconds, False
        self.durations: deque[float] = deque(maxlen=STEPS)
        self.started = 0.0

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        loader = trainer.train_dataloader
        assert isinstance(loader, ResumableLoader)
        was_stalled = self.is_stalled
        typical = median(self.durations) if self.durations else float("inf")
        self.is_stalled = loader.wait > max(self.seconds, TIMES * typical)
        if self.is_stalled and not was_stalled:
            log.warning(
                "Step %d waited %.1f s for its data, while training on a batch takes %.2g s. %s",
                *(trainer.global_step + 1, loader.wait, typical, advice(loader.num_workers)),
            )
        self.started = time.perf_counter()

    def on_train_batch_end(self, *_: Any) -> None:
        self.durations.append(time.perf_counter() - self.started)


def advice(workers: int) -> str:
    """What to change so that data arrive in time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    more = min(max(2 * workers, 2), max(1, cores - 1))
    storage = "put paths.cache_dir on a faster disk"
    if more > workers:
        return f"Try data.num_workers={more} (now {workers}), or {storage}."
    return f"All {cores} cores load data already; try data.prefetch_factor=8, or {storage}."
