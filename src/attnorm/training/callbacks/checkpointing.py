"""When checkpoints are saved: the best one and the last one, at validations."""

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint

from attnorm.config.checkpoint_files import BEST, LAST


class BestAndLast(ModelCheckpoint):
    """Keeps best.ckpt (by the task's metric) and last.ckpt.

    Both are renewed at validations; the last validation is after the final update.

    monitor, better: the metric of a validation, and whether "min" or "max" of it is best.
    """

    def __init__(self, folder: Path, monitor: str, better: str):
        super().__init__(
            dirpath=folder,
            filename=BEST,
            monitor=monitor,
            mode=better,
            save_last=False,  # Lightning would renew it only when the model has become better
            enable_version_counter=False,
            save_on_train_epoch_end=False,
        )
        self.best, self.last = folder / f"{BEST}.ckpt", folder / f"{LAST}.ckpt"

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """A run that is resumed in another folder has copied best.ckpt, whose score must still be beaten."""
        best, scores = str(self.best), list(state["best_k_models"].values())
        here = {"dirpath": self.dirpath, "best_model_path": best, "kth_best_model_path": best}
        super().load_state_dict({**state, **here, "best_k_models": {best: scores[0]} if scores else {}})

    def on_train_end(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        """Does nothing: Lightning would save last.ckpt again, from a state in which the epoch counts as whole."""

    def on_validation_end(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        super().on_validation_end(trainer, task)
        if not trainer.sanity_checking:
            trainer.save_checkpoint(self.last)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == trainer.max_steps:
            trainer.should_stop = True  # makes Lightning validate, and so save, before it leaves the loop
            trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None  # would keep it from stopping


def validates_now(trainer: pl.Trainer) -> bool:
    """Whether a validation follows the update that has just ended."""
    batches = trainer.global_step * trainer.accumulate_grad_batches
    is_last = trainer.should_stop or trainer.global_step == trainer.max_steps
    return is_last or batches % trainer.val_check_interval == 0
