"""Entropy and column mass of every attention head while a model trains."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from attnorm.attention.multihead import entropy, observe, smallest_column_mass
from attnorm.attention.transfer import on_cpu
from attnorm.models.recording import layer_label, stacks_of
from attnorm.run.tables import CsvTable, read_csv
from attnorm.run.writing import RunWriter
from attnorm.schema import WholeNumber
from attnorm.tasks.ranks import gathered
from attnorm.training.module import TrainingModule


class EveryNSteps(pl.Callback):
    """Calls `on_step` before the first update, after every `every_n_steps`-th and after the last one; 0 means never.

    A step is an update, however many batches it accumulates. No step is recorded twice, also if a run is resumed. A
    subclass writes `on_step`, and calls `start` in `on_fit_start`.
    """

    def __init__(self, every_n_steps: int):
        self.every_n_steps = every_n_steps
        self.last_step: int | None = None

    def start(self, trainer: pl.Trainer, module: pl.LightningModule, tables: Iterable[CsvTable]) -> None:
        """Records step 0 of a new run; continues after the last recorded step of a resumed one."""
        recorded = [int(row["step"]) for table in tables if table.path.exists() for row in read_csv(table.path)]
        self.last_step = trainer.strategy.broadcast(max(recorded, default=None))
        if trainer.ckpt_path is None:
            self._record(trainer, module)

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.started_at = trainer.global_step  # the first batch of a resumed run may not complete an update

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        step = trainer.global_step
        if self.every_n_steps and step % self.every_n_steps == 0 and step != self.started_at:
            self._record(trainer, module)

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._record(trainer, module)

    def _record(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, TrainingModule)
        if self.every_n_steps and trainer.global_step != self.last_step:
            self.last_step = trainer.global_step
            with gathered(module.model):
                if trainer.is_global_zero:
                    self.on_step(trainer, module)

    def on_step(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Records the model at the current step; called on the first rank only, which has all parameters then."""
        raise NotImplementedError


class AttentionStats(EveryNSteps):
    """How each head of each layer attends on the first validation batch: its entropy, and the smallest column mass,
    which is near 0 if a key is explained away ([D] Lemma 1).

    ``attention.csv`` has one row per head, with ``entropy`` in nats, the mean over queries; ``column_mass``, the mean
    over examples of the smallest column mass; and ``column_mass_min``, the smallest of all examples. Examples without
    keys are left out. The means over heads, and the minimum, go to the loggers.

    Args:
        run_folder: folder of ``attention.csv``.
        every_n_steps: number of updates between two records, each of which costs a forward pass; 0 turns it off.
    """

    def __init__(self, run_folder: Path, every_n_steps: WholeNumber = 50):
        super().__init__(every_n_steps)
        self.run = RunWriter(run_folder)
        self.batch: dict[str, Tensor] = {}  # on the first rank

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.table = self.run.continued("attention")
        if self.every_n_steps and trainer.is_global_zero:
            self.batch = first_batch(trainer, module)
        self.start(trainer, module, [self.table])

    @torch.no_grad()
    def on_step(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, TrainingModule)
        metrics: dict[str, float] = {}
        seen: list[Tensor] = []  # of each layer, the entropy (H,) and the smallest column mass (B, H)
        labels: list[str] = []

        def record(name: str, weights: Tensor, allowed: Tensor | None) -> None:
            labels.append(layer_label(name, stacks_of(module.model)))
            seen.extend((entropy(weights.float()), smallest_column_mass(weights.float(), allowed)))

        with in_evaluation(module.model), observe(module.model, record):
            module.task_module(self.batch)
        values = iter(on_cpu(*seen)) if seen else iter(())
        for label, spread, mass in zip(labels, values, values, strict=True):
            known = ~mass.isinf().any(-1)  # leaves out examples without keys
            mass = mass[known] if known.any() else mass
            for head, of_head in enumerate(zip(spread, mass.mean(0), mass.amin(0), strict=True)):
                row: dict[str, Any] = {"step": trainer.global_step, "layer": label, "head": head}
                named = zip(("entropy", "column_mass", "column_mass_min"), of_head, strict=True)
                self.table.append(row | {name: f"{value:.8g}" for name, value in named})
            metrics[f"entropy/{label}"] = spread.mean().item()
            metrics[f"column_mass/{label}/mean"] = mass.mean().item()
            metrics[f"column_mass/{label}/min"] = mass.min().item()
        log_now(trainer, metrics)


def first_batch(trainer: pl.Trainer, module: pl.LightningModule) -> dict[str, Tensor]:
    """The first validation batch, on the device of the model."""
    batch = trainer.datamodule.probe_batch()  # type: ignore[attr-defined]  # set by Lightning
    return module.transfer_batch_to_device(batch, module.device, 0)


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[None]:
    """Puts the model in evaluation mode inside this context."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def log_now(trainer: pl.Trainer, metrics: dict[str, float]) -> None:
    """Sends metrics to every logger at the current step, outside Lightning's own logging interval."""
    for logger in trainer.loggers:
        logger.log_metrics(metrics, trainer.global_step)
