"""What a run records of itself: run.json and summary.json."""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytorch_lightning as pl

from attnorm.attention.linear import kernels
from attnorm.errors import Interrupted
from attnorm.run.folder import RunState
from attnorm.run.run import Run
from attnorm.run.writing import RunWriter
from attnorm.settings import Settings
from attnorm.training.callbacks.throughput import Throughput
from attnorm.training.compiled import CompiledModel
from attnorm.training.environment import describe_environment, peak_memory
from attnorm.training.module import TrainingModule
from attnorm.training.processes import is_first_rank

log = logging.getLogger(__name__)
SECONDS = 2.0  # between two writes of summary.json during training


class RunFiles(pl.Callback):
    """Writes the records of a run, on the first rank, from `begin` on. It is used both as a context manager around the
    whole run and as a callback of its trainer.

    run.json (see `attnorm.run.record`) is written by `begin`. When training ends for any reason, it gets
    `attention_kernels`, the outcome of each self-check (see `attnorm.attention.linear.kernels.self_checks`), and with
    run.compile=true `compile` (see `CompiledModel.record`).

    summary.json has the values of `summary`. Its `state` is running while the run goes, and then finished, interrupted
    (by a signal or a time limit) or failed. Whatever ends the run early (an exception, a signal) is recorded as `why`
    before it is raised again. `wall_seconds` includes the parts of a run that was resumed in its folder.

    `progress` says how far the run is. The file is written at most every two seconds, after every validation, and when
    the context ends. The entries are `phase` ("start", "training", or "decoding" while the best model is scored),
    `step` and `updates` (made and planned), `monitor` (the metric that the task monitors), `value` and `best_value` (of
    the latest validation and of the best one, or null), and `seconds_left` (an estimate from the speed so far,
    validations included, or null).
    """

    def __init__(self, run: RunWriter, throughput: Throughput, **values: Any):
        self.run, self.throughput = run, throughput
        self.summary: dict[str, Any] = {**values, "state": RunState.FAILED}
        self.started, self.earlier, self.has_begun = time.perf_counter(), 0.0, False
        self.value: float | None = None
        self.best: float | None = None
        self.phase, self.written_at = "training", 0.0

    # the run

    def __enter__(self) -> "RunFiles":
        earlier = self.run.outcome.get("wall_seconds")
        self.earlier = earlier if isinstance(earlier, (int, float)) else 0.0
        return self

    def begin(self, cfg: Settings, overrides: Sequence[str]) -> None:
        """Writes the record of the run. Before that, nothing is written."""
        self.has_begun = True
        if is_first_rank():
            entries = {"attention": cfg.label, "overrides": list(overrides)}
            self.run.start(cfg, **entries, **describe_environment())
            self._write_running({**self.run.progress, "phase": "start"})

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> None:
        if not self.has_begun:
            if is_first_rank() and not self.run.exists:  # a new run, which was refused
                self.run.release()
            return
        if error is not None:
            stopped = isinstance(error, (Interrupted, KeyboardInterrupt))
            state = RunState.INTERRUPTED if stopped else RunState.FAILED
            self.summary.update(state=state, why=f"{type(error).__name__}: {error}")
        self.summary.update({"tokens_per_second": None} | self.throughput.totals())
        try:
            if is_first_rank():
                progress = Run(self.run.folder).progress  # a forked process may have written it
                self.summary.update(peak_memory=peak_memory(), wall_seconds=self.wall_seconds(), progress=progress)
                self.run.write("summary", self.summary)
        except OSError as failure:  # the disk is full, say, which has probably ended the run as well
            if error is None:
                raise
            log.warning("could not write the summary of %s: %s", self.run.folder, failure)

    def wall_seconds(self) -> float:
        """The wall time of all parts of the run so far."""
        return round(self.earlier + time.perf_counter() - self.started, 1)

    def _write_running(self, progress: Mapping[str, Any]) -> None:
        state = {"state": RunState.RUNNING, "wall_seconds": self.wall_seconds(), "progress": progress}
        self.run.write("summary", self.summary | state)

    # the trainer

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.started_at, self.first_step = time.monotonic(), trainer.global_step
        self.updates = trainer.datamodule.num_training_steps()  # type: ignore[attr-defined]  # set by Lightning
        self._write_progress(trainer)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: object) -> None:
        if time.monotonic() - self.written_at >= SECONDS:
            self._write_progress(trainer)

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        assert isinstance(module, TrainingModule)
        task = module.task_module
        value = float(trainer.callback_metrics.get(task.monitor, math.nan))
        self.value = value if math.isfinite(value) else None  # JSON has no NaN
        known = [each for each in (self.best, self.value) if each is not None]
        self.best = (max if task.mode == "max" else min)(known, default=None)
        self._write_progress(trainer)

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.phase = "decoding"
        self._write_progress(trainer)

    def state_dict(self) -> dict[str, float | None]:
        return {"value": self.value, "best": self.best}

    def load_state_dict(self, state: dict[str, float | None]) -> None:
        self.value, self.best = state["value"], state["best"]

    def teardown(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        if not trainer.is_global_zero or not self.run.exists:
            return
        entries: dict[str, object] = {"attention_kernels": kernels.self_checks()}
        for callback in trainer.callbacks:  # type: ignore[attr-defined]  # set by Lightning
            if isinstance(callback, CompiledModel):
                entries["compile"] = callback.record()
        self.run.add(**entries)

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        with suppress(OSError):  # such as a full disk, which has probably ended the run
            self.teardown(trainer, module, "fit")

    def _write_progress(self, trainer: pl.Trainer) -> None:
        if not trainer.is_global_zero:
            return
        module: Any = trainer.lightning_module
        self.written_at, step = time.monotonic(), trainer.global_step
        made = step - self.first_step
        left = (self.written_at - self.started_at) / made * (self.updates - step) if made else None
        progress = {
            "phase": self.phase,
            "step": step,
            "updates": self.updates,
            "monitor": module.task_module.monitor,
            "value": self.value,
            "best_value": self.best,
            "seconds_left": None if left is None else round(left, 1),
        }
        self._write_running(progress)
