"""What a run does besides training: curves, samples, early stop, stopping by signal, counting tokens."""

import signal
import time
from pathlib import Path

import pytorch_lightning as pl
import torch
from torch import Tensor

from attnorm.attention.multihead import attention_layers, observe, smallest_column_mass
from attnorm.attention.normalizers.hnas import HNAS
from attnorm.training.checkpoints import LAST
from attnorm.training.errors import Interrupted
from attnorm.training.tracking import CsvTable

HYBRID_FILE = "hybrid_weights.csv"


def layer_label(name: str) -> str:
    """'encoder.layers.0.attention' -> 'encoder/0', 'layers.1.cross' -> 'decoder/1/cross'."""
    stack, _, rest = name.rpartition("layers.")
    index, _, attention = rest.partition(".")
    label = f"{stack.rstrip('.') or 'decoder'}/{index}"
    return label if attention == "attention" else f"{label}/{attention}"


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


class HybridCurve(EveryUpdates):
    """Logs every layer's hybrid weight, from step 0 on, to the logger and to hybrid_weights.csv."""

    def __init__(self, run: Path, every: int):
        super().__init__(every)
        self.file = run / HYBRID_FILE

    def on_fit_start(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        self.hybrids = {
            layer_label(name): layer.normalizer
            for name, layer in attention_layers(task.model).items()
            if isinstance(layer.normalizer, HNAS)
        }
        self.table = CsvTable(self.file)
        if trainer.ckpt_path is None and trainer.is_global_zero:
            self.look(trainer, task, {})

    def look(self, trainer: pl.Trainer, task: pl.LightningModule, batch: dict) -> None:
        metrics = {}
        for label, hybrid in self.hybrids.items():
            weights = hybrid.hybrid_weight().tolist()
            for head, weight in enumerate(weights):
                row = {"step": trainer.global_step, "layer": label, "head": head if len(weights) > 1 else ""}
                self.table.append({**row, "weight": f"{weight:.6f}"})
            metrics[f"hybrid/{label}"] = sum(weights) / len(weights)
        if metrics:
            log_now(trainer, metrics)


class ColumnMass(EveryUpdates):
    """Logs the smallest column mass of each attention (mean and min over heads and examples): explaining-away seen.

    Looks at the batch just trained on, without dropout, by one more forward pass.
    """

    def look(self, trainer: pl.Trainer, task: pl.LightningModule, batch: dict) -> None:
        metrics: dict[str, float] = {}

        def see(name: str, weights: Tensor, allowed: Tensor | None) -> None:
            mass = smallest_column_mass(weights.float(), allowed)
            metrics[f"column_mass/{layer_label(name)}/mean"] = mass.mean().item()
            metrics[f"column_mass/{layer_label(name)}/min"] = mass.min().item()

        task.model.eval()
        with torch.no_grad(), observe(task.model, see):
            task.model(batch["source"], batch["target"][:, :-1])
        task.model.train()
        log_now(trainer, metrics)


def log_now(trainer: pl.Trainer, metrics: dict[str, float]) -> None:
    """Sends metrics to every logger at the present step, outside Lightning's own logging interval."""
    for logger in trainer.loggers:
        logger.log_metrics(metrics, trainer.global_step)


class Throughput(pl.Callback):
    """Real training tokens (source + target, no padding) a second on this device, validation not counted."""

    def __init__(self):
        self.tokens: Tensor | int = 0
        self.seconds, self.since = 0.0, None

    def on_train_batch_start(self, *_) -> None:
        if self.since is None:
            self.since = time.perf_counter()

    def on_train_batch_end(self, trainer: pl.Trainer, task: pl.LightningModule, outputs, batch: dict, *_) -> None:
        pad = task.special.pad
        self.tokens = self.tokens + (batch["source"] != pad).sum() + (batch["target"][:, 1:] != pad).sum()

    def on_validation_start(self, *_) -> None:
        self._pause()

    def on_train_end(self, *_) -> None:
        self._pause()

    def _pause(self) -> None:
        if self.since is not None:
            self.seconds += time.perf_counter() - self.since
            self.since = None

    def per_second(self) -> float | None:
        """Tokens a second so far; None before the first pause."""
        return round(float(self.tokens) / self.seconds, 1) if self.seconds else None


class StopOnSignal(pl.Callback):
    """On SIGTERM or SIGINT: finish the update, save last.ckpt, stop with the signal's exit code.

    Every rank has to agree, for saving is done together; a second SIGINT stops at once.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self, checkpoints: Path):
        self.checkpoints = checkpoints
        self.received = self.saved_for = self.step = 0
        self.previous: dict = {}

    def on_train_start(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        self.step = trainer.global_step
        for number in self.SIGNALS:
            self.previous[number] = signal.signal(number, self._receive)

    def _receive(self, number: int, frame) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number

    def on_train_batch_end(self, trainer: pl.Trainer, task: pl.LightningModule, *_) -> None:
        if trainer.global_step == self.step:
            return  # gradients of an update under way would be lost
        self.step, received = trainer.global_step, self.received
        if trainer.world_size > 1:
            received = int(trainer.strategy.reduce(torch.tensor(received, device=task.device), reduce_op="max"))
        if received and not self.saved_for:
            trainer.save_checkpoint(self.checkpoints / f"{LAST}.ckpt")
            self.saved_for = received

    def on_train_batch_start(self, *_) -> None:
        if self.saved_for:  # only now, so that this update's metrics have been logged
            raise Interrupted(self.saved_for, signal.Signals(self.saved_for).name)

    def teardown(self, trainer: pl.Trainer, task: pl.LightningModule, stage: str) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
        self.previous = {}
