"""A callback and a logger."""

from pathlib import Path

import pytorch_lightning as pl
from pytorch_lightning.loggers import Logger


class Steps(pl.Callback):
    def __init__(self, run_folder: Path, name: str):
        self.path = run_folder / name

    def on_train_batch_end(self, trainer: pl.Trainer, *_) -> None:
        with open(self.path, "a") as file:
            file.write(f"{trainer.global_step}\n")


class Lines(Logger):
    name, version = "lines", "0"

    def __init__(self, run_folder: Path):
        super().__init__()
        self.path = run_folder / "lines.txt"

    def log_hyperparams(self, params, *_) -> None:
        self.path.write_text(f"{len(params)} settings\n")

    def log_metrics(self, metrics: dict, step: int | None = None) -> None:
        with open(self.path, "a") as file:
            file.write(f"{step} {sorted(metrics)}\n")
