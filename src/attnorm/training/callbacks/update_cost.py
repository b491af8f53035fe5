"""Measures the cost of an update, for sweeps that give every arm the same budget."""

import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from attnorm.run.writing import RunWriter
from attnorm.schema import WholeNumber
from attnorm.training.callbacks.throughput import loader_of
from attnorm.training.environment import is_first_rank
from attnorm.training.flops import flops_per_token
from attnorm.training.module import TrainingModule


class UpdateCost(pl.Callback):
    """Writes cost.json: the mean cost of an update over all updates of the run except the first `warmup` ones.

    seconds: on a CPU, the time that all threads of the process compute; it does not depend on what else the machine
             does. On a GPU, the wall time, with the device synchronized before and after.
    flops:   `flops_per_token` times the tokens of these updates. Matrix products only; null if there are none.
    updates: the number of updates that were counted. device: "cpu" or "gpu".
    """

    def __init__(self, run_folder: Path, warmup: WholeNumber = 5):
        self.run, self.warmup = RunWriter(run_folder), warmup
        self.tokens: Tensor | float = 0.0
        self.started: float | None = None  # None: warming up

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, TrainingModule)
        self.updates = trainer.datamodule.num_training_steps()  # type: ignore[attr-defined]  # set by Lightning
        self.flops = flops_per_token(module.task_module, loader_of(trainer))
        if not self.warmup:
            self.started = clock(module.device)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        assert isinstance(module, TrainingModule)
        if self.started is None:
            if trainer.global_step == self.warmup:
                self.started = clock(module.device)
            return
        self.tokens = self.tokens + module.task_module.tokens(batch)
        if trainer.global_step == self.updates and is_first_rank():
            counted = self.updates - self.warmup
            cost = {
                "seconds": (clock(module.device) - self.started) / counted,
                "flops": None if self.flops is None else self.flops * float(self.tokens) / counted,
                "updates": counted,
                "device": "gpu" if module.device.type == "cuda" else "cpu",
            }
            self.run.write("cost", cost)


def clock(device: torch.device) -> float:
    """Seconds of CPU time of all threads of this process; on a GPU, of wall time after all work is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()
