"""What a checkpoint records of its run, so that a resumed run can be compared with it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import CheckpointError, ConfigError
from attnorm.optim import Optimization
from attnorm.run.checkpoint import RECORD, naming_the_reason, read_resumable
from attnorm.run.resume import explained

ENTRIES = "optimizer_entries"  # key of a record


class RunRecord(pl.Callback):
    """Stores in every checkpoint what a resumed run must agree with: settings, data, tokenizer, number of updates."""

    def __init__(self, settings: dict[str, Any], data: Mapping[str, str], tokenizer: Tokenizer, updates: int):
        self.record: dict[str, Any] = {
            "settings": settings,
            "data": dict(data),
            "tokenizer": tokenizer.fingerprint(),
            "updates": updates,
        }

    def on_save_checkpoint(self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint[RECORD] = {**self.record, ENTRIES: entries_of(checkpoint["optimizer_states"])}

    def check(self, checkpoint: Path, optimization: Optimization) -> None:
        """Raises ConfigError if the data, the tokenizer or the learning rates are not those of the checkpoint's run."""
        content = read_resumable(checkpoint)
        before, step, found = content[RECORD], content["global_step"], []
        with naming_the_reason(checkpoint):
            entries = entries_of(content["optimizer_states"])
        if before.get(ENTRIES, entries) != entries:
            raise CheckpointError(
                f"{checkpoint}: cannot be resumed from: its optimizer_states have {entries} entries instead of "
                f"{before[ENTRIES]}"
            )
        for split, fingerprint in self.record["data"].items():
            if before["data"].get(split) != fingerprint:
                found.append(f"data: the {split} split differs from that of the run being resumed")
        if before["tokenizer"] != self.record["tokenizer"]:
            found.append("tokenizer: it differs from that of the run being resumed")
        updates, planned = self.record["updates"], before["updates"]
        if step > updates:
            found.append(f"ckpt_path={checkpoint}: it is from update {step:,}, but this run ends after {updates:,}")
        elif planned != updates and not same_rates(optimization, updates, planned, step):
            found.append(
                f"scheduler: a run of {updates:,} updates would have had other learning rates before update "
                f"{step:,} than the run being resumed, which was planned for {planned:,}; only a schedule that "
                "does not depend on the length of the run can be extended, such as scheduler=constant"
            )
        if found:
            raise ConfigError(explained(found, checkpoint))


def entries_of(states: list[dict[str, Any]]) -> list[int]:
    """For how many parameters each optimizer keeps a state; 0 before the first update, and for one without a state."""
    return [len(state["state"]) for state in states]


def same_rates(optimization: Optimization, updates: int, planned: int, count: int) -> bool:
    """Whether a run has the same learning rates in its first `count` updates, whichever of two lengths it has."""
    if not optimization.depends_on_length:
        return True
    return optimization.learning_rates(updates, count) == optimization.learning_rates(planned, count)
