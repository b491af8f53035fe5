"""Checkpoints: how they are written, what they hold so that a resumed run continues exactly, when they are saved."""

import math
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
from pytorch_lightning.callbacks import Checkpoint

from attnorm.errors import ConfigError
from attnorm.run.checkpoint import (
    LAST,
    LOGGED,
    RECORD,
    best_file,
    read_checkpoint,
    read_resumable,
    replace_by_copy,
    write_checkpoint,
)
from attnorm.run.integrity import check_fit
from attnorm.run.resume import with_advice
from attnorm.run.run import Run
from attnorm.settings import RunSettings
from attnorm.tasks.ranks import Ranks
from attnorm.training.callbacks.graceful_stop import GracefulStop
from attnorm.training.module import TrainingModule


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes and reads the checkpoints of Lightning as `run.checkpoint` does: whole or not at all, and verified."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Raises SaveError, naming the file and what survives, if the disk is full or the folder is not writable."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_checkpoint(Path(path), checkpoint)

    def load_checkpoint(
        self, path: Any, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """`read_checkpoint`, whatever else is asked for. Forked processes also hand over bare parameters this way."""
        return read_checkpoint(Path(path), may_be_bare=True)


class ResumeState(pl.Callback):
    """Adds to a checkpoint what Lightning leaves out, so that a resumed run continues exactly.

    Random streams: every rank has a dropout stream of its own. Checkpoints have all of them, and on resuming each rank
    gets its own back before its first batch.

    A scheduler that watches a metric steps when a validation has ended, before the checkpoint is saved; Lightning would
    let it step after updates or epochs, by the metric of an earlier validation. `validations` counts those so far.

    record: what a resumed run must agree with (settings, data, tokenizer, number of updates); every checkpoint gets it.
    """

    def __init__(self, seed: int):
        self.seed = seed
        self.saved: dict | None = None  # the streams that are to be put back
        self.validations = 0
        self.record: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"validations": self.validations}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.validations = state["validations"]

    def on_save_checkpoint(self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        streams = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            streams["cuda"] = torch.cuda.get_rng_state()
        checkpoint["random_streams"] = Ranks.present().gather(streams)
        checkpoint[RECORD] = self.record

    def on_load_checkpoint(self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        streams = checkpoint.get("random_streams", [])
        self.saved = streams[trainer.global_rank] if trainer.global_rank < len(streams) else None

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        torch.manual_seed(self.seed + trainer.global_rank)

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        if self.saved is not None:
            torch.set_rng_state(self.saved["cpu"].cpu())
            if "cuda" in self.saved and torch.cuda.is_available():
                torch.cuda.set_rng_state(self.saved["cuda"].cpu())
            self.saved = None

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        self.validations += 1
        for config in trainer.lr_scheduler_configs:
            if config.monitor is not None and self.validations % config.frequency == 0:
                scheduler: Any = config.scheduler  # Lightning annotates it without the argument
                scheduler.step(float(trainer.callback_metrics[config.monitor]))

    def check(self, checkpoint: Path, module: TrainingModule) -> None:
        """Raises ConfigError if the data, the tokenizer, the learning rates or the parameters are not those of the
        checkpoint's run."""
        content = read_resumable(checkpoint)
        before, step, problems = content[RECORD], content["global_step"], []
        for split, fingerprint in self.record["data"].items():
            if before["data"].get(split) != fingerprint:
                problems.append(f"data: the {split} split differs from that of the run being resumed")
        if before["tokenizer"] != self.record["tokenizer"]:
            problems.append("tokenizer: it differs from that of the run being resumed")
        updates, planned, optimization = self.record["updates"], before["updates"], module.optimization
        if step > updates:
            problems.append(f"ckpt_path={checkpoint}: it is from update {step:,}, but this run ends after {updates:,}")
        elif optimization.depends_on_length and (
            optimization.learning_rates(updates, step + 1) != optimization.learning_rates(planned, step + 1)
        ):
            problems.append(
                f"scheduler: a run of {updates:,} updates would have had other learning rates before update "
                f"{step + 1:,} than the run being resumed, which was planned for {planned:,}; a run can be "
                "extended with scheduler=constant, and before its decay with scheduler=wsd"
            )
        if problems:
            raise ConfigError(with_advice(problems, checkpoint))
        check_fit(module.model, content, checkpoint)


class Checkpoints(Checkpoint):
    """Saves last.ckpt, and keeps copies of the best ones as best.ckpt, best_2.ckpt, ...

    last.ckpt is saved before the first update, at validations (the last of which is after the final update), between
    them as often as `run.save_every_steps` and `run.save_every_minutes` ask for, and before a signal ends the run.

    monitor, mode: the metric of a validation, and whether "min" or "max" of it is best.
    stop:          receives the signals.

    The attribute `best` holds [value, update] of each of the best checkpoints, best first; `count` and `seconds` say
    how many checkpoints were saved and how long that took.
    """

    def __init__(self, run: Run, monitor: str, mode: str, settings: RunSettings, stop: GracefulStop):
        self.folder, self.monitor, self.mode, self.settings, self.stop = run.checkpoints, monitor, mode, settings, stop
        self.last = run.checkpoint_file(LAST)
        self.best: list[list[float]] = []
        self.count, self.seconds = 0, 0.0
        self.step = self.saved_step = 0
        self.saved_at = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"best": [list(entry) for entry in self.best]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = [list(entry) for entry in state["best"]]

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.step, self.saved_step, self.saved_at = trainer.global_step, trainer.global_step, time.monotonic()
        if trainer.ckpt_path is None:
            self._save(trainer)

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        # Lightning decides by a count of its own which updates it logs. In a run that is resumed from the checkpoint
        # before its first update, this count is one too high.
        trainer.fit_loop.epoch_loop._batches_that_stepped = trainer.global_step

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        if trainer.global_step == self.step:
            return  # gradients of the update in progress would be lost
        self.step = trainer.global_step
        if trainer.global_step == trainer.max_steps:
            trainer.should_stop = True  # makes Lightning validate, and so save, before it leaves the loop
            trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None  # would keep it from stopping
        signal, is_due = self._agreed(trainer, module)
        batches = self.step * trainer.accumulate_grad_batches
        validates_now = trainer.should_stop or batches % trainer.val_check_interval == 0  # which saves
        if (signal or is_due) and not validates_now:
            self._save(trainer)
        self.stop.saved_for = self.stop.saved_for or signal

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        metrics = trainer.callback_metrics
        if self.monitor not in metrics:
            raise RuntimeError(f"the task monitors {self.monitor}, but a validation logs {', '.join(sorted(metrics))}")
        position = self._insert(float(metrics[self.monitor]), trainer.global_step)
        self._save(trainer)
        if trainer.is_global_zero and position is not None:
            for number in reversed(range(position + 1, len(self.best))):
                if (better := best_file(self.folder, number - 1)).exists():  # not of a checkpoint that was moved alone
                    better.replace(best_file(self.folder, number))
            replace_by_copy(self.last, best_file(self.folder, position))

    def on_save_checkpoint(self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        # Lightning logs the metrics of an update after the hook in which it is saved. A run that is killed between the
        # two would otherwise never log them.
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by Lightning
        if trainer.training and trainer.global_step and every and trainer.global_step % every == 0:
            metrics = {
                name: value.item() for name, value in trainer.callback_metrics.items() if name.startswith("train/")
            }
            checkpoint[LOGGED] = {"step": trainer.global_step, **metrics}

    def _agreed(self, trainer: pl.Trainer, module: pl.LightningModule) -> tuple[int, bool]:
        """The signal that some rank received, or 0, and whether a checkpoint is due. All ranks agree on both."""
        settings, since = self.settings, time.monotonic() - self.saved_at
        is_due = settings.save_every_steps is not None and (self.step - self.saved_step) >= settings.save_every_steps
        is_due |= settings.save_every_minutes is not None and since >= 60 * settings.save_every_minutes
        values = [self.stop.received, int(is_due)]
        if trainer.world_size > 1:
            reduced = trainer.strategy.reduce(torch.tensor(values, device=module.device), reduce_op="max")
            values = [int(value) for value in reduced]
        return values[0], bool(values[1])

    def _save(self, trainer: pl.Trainer) -> None:
        started = time.perf_counter()
        trainer.save_checkpoint(self.last)
        self.count, self.seconds = self.count + 1, self.seconds + time.perf_counter() - started
        self.saved_step, self.saved_at = trainer.global_step, time.monotonic()

    def _insert(self, value: float, step: int) -> int | None:
        """Inserts a validation into `best` and returns its position, or None if it is not among the best."""
        sign = 1 if self.mode == "max" else -1
        value = -sign * math.inf if math.isnan(value) else value
        # the earlier one of equal values is better
        position = sum(sign * other >= sign * value for other, _ in self.best)
        if position >= self.settings.keep_best:
            return None
        self.best.insert(position, [value, step])
        del self.best[self.settings.keep_best :]
        return position
