"""What a checkpoint records of its run, so that a resumed run can be compared with it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from attnorm.config.checkpoint_files import RECORD, read_resumable
from attnorm.config.resume import explained
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import ConfigError
from attnorm.optim import Optim


class RunRecord(pl.Callback):
    """Stores in every checkpoint what a resumed run has to agree with: settings, data, tokenizer, number of updates."""

    def __init__(self, settings: dict[str, Any], data: Mapping[str, str], tokenizer: Tokenizer, updates: int):
        self.record = {
            "settings": settings,
            "data": dict(data),
            "tokenizer": tokenizer.fingerprint(),
            "updates": updates,
        }

    def on_save_checkpoint(self, trainer: pl.Trainer, task: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint[RECORD] = self.record

    def check(self, checkpoint: Path, optim: Optim) -> None:
        """Raises ConfigError if the data, the tokenizer or the learning rates are not those of the checkpoint's run."""
        content = read_resumable(checkpoint)
        before, step, found = content[RECORD], content["global_step"], []
        for split, fingerprint in self.record["data"].items():
            if before["data"].get(split) != fingerprint:
                found.append(f"data: the {split} split differs from that of the run being resumed")
        if before["tokenizer"] != self.record["tokenizer"]:
            found.append("tokenizer: it differs from that of the run being resumed")
        updates, planned = self.record["updates"], before["updates"]
        if step > updates:
            found.append(f"ckpt_path={checkpoint}: it is from update {step:,}, but this run ends after {updates:,}")
        elif any(optim.factor(at, updates) != optim.factor(at, planned) for at in range(step)):
            found.append(
                f"optim.schedule={optim.schedule}: a run of {updates:,} updates would have had other learning rates "
                f"before update {step:,} than the run being resumed, which was planned for {planned:,}; only "
                "optim.schedule=constant can be extended"
            )
        if found:
            raise ConfigError(explained(found, checkpoint))
