"""How fast a run trains (tokens per second, padding, waiting for data, use of the device), and what an update costs."""

import operator
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from torch import Tensor

from attnorm.data.loader import ResumableLoader
from attnorm.run.writing import RunWriter
from attnorm.schema import WholeNumber
from attnorm.training.callbacks.attention_stats import log_now
from attnorm.training.flops import flops_per_token, peak_flops
from attnorm.training.module import TrainingModule
from attnorm.training.processes import is_first_rank

TIMING_COLUMNS = ("train/tokens_per_second", "train/data_wait_share", "train/mfu")  # differ between two equal runs


class Amounts(NamedTuple):
    """What has been counted: tokens without padding, tokens with padding, and seconds of training and of waiting."""

    tokens: Tensor | float = 0.0
    positions: int = 0
    seconds: float = 0.0
    waited: float = 0.0

    def minus(self, other: "Amounts") -> "Amounts":
        return Amounts(*map(operator.sub, self, other))


class Throughput(pl.Callback):
    """Measures the speed of training on this device, and logs it every `trainer.log_every_n_steps` updates.

    tokens_per_second: real tokens (no padding; source + target of a pair) per second.
    padding_share:     the share of padding in the tokens of the batches.
    data_wait_share:   the share of the time that training waits for the next batch.
    mfu:               model FLOPs utilisation (Chowdhery et al., 2022, "PaLM", appendix B): the floating-point
                       operations per second of the matrix products of the model, as a share of the device's peak. It
                       is left out if the peak is unknown, see `peak_flops`.

    The logged values are means over the updates since they were logged last; `totals` are those of the whole process.
    Validation, and saving checkpoints, are not counted. No value is read from the device before it is logged.
    """

    def __init__(self) -> None:
        self.total = Amounts()
        self.logged = Amounts()  # the total when values were logged last
        self.since: float | None = None  # None: the clock stands still
        self.flops: float | None = None  # per token
        self.peak: float | None = None  # FLOPs per second

    def state_dict(self) -> dict[str, Any]:
        """The tokens since values were logged last. Times are not those of another process."""
        recent = self.total.minus(self.logged)
        return {"tokens": float(recent.tokens), "positions": recent.positions}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.logged = Amounts(-state_dict["tokens"], -state_dict["positions"])

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, TrainingModule)
        loader = loader_of(trainer)
        self.seen = (loader.positions, loader.waited)
        self.peak = peak_flops(module.device, str(trainer.precision))
        self.flops = flops_per_token(module.task_module, loader) if self.peak else None

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        loader = loader_of(trainer)
        if self.since is None:
            self.since = time.perf_counter()
            self.seen = (self.seen[0], loader.waited)  # this wait was not on the clock

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        assert isinstance(module, TrainingModule)
        loader, (positions, waited) = loader_of(trainer), self.seen
        self.seen = (loader.positions, loader.waited)
        total = self.total
        self.total = Amounts(
            total.tokens + module.task_module.tokens(batch),
            total.positions + loader.positions - positions,
            total.seconds,
            total.waited + loader.waited - waited,
        )
        interval: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by Lightning
        is_update = (index + 1) % trainer.accumulate_grad_batches == 0
        if is_update and interval and trainer.global_step % interval == 0:
            self._tick()
            values = self.values(self.total.minus(self.logged))
            # not through Lightning's log, which would cost time in every other update as well
            log_now(trainer, {f"train/{name}": value for name, value in values.items()})
            self.logged = self.total

    def _tick(self) -> None:
        """Adds the time since the last call while the clock runs."""
        if self.since is not None:
            now = time.perf_counter()
            self.total = self.total._replace(seconds=self.total.seconds + now - self.since)
            self.since = now

    def _pause(self, *_: Any) -> None:
        self._tick()
        self.since = None

    on_validation_start = on_save_checkpoint = on_train_end = on_exception = _pause  # type: ignore[assignment]

    def values(self, amounts: Amounts) -> dict[str, float]:
        """The four values, without those that are unknown."""
        measured = {}
        tokens = float(amounts.tokens)
        if amounts.seconds:
            measured["tokens_per_second"] = tokens / amounts.seconds
        if amounts.positions:
            measured["padding_share"] = 1.0 - tokens / amounts.positions
        if amounts.seconds:
            measured["data_wait_share"] = min(1.0, amounts.waited / amounts.seconds)
            if self.flops and self.peak:
                measured["mfu"] = tokens / amounts.seconds * self.flops / self.peak
        return measured

    def totals(self) -> dict[str, float | None]:
        """The values over the whole process, rounded, for summary.json; empty before the first pause."""
        digits = {"tokens_per_second": 1, "padding_share": 4, "data_wait_share": 4, "mfu": 6}
        return {name: round(value, digits[name]) for name, value in self.values(self.total).items()}


class UpdateCost(pl.Callback):
    """Measures the cost of an update, for sweeps that give every arm the same budget.

    It writes cost.json: the mean cost of an update over all updates of the run except the first `warmup` ones.

    seconds: on a CPU, the time that all threads of the process compute; it does not depend on what else the machine
             does. On a GPU, the wall time, with the device synchronized before and after.
    flops:   `flops_per_token` times the tokens of these updates. Matrix products only; null if there are none.
    updates: the number of updates that were counted. device: "cpu" or "gpu".
    """

    def __init__(self, run_folder: Path, warmup: WholeNumber = 5):
        self.run, self.warmup = RunWriter(run_folder), warmup
        self.tokens: Tensor | float = 0.0
        self.started: float | None = None  # None: warming up

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, TrainingModule)
        self.updates = trainer.datamodule.num_training_steps()  # type: ignore[attr-defined]  # set by Lightning
        self.flops = flops_per_token(module.task_module, loader_of(trainer))
        if not self.warmup:
            self.started = clock(module.device)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        assert isinstance(module, TrainingModule)
        if self.started is None:
            if trainer.global_step == self.warmup:
                self.started = clock(module.device)
            return
        self.tokens = self.tokens + module.task_module.tokens(batch)
        if trainer.global_step == self.updates and is_first_rank():
            counted = self.updates - self.warmup
            cost = {
                "seconds": (clock(module.device) - self.started) / counted,
                "flops": None if self.flops is None else self.flops * float(self.tokens) / counted,
                "updates": counted,
                "device": "gpu" if module.device.type == "cuda" else "cpu",
            }
            self.run.write("cost", cost)


def clock(device: torch.device) -> float:
    """Seconds of CPU time of all threads of this process; on a GPU, of wall time after all work is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


def loader_of(trainer: pl.Trainer) -> ResumableLoader:
    """The loader of the training batches."""
    loader = trainer.train_dataloader
    assert isinstance(loader, ResumableLoader)
    return loader
