"""The loggers of a run: started before training, closed once everything has been sent to them."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loggers import Logger

from attnorm.run.run import Run
from attnorm.settings import Settings
from attnorm.tasks.results import Results
from attnorm.training.loggers import MetricsFile, Samples, log_samples
from attnorm.training.processes import is_first_rank
from attnorm.training.trainer import build_entries

log = logging.getLogger(__name__)


class RunLoggers(pl.Callback, AbstractContextManager["RunLoggers"]):
    """metrics.csv and the loggers of the group `logger`, closed when this context ends.

    Before that the figures of the run are drawn and sent, whether the run ended well or not. What fails after training
    (drawing, sending, closing) is a warning: it neither hides the exception that ended the run nor makes a finished run
    a failed one.

    It is also a callback of the trainer, because Lightning would close the loggers at the end of training, before the
    final scores, samples and figures have been sent.
    """

    def __init__(
        self,
        cfg: Settings,
        run_folder: Path,
        draw: Callable[[Path], list[Path]] | None = None,
    ):
        self.cfg, self.run_folder, self.draw = cfg, run_folder, draw
        self.metrics_file = MetricsFile(run_folder)
        self.others: list[Logger] = []
        self.is_open = False

    def open(self) -> list[Logger]:
        """Starts the loggers, on the first rank; the other ranks have none."""
        self.is_open = True
        if not is_first_rank():
            return []
        if not self.cfg.loggers:
            return [self.metrics_file]
        facts = {
            "run_folder": self.run_folder,
            "save_dir": self.run_folder,
            "run_name": f"{self.cfg.task.name} {self.cfg.label} seed {self.cfg.seed}",
            "tags": self.cfg.tags,
            "config": self.cfg.settings,
        }
        self.others = build_entries(self.cfg.loggers, **facts)
        for logger in self.others:
            logger.log_hyperparams(self.cfg.settings)
        return [self.metrics_file, *self.others]

    def _detach(self, trainer: pl.Trainer, *_: object, stage: str = "") -> None:
        """Keeps Lightning from closing the loggers. They are saved, as this may be a process forked for training."""
        for logger in self.others:
            attempt("save", logger, logger.save)
        trainer.loggers = []

    teardown = on_exception = _detach  # type: ignore[assignment]

    def log_final(self, results: Results, samples: Samples, step: int) -> None:
        """Sends scores and samples of the best model to the loggers; metrics.csv keeps its columns."""
        self.metrics_file.last_step = step
        named = {f"final/{name}": value for name, value in results.metrics.items()}
        for logger in self.others:
            attempt("log the final scores", logger, logger.log_metrics, named, step)
            attempt("log the samples", logger, log_samples, logger, "final", samples, step)

    def __exit__(self, kind: type | None, *_: object) -> None:
        if not is_first_rank() or not self.is_open or not self.run_folder.is_dir():
            return
        figures = attempt("draw the figures", self, self.draw, self.run_folder) if self.draw else None
        curves = attempt("read the learned scalars", self, Run(self.run_folder).curves)
        step = self.metrics_file.last_step
        for logger in self.others:
            for path in figures or []:
                if path.suffix == ".png" and hasattr(logger, "log_image"):
                    attempt(f"log {path.name}", logger, logger.log_image, f"figures/{path.stem}", [str(path)], step)
            for name, layers in (curves or {}).items():
                if hasattr(logger, "log_curves"):
                    attempt(f"log the curves of {name}", logger, logger.log_curves, name, layers, step)
            attempt("close", logger, logger.finalize, "success" if kind is None else "failed")


def attempt(what: str, owner: object, action: Callable, *arguments: Any) -> Any:
    """The result of `action(*arguments)`; None and a warning if it fails."""
    try:
        return action(*arguments)
    except Exception as error:
        log.warning("%s could not %s: %s: %s", type(owner).__name__, what, type(error).__name__, error)
        return None
