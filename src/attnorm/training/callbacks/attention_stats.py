"""Entropy and column mass of every attention head while a model trains."""

from pathlib import Path

import pytorch_lightning as pl
import torch
from torch import Tensor

from attnorm.attention.multihead import entropy, observe, smallest_column_mass
from attnorm.schema import WholeNumber
from attnorm.tasks.module import Task
from attnorm.training.loggers import CsvTable

ATTENTION_FILE = "attention.csv"


def layer_label(name: str) -> str:
    """'encoder.layers.0.attention' -> 'encoder/0', 'layers.1.cross' -> 'decoder/1/cross', 'fusion.attention' ->
    'fusion', 'guided.0.cross' -> 'guided/0/cross'."""
    stack, *rest = name.removesuffix(".attention").split(".")
    parts = ["decoder" if stack == "layers" else stack, *(part for part in rest if part != "layers")]
    return "/".join(parts)


class EveryUpdates(pl.Callback):
    """Calls `look` after every `every`-th update (once an update, however many batches it accumulates); 0 is never."""

    def __init__(self, every: int):
        self.every, self.looked_at = every, 0

    def on_train_start(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        self.looked_at = trainer.global_step  # of a resumed run: its first batch may not close an update

    def on_train_batch_end(self, trainer: pl.Trainer, task: pl.LightningModule, outputs, batch: dict, *_) -> None:
        step = trainer.global_step
        if self.every and trainer.is_global_zero and step % self.every == 0 and step != self.looked_at:
            self.looked_at = step
            self.look(trainer, task, batch)

    def look(self, trainer: pl.Trainer, task: pl.LightningModule, batch: dict) -> None:
        """What a subclass does; on the first rank only."""
        raise NotImplementedError


class AttentionWatch(EveryUpdates):
    """How each head of each layer attends on the first validation batch: its entropy, and the smallest column mass,
    near 0 where a key is explained away ([D] Lemma 1).

    Head by head in attention.csv: `entropy` in nats, the mean over queries; `column_mass`, the mean over examples of
    the smallest, and `column_mass_min`, the smallest of all; examples without keys are left out. The means over heads,
    and the least, go to the logger.
    """

    def __init__(self, run_folder: Path, every_n_steps: WholeNumber):
        super().__init__(every_n_steps)
        self.file = run_folder / ATTENTION_FILE
        self.batch: dict[str, Tensor] | None = None

    def on_fit_start(self, trainer: pl.Trainer, task: Task) -> None:
        self.table = CsvTable(self.file)
        if self.every and trainer.is_global_zero:
            batch = trainer.datamodule.fixed_batch()
            self.batch = {name: tensor.to(task.device) for name, tensor in batch.items()}
            if trainer.ckpt_path is None:
                self.look(trainer, task, {})

    @torch.no_grad()
    def look(self, trainer: pl.Trainer, task: Task, batch: dict) -> None:
        metrics: dict[str, float] = {}

        def see(name: str, weights: Tensor, allowed: Tensor | None) -> None:
            label, weights = layer_label(name), weights.float()
            mass = smallest_column_mass(weights, allowed)  # (B, H)
            known = ~mass.isinf().any(-1)  # not of an example without keys
            mass = mass[known] if known.any() else mass
            spread = entropy(weights)  # (H,)
            for head, values in enumerate(zip(spread, mass.mean(0), mass.amin(0), strict=True)):
                found = dict(zip(("entropy", "column_mass", "column_mass_min"), values, strict=True))
                row = {"step": trainer.global_step, "layer": label, "head": head}
                self.table.append(row | {key: f"{value:.8g}" for key, value in found.items()})
            metrics[f"entropy/{label}"] = spread.mean().item()
            metrics[f"column_mass/{label}/mean"] = mass.mean().item()
            metrics[f"column_mass/{label}/min"] = mass.min().item()

        was_training = task.model.training
        task.model.eval()
        with observe(task.model, see):
            task(self.batch)
        task.model.train(was_training)
        log_now(trainer, metrics)


def log_now(trainer: pl.Trainer, metrics: dict[str, float]) -> None:
    """Sends metrics to every logger at the present step, outside Lightning's own logging interval."""
    for logger in trainer.loggers:
        logger.log_metrics(metrics, trainer.global_step)
