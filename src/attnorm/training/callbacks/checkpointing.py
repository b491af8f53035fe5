"""When checkpoints are saved: at validations, regularly in between, and when a signal asks for one."""

import math
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Checkpoint

from attnorm.errors import CheckpointError
from attnorm.run.checkpoint import LAST, LOGGED, UNFINISHED, best_file, read_checkpoint, replace_by_copy
from attnorm.run.run import Run
from attnorm.spec.settings import RunSettings
from attnorm.training.callbacks.graceful_stop import GracefulStop


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
        self.has_started = False

    def state_dict(self) -> dict[str, Any]:
        return {"best": [list(entry) for entry in self.best]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = [list(entry) for entry in state["best"]]

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.has_started = True
        self.step, self.saved_step, self.saved_at = trainer.global_step, trainer.global_step, time.monotonic()
        if trainer.ckpt_path is None:
            self._save(trainer)
        else:
            self._restore_best(trainer)

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        # Lightning decides by a count of its own which updates it logs. In a run that is resumed from the checkpoint
        # before its first update, this count is one too high.
        trainer.fit_loop.epoch_loop._batches_that_stepped = trainer.global_step

    def on_fit_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.ckpt_path is not None and not self.has_started:  # without an update left, training does not start
            self._restore_best(trainer)

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        if trainer.global_step == self.step:
            return  # gradients of the update in progress would be lost
        self.step = trainer.global_step
        if trainer.global_step == trainer.max_steps:
            trainer.should_stop = True  # makes Lightning validate, and so save, before it leaves the loop
            trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None  # would keep it from stopping
        signal, is_due = self._agreed(trainer, module)
        if (signal or is_due) and not validates_now(trainer):  # otherwise the validation saves
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

    def _restore_best(self, trainer: pl.Trainer) -> None:
        if trainer.is_global_zero:
            restore_best(self.folder, [int(step) for _, step in self.best])

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


def restore_best(folder: Path, steps: list[int]) -> None:
    """Makes best.ckpt, best_2.ckpt, ... the checkpoints of these updates, as far as the folder has them.

    A run that was killed between saving last.ckpt and copying it has them under other names.
    """
    by_step: dict[int, Path] = {}
    for path in [folder / f"{LAST}.ckpt", *sorted(folder.glob("best*.ckpt"))]:
        try:
            by_step[read_checkpoint(path)["global_step"]] = path
        except CheckpointError:
            continue  # a damaged file is not copied
    moves = [(by_step[step], best_file(folder, position)) for position, step in enumerate(steps) if step in by_step]
    moves = [(source, target) for source, target in moves if source != target]
    aside = [target.with_name(f"{target.name}.moving{UNFINISHED}") for _, target in moves]
    for (source, _), copy in zip(moves, aside, strict=True):  # first all copies, since targets may be sources
        replace_by_copy(source, copy)
    for (_, target), copy in zip(moves, aside, strict=True):
        copy.replace(target)


def validates_now(trainer: pl.Trainer) -> bool:
    """Whether a validation follows the update that has just ended."""
    batches = trainer.global_step * trainer.accumulate_grad_batches
    is_last = trainer.should_stop or trainer.global_step == trainer.max_steps
    return is_last or batches % trainer.val_check_interval == 0
