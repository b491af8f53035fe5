"""The progress bar of a run, and one line per validation."""

import logging
from pathlib import Path

import pytorch_lightning as pl
import rich.progress
from rich.markup import escape

from attnorm.progress import bar, console
from attnorm.schema import WholeNumber
from attnorm.training.loggers import log_samples, samples_text
from attnorm.training.module import TrainingModule

log = logging.getLogger(__name__)


class Progress(pl.Callback):
    """A bar over all updates of the run, and one line per validation with a sample.

    bar:     whether to show the bar; on a terminal only.
    samples: how many samples of each validation are kept in samples/step_*.txt and sent to the loggers. The first
             one is shown.
    """

    def __init__(self, run_folder: Path, bar: bool = True, samples: WholeNumber = 5):
        self.folder, self.samples, self.show = run_folder / "samples", samples, bar
        self.bar: rich.progress.Progress | None = None

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self.show and trainer.is_global_zero:
            self.bar = bar("training")
            self.bar.start()
            total = trainer.datamodule.num_training_steps()  # type: ignore[attr-defined]  # set by Lightning
            self.line = self.bar.add_task("", total=total, completed=trainer.global_step, note="")

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: object) -> None:
        if self.bar is not None:
            loss = trainer.progress_bar_metrics.get("train/loss")
            self.bar.update(self.line, completed=trainer.global_step, note="" if loss is None else f"loss {loss:.3f}")

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if not trainer.is_global_zero or trainer.sanity_checking:
            return
        assert isinstance(module, TrainingModule)
        metrics = {
            name[4:]: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("val/")
        }
        loss = f"val loss {metrics['loss']:.3f}  " if "loss" in metrics else ""
        log.info("step %6s  %s%s", f"{trainer.global_step:,}", loss, module.task_module.format_line(metrics))
        if samples := module.task_module.samples[: self.samples]:
            self.folder.mkdir(exist_ok=True)
            (self.folder / f"step_{trainer.global_step:06d}.txt").write_text(samples_text(samples) + "\n")
            for label, line in list(samples[0].items())[1:]:
                console.print(f"[dim]{label:>18}[/] {escape(line)}")
            for logger in trainer.loggers:
                log_samples(logger, "validation", samples, trainer.global_step)

    def _stop(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    on_train_end = on_exception = _stop  # type: ignore[assignment]
