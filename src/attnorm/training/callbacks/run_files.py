"""Files of a run folder that are kept up to date during training: progress.json and environment.json."""

import math
import time
from collections.abc import Callable
from contextlib import suppress

import pytorch_lightning as pl

from attnorm.attention.linear import kernels
from attnorm.run.writing import RunWriter
from attnorm.training.compiled import CompiledModel

SECONDS = 2.0  # between two writes of progress.json


class ProgressFile(pl.Callback):
    """Writes progress.json, how far a run is, at most every two seconds and after every validation.

    Its entries are `phase` ("training", or "decoding" while the best model is scored), `step` and `updates` (made and
    planned), `monitor` (the metric that the task monitors), `value` and `best_value` (of the latest validation and of
    the best one, or null), `wall_seconds` (of all parts of the run so far), and `seconds_left` (an estimate from the
    speed so far, validations included, or null).

    wall_seconds: a function that returns the wall time so far.
    """

    def __init__(self, run: RunWriter, monitor: str, mode: str, wall_seconds: Callable[[], float]):
        self.run, self.monitor, self.wall_seconds = run, monitor, wall_seconds
        self.better = max if mode == "max" else min
        self.value: float | None = None
        self.best: float | None = None
        self.written_at = 0.0
        self.phase = "training"

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.started_at, self.first_step = time.monotonic(), trainer.global_step
        self.updates = trainer.datamodule.num_training_steps()  # type: ignore[attr-defined]  # set by Lightning
        self._write(trainer)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: object) -> None:
        if time.monotonic() - self.written_at >= SECONDS:
            self._write(trainer)

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        value = float(trainer.callback_metrics.get(self.monitor, math.nan))
        self.value = value if math.isfinite(value) else None  # JSON has no NaN
        self.best = self.better((value for value in (self.best, self.value) if value is not None), default=None)
        self._write(trainer)

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.phase = "decoding"
        self._write(trainer)

    def state_dict(self) -> dict[str, float | None]:
        return {"value": self.value, "best": self.best}

    def load_state_dict(self, state: dict[str, float | None]) -> None:
        self.value, self.best = state["value"], state["best"]

    def _write(self, trainer: pl.Trainer) -> None:
        if not trainer.is_global_zero:
            return
        self.written_at, step = time.monotonic(), trainer.global_step
        made = step - self.first_step
        left = (self.written_at - self.started_at) / made * (self.updates - step) if made else None
        content = {
            "phase": self.phase,
            "step": step,
            "updates": self.updates,
            "monitor": self.monitor,
            "value": self.value,
            "best_value": self.best,
            "wall_seconds": self.wall_seconds(),
            "seconds_left": None if left is None else round(left, 1),
        }
        self.run.write("progress", content)


class EnvironmentRecord(pl.Callback):
    """Adds to environment.json, when training ends for any reason, on the first rank:

    attention_kernels: the outcome of each self-check, see `attnorm.attention.linear.kernels.self_checks`.
    compile:           with run.compile=true, see `CompiledModel.facts`.
    """

    def __init__(self, run: RunWriter):
        self.run = run

    def teardown(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        self.write(trainer)

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        with suppress(OSError):  # such as a full disk, which has probably ended the run
            self.write(trainer)

    def write(self, trainer: pl.Trainer) -> None:
        if not trainer.is_global_zero or not self.run.exists:
            return
        facts: dict[str, object] = {"attention_kernels": kernels.self_checks()}
        for callback in trainer.callbacks:  # type: ignore[attr-defined]  # set by Lightning
            if isinstance(callback, CompiledModel):
                facts["compile"] = callback.facts()
        self.run.write("environment", self.run.record("environment") | facts)
