"""Checkpoints that a crash, a kill or a full disk cannot tear, and runs that go on bit for bit."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
from pytorch_lightning.callbacks import ModelCheckpoint

BEST, LAST = "best", "last"
UNFINISHED = ".unfinished"


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target, flushes to disk, then renames: the old checkpoint survives until the new is whole."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Raises OSError, naming the file and what survives, when the disk is full or the folder not writable."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(path.name + UNFINISHED)
        try:
            with open(unfinished, "wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
            sync_folder(path.parent)
        except (OSError, RuntimeError) as error:  # torch reports a failed write as a RuntimeError
            unfinished.unlink(missing_ok=True)
            kept = [name for name in (f"{LAST}.ckpt", f"{BEST}.ckpt") if (path.parent / name).exists()]
            survives = f"still good in that folder: {', '.join(kept)}" if kept else "there was none before"
            raise OSError(f"could not save the checkpoint {path}: {error} ({survives})") from error


def replace_by_copy(source: Path, target: Path) -> None:
    """Makes `target` a copy of `source`, whole at any moment."""
    unfinished = target.with_name(target.name + UNFINISHED)
    shutil.copyfile(source, unfinished)
    os.replace(unfinished, target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Makes a rename in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep_unfinished(folder: Path) -> None:
    """Removes what a killed save left behind."""
    for leftover in folder.glob(f"*{UNFINISHED}"):
        leftover.unlink()


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
        """A run that goes on in another folder took best.ckpt along: its score still has to be beaten."""
        best, scores = str(self.best), list(state["best_k_models"].values())
        here = {"dirpath": self.dirpath, "best_model_path": best, "kth_best_model_path": best}
        super().load_state_dict({**state, **here, "best_k_models": {best: scores[0]} if scores else {}})

    def on_train_end(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        """Does nothing: Lightning would save last.ckpt again, from a state in which the epoch counts as whole."""

    def on_validation_end(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        super().on_validation_end(trainer, task)
        if not trainer.sanity_checking:
            trainer.save_checkpoint(self.last)

    def on_train_batch_end(self, trainer: pl.Trainer, *_) -> None:
        if trainer.global_step == trainer.max_steps:
            trainer.should_stop = True  # makes Lightning validate, and so save, before it leaves the loop
            trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None  # would keep it from stopping


def validates_now(trainer: pl.Trainer) -> bool:
    """Whether a validation follows the update that has just ended."""
    batches = trainer.global_step * trainer.accumulate_grad_batches
    is_last = trainer.should_stop or trainer.global_step == trainer.max_steps
    return is_last or batches % trainer.val_check_interval == 0


class RandomStreams(pl.Callback):
    """Gives every rank its own dropout stream, keeps the streams in checkpoints, puts them back on resume."""

    def __init__(self, seed: int):
        self.seed = seed
        self.saved: dict | None = None

    def on_fit_start(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        torch.manual_seed(self.seed + trainer.global_rank)

    def on_save_checkpoint(self, trainer: pl.Trainer, task: pl.LightningModule, checkpoint: dict) -> None:
        own = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            own["cuda"] = torch.cuda.get_rng_state()
        streams = [own]
        if torch.distributed.is_initialized():
            streams = [None] * trainer.world_size
            torch.distributed.all_gather_object(streams, own)
        checkpoint["random_streams"] = streams

    def on_load_checkpoint(self, trainer: pl.Trainer, task: pl.LightningModule, checkpoint: dict) -> None:
        streams = checkpoint.get("random_streams", [])
        self.saved = streams[trainer.global_rank] if trainer.global_rank < len(streams) else None

    def on_train_batch_start(self, trainer: pl.Trainer, task: pl.LightningModule, batch: dict, index: int) -> None:
        if self.saved is not None:
            torch.set_rng_state(self.saved["cpu"].cpu())
            if "cuda" in self.saved and torch.cuda.is_available():
                torch.cuda.set_rng_state(self.saved["cuda"].cpu())
            self.saved = None
