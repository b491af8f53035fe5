"""Exact resuming: what a checkpoint records of its run, and whether a configuration continues that run."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from attnorm.config.schema import leaves
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import CheckpointError, ConfigError
from attnorm.optim import Optim
from attnorm.training.callbacks.checkpointing import RECORD, read_resumable

FREE = (  # groups and keys that may change: how long, where and how fast a run trains, and what is shown of it
    *("ckpt_path", "tags", "paths", "logger", "callbacks", "decoding", "trainer", "model.init", "tokenizer.file"),
    *("task.max_steps", "task.validations", "task.rouge_pairs", "task.stemmer", "task.n_best", "task.max_answer"),
    *("task.null_threshold", "data.num_workers", "data.max_test", "data.test_size"),
)
NOT_FREE = ("precision", "gradient_clip_val", "gradient_clip_algorithm", "limit_train_batches")  # keys of the trainer


def deciding(record: Mapping[str, Any]) -> dict[str, Any]:
    """The flat keys of a configuration that decide what is trained.

    Texts in `data`, such as paths, are left out: files may have moved, and their content is compared once it is read.
    """
    kept = {key: value for key, value in leaves(dict(record)) if not key.startswith(tuple(f"{free}." for free in FREE))}
    kept = {
        key: value
        for key, value in kept.items()
        if key not in FREE and not (key.startswith("data.") and key != "data.name" and isinstance(value, (str, list)))
    }
    return kept | {f"trainer.{name}": record["trainer"][name] for name in NOT_FREE if name in record["trainer"]}


CONTENT = {"settings": dict, "data": dict, "tokenizer": str, "updates": int}  # of a record


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


def changed_settings(now: Mapping[str, Any], checkpoint: Path) -> list[str]:
    """Keys in which a configuration differs from that of the run whose checkpoint is to be resumed.

    Raises CheckpointError for a file that no run can be resumed from.
    """
    record = read_resumable(checkpoint)[RECORD]
    if not all(isinstance(record.get(name), kind) for name, kind in CONTENT.items()):
        raise CheckpointError(f"{checkpoint}: cannot be resumed from: its record of the run is incomplete")
    found = list(_differences(record["settings"], deciding(now)))
    return explained(found, checkpoint) if found else []


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted(before.keys() | now.keys()):
        if key not in before:
            yield f"{key}={now[key]}: the run being resumed does not have this key"
        elif key not in now:
            yield f"{key}: the run being resumed has {before[key]}"
        elif before[key] != now[key]:
            yield f"{key}={now[key]}: the run being resumed has {before[key]}"


def explained(problems: list[str], checkpoint: Path) -> list[str]:
    """The problems, and what to do about them."""
    advice = (
        f"ckpt_path={checkpoint}: resuming repeats the settings of the run; to start a new run from its weights, use "
        f"model.init={checkpoint.parent.parent} if the model has that key"
    )
    return [*problems, advice]
