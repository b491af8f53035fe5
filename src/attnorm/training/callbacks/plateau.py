"""Steps of schedulers that watch a metric, such as ReduceLROnPlateau, also in a run that is resumed."""

from typing import Any

import pytorch_lightning as pl


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
