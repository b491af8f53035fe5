"""The hybrid weight of every layer, as a curve."""

from pathlib import Path

import pytorch_lightning as pl

from attnorm.attention.multihead import attention_layers
from attnorm.attention.normalizers.hnas import HNAS
from attnorm.schema import WholeNumber
from attnorm.training.callbacks.attention_stats import EveryUpdates, layer_label, log_now
from attnorm.training.loggers import CsvTable

HYBRID_FILE = "hybrid_weights.csv"


class HybridCurve(EveryUpdates):
    """Logs every layer's hybrid weight, from step 0 on, to the logger and to hybrid_weights.csv."""

    def __init__(self, run_folder: Path, every_n_steps: WholeNumber):
        super().__init__(every_n_steps)
        self.file = run_folder / HYBRID_FILE

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
