"""How fast a run trains (tokens per second, padding, waiting for data)."""

import operator
import time
from typing import Any, NamedTuple

import pytorch_lightning as pl
from torch import Tensor

from attnorm.data.loader import ResumableLoader
from attnorm.training.callbacks.attention_stats import log_now
from attnorm.training.module import TrainingModule

TIMING_COLUMNS = ("train/tokens_per_second", "train/data_wait_share")  # differ between two equal runs


class Amounts(NamedTuple):
    """What has been counted: tokens without and with padding, seconds of training and of waiting, and updates."""

    tokens: Tensor | float = 0.0
    positions: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    updates: int = 0

    def minus(self, other: "Amounts") -> "Amounts":
        return Amounts(*map(operator.sub, self, other))


class Throughput(pl.Callback):
    """Measures the speed of training on this device, and logs it every `trainer.log_every_n_steps` updates.

    tokens_per_second: real tokens (no padding; source + target of a pair) per second.
    padding_share:     the share of padding in the tokens of the batches.
    data_wait_share:   the share of the time that training waits for the next batch.

    The logged values are means over the updates since they were logged last; `totals` are those of the whole process.
    Validation, and saving checkpoints, are not counted. No value is read from the device before it is logged.
    """

    def __init__(self) -> None:
        self.total = Amounts()
        self.logged = Amounts()  # the total when values were logged last
        self.since: float | None = None  # None: the clock stands still

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
        total, is_update = self.total, (index + 1) % trainer.accumulate_grad_batches == 0
        self.total = Amounts(
            total.tokens + module.task_module.tokens(batch),
            total.positions + loader.positions - positions,
            total.seconds,
            total.waited + loader.waited - waited,
            total.updates + is_update,
        )
        interval: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by Lightning
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
        """The values, without those that are unknown."""
        measured = {}
        tokens = float(amounts.tokens)
        if amounts.seconds:
            measured["tokens_per_second"] = tokens / amounts.seconds
        if amounts.positions:
            measured["padding_share"] = 1.0 - tokens / amounts.positions
        if amounts.seconds:
            measured["data_wait_share"] = min(1.0, amounts.waited / amounts.seconds)
        return measured

    def totals(self) -> dict[str, float | None]:
        """The values over the whole process, rounded, and the seconds per update, for summary.json; empty before the
        first pause."""
        digits = {"tokens_per_second": 1, "padding_share": 4, "data_wait_share": 4}
        found: dict[str, float | None] = {
            name: round(value, digits[name]) for name, value in self.values(self.total).items()
        }
        if self.total.seconds and self.total.updates:
            found["seconds_per_update"] = float(f"{self.total.seconds / self.total.updates:.6g}")
        return found


def loader_of(trainer: pl.Trainer) -> ResumableLoader:
    """The loader of the training batches."""
    loader = trainer.train_dataloader
    assert isinstance(loader, ResumableLoader)
    return loader
