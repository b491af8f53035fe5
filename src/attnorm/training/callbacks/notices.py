"""Warnings about a run that goes on: a training loss far above its recent values, and training that waits for data."""

import logging
import math
import os
import time
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Any

import pytorch_lightning as pl

from attnorm.data.loader import ResumableLoader
from attnorm.schema import Count, Positive
from attnorm.training.module import TrainingModule

log = logging.getLogger(__name__)

LEAST = 20  # losses that are needed to judge the next one
BEYOND = 2.0  # a spike is this many times as far above the median as the largest of the recent losses
SIGMA = 1.4826  # the standard deviation of a normal distribution, in units of its median absolute deviation

STEPS = 50  # latest batches that a waiting time is compared with
TIMES = 5.0  # a stall is this many times as long as the training on a batch


class LossSpike(pl.Callback):
    """Warns when the loss of an update is far above its recent values.

    Far means that the logarithm of the loss is more than `threshold` robust standard deviations (1.4826 times the
    median absolute deviation) above the median of the last `window` losses, and more than twice as far above it as the
    largest of them. The second condition keeps rare batches that are harder than others from being reported, and gives
    one warning per spike. There is no warning before 20 losses are known. If a loss is 0 or negative, the losses
    themselves are compared.

    Each rank looks at the loss of its own share of the update, in the unit of the metric train/loss. The recent losses
    are part of the checkpoint.
    """

    def __init__(self, window: Count = 50, threshold: Positive = 6.0):
        self.recent: deque[float] = deque(maxlen=max(window, LEAST))
        self.threshold = threshold

    def state_dict(self) -> dict[str, Any]:
        return {"recent": list(self.recent)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.recent.clear()
        self.recent.extend(state_dict["recent"])

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        assert isinstance(module, TrainingModule)
        if (index + 1) % trainer.accumulate_grad_batches:
            return
        loss = float(module.totals[0]) / max(1, module.size)
        if not math.isfinite(loss):
            return
        if is_spike(loss, self.recent, self.threshold):
            data: Any = trainer.datamodule  # type: ignore[attr-defined]  # set by Lightning
            rows = [row for part in module.update for row in part.batch["rows"].tolist()]
            examples = dict.fromkeys(data.task.example_ids(data.splits["train"], rows[:8]))
            log.warning(
                "The loss rose to %.4g at step %d, from about %.4g in the %d updates before; examples %s%s.",
                *(loss, trainer.global_step, median(self.recent), len(self.recent)),
                *(", ".join(examples), ", ..." * (len(rows) > 8)),
            )
        self.recent.append(loss)


def is_spike(loss: float, recent: Sequence[float], threshold: float) -> bool:
    """Whether a loss is far above the recent ones, see `LossSpike`."""
    if len(recent) < LEAST:
        return False
    values = [*recent, loss]
    *before, now = map(math.log, values) if min(values) > 0 else values
    middle = median(before)
    deviation = SIGMA * median(abs(value - middle) for value in before)
    return now - middle > max(threshold * deviation, BEYOND * (max(before) - middle))


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
