"""What only training reveals about its environment: the attention kernels in use, and what was compiled."""

import json
from contextlib import suppress
from pathlib import Path

import pytorch_lightning as pl

from attnorm.attention.linear import kernels
from attnorm.training.compiled import CompiledModel
from attnorm.training.environment import write_json


class EnvironmentRecord(pl.Callback):
    """Adds to environment.json, when training ends for any reason, on the first rank:

    attention_kernels: the outcome of each self-check, see `attnorm.attention.linear.kernels.self_checks`.
    compile:           with run.compile=true, see `CompiledModel.facts`.
    """

    def __init__(self, run_folder: Path):
        self.file = run_folder / "environment.json"

    def teardown(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        self.write(trainer)

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        with suppress(OSError):  # such as a full disk, which has probably ended the run
            self.write(trainer)

    def write(self, trainer: pl.Trainer) -> None:
        if not trainer.is_global_zero or not self.file.exists():
            return
        found = {"attention_kernels": kernels.self_checks()}
        for callback in trainer.callbacks:  # type: ignore[attr-defined]  # set by Lightning
            if isinstance(callback, CompiledModel):
                found["compile"] = callback.facts()
        write_json(self.file, json.loads(self.file.read_text()) | found)
