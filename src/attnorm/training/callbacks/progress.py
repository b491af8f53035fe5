"""The progress bar of a run, and one line per validation."""

from pathlib import Path

import pytorch_lightning as pl
from rich.markup import escape
from rich.progress import Progress

from attnorm.progress import bar, console


class ProgressLine(pl.Callback):
    """The bar over all updates of the run, and one line a validation with a sample headline."""

    def __init__(self, samples_folder: Path, samples: int, show: bool):
        self.folder, self.samples, self.show = samples_folder, samples, show
        self.bar: Progress | None = None

    def on_train_start(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        if self.show and trainer.is_global_zero:
            self.bar = bar("training")
            self.bar.start()
            total = trainer.datamodule.planned_updates()
            self.line = self.bar.add_task("", total=total, completed=trainer.global_step, note="")

    def on_train_batch_end(self, trainer: pl.Trainer, task: pl.LightningModule, *_) -> None:
        if self.bar is not None:
            loss = trainer.progress_bar_metrics.get("train/loss")
            self.bar.update(self.line, completed=trainer.global_step, note="" if loss is None else f"loss {loss:.3f}")

    def on_validation_end(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        if not trainer.is_global_zero or trainer.sanity_checking:
            return
        found = {name[4:]: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("val/")}
        console.print(f"step {trainer.global_step:>6,}  val loss {found['loss']:.3f}  {task.format_line(found)}")
        self._show_samples(trainer.global_step, task.samples[: self.samples])

    def _show_samples(self, step: int, samples: list) -> None:
        if not samples:
            return
        text = "\n\n".join("\n".join(f"{label:<10}{line}" for label, line in sample.items()) for sample in samples)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"step_{step:06d}.txt").write_text(text + "\n")
        for label, line in list(samples[0].items())[1:]:
            console.print(f"[dim]{label:>18}[/] {escape(line)}")

    def on_train_end(self, *_) -> None:
        self._stop()

    def on_exception(self, *_) -> None:
        self._stop()

    def _stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
