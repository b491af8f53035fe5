"""What a checkpoint holds in addition to the state that Lightning saves, so that a resumed run continues exactly."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import ConfigError
from attnorm.optim import Optimization
from attnorm.run.checkpoint import RECORD, read_resumable
from attnorm.run.integrity import check_fit
from attnorm.run.resume import with_advice
from attnorm.tasks.ranks import Ranks
from attnorm.training.module import TrainingModule


class RandomStreams(pl.Callback):
    """Gives every rank its own dropout stream, keeps the streams in checkpoints, puts them back on resume."""

    def __init__(self, seed: int):
        self.seed = seed
        self.saved: dict | None = None

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        torch.manual_seed(self.seed + trainer.global_rank)

    def on_save_checkpoint(self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict) -> None:
        own = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            own["cuda"] = torch.cuda.get_rng_state()
        checkpoint["random_streams"] = Ranks.present().gather(own)

    def on_load_checkpoint(self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict) -> None:
        streams = checkpoint.get("random_streams", [])
        self.saved = streams[trainer.global_rank] if trainer.global_rank < len(streams) else None

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: dict, index: int) -> None:
        if self.saved is not None:
            torch.set_rng_state(self.saved["cpu"].cpu())
            if "cuda" in self.saved and torch.cuda.is_available():
                torch.cuda.set_rng_state(self.saved["cuda"].cpu())
            self.saved = None


class PlateauSteps(pl.Callback):
    """Lets schedulers that watch a metric step after an update, or after an epoch, before the next batch.

    Lightning leaves out such steps when a run is resumed, because its checkpoints do not have the metrics. So
    `TrainingModule.lr_scheduler_step` ignores Lightning's calls, and checkpoints have the metrics of the latest
    validation and whether a step is still to be made.
    """

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}  # of the latest validation
        self.updates = self.epochs = 0  # that have just ended; 0: no step is due

    def state_dict(self) -> dict[str, Any]:
        return {"metrics": dict(self.metrics), "updates": self.updates, "epochs": self.epochs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.metrics, self.updates, self.epochs = dict(state["metrics"]), state["updates"], state["epochs"]

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.step = trainer.global_step

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        if trainer.global_step > self.step:
            self.step = self.updates = trainer.global_step
            is_last = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
            self.epochs = trainer.current_epoch + 1 if is_last else 0

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self.metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        for config in trainer.lr_scheduler_configs:
            count = self.updates if config.interval == "step" else self.epochs
            if config.reduce_on_plateau and count and count % config.frequency == 0 and config.monitor in self.metrics:
                scheduler: Any = config.scheduler  # Lightning annotates it without the argument
                scheduler.step(self.metrics[config.monitor])
        self.updates = self.epochs = 0


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
        checkpoint[RECORD] = self.record

    def check(self, checkpoint: Path, module: TrainingModule) -> None:
        """Raises ConfigError if the data, the tokenizer, the learning rates or the parameters are not those of the
        checkpoint's run."""
        content = read_resumable(checkpoint)
        before, step, problems = content[RECORD], content["global_step"], []
        for split, fingerprint in self.record["data"].items():
            if before["data"].get(split) != fingerprint:
                problems.append(f"data: the {split} split differs from that of the run being resumed")
        if before["tokenizer"] != self.record["tokenizer"]:
            problems.append("tokenizer: it differs from that of the run being resumed")
        updates, planned = self.record["updates"], before["updates"]
        if step > updates:
            problems.append(f"ckpt_path={checkpoint}: it is from update {step:,}, but this run ends after {updates:,}")
        elif planned != updates and not same_rates(module.optimization, updates, planned, step):
            problems.append(
                f"scheduler: a run of {updates:,} updates would have had other learning rates before update "
                f"{step:,} than the run being resumed, which was planned for {planned:,}; only a schedule that "
                "does not depend on the length of the run can be extended, such as scheduler=constant"
            )
        if problems:
            raise ConfigError(with_advice(problems, checkpoint))
        check_fit(module.model, content, checkpoint)


def same_rates(optimization: Optimization, updates: int, planned: int, count: int) -> bool:
    """Whether a run has the same learning rates in its first `count` updates, whichever of two lengths it has."""
    if not optimization.depends_on_length:
        return True
    return optimization.learning_rates(updates, count) == optimization.learning_rates(planned, count)
