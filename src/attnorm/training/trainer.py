"""Lightning's trainer for a run: its callbacks, how many updates it makes, when it validates, and its profiler."""

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.plugins.environments import SLURMEnvironment
from pytorch_lightning.profilers import SimpleProfiler

from attnorm.imports import parameters
from attnorm.parts import Part
from attnorm.run.folder import RunState
from attnorm.run.writing import RunWriter
from attnorm.settings import Settings
from attnorm.tasks.module import TaskModule
from attnorm.training.callbacks.checkpointing import AtomicCheckpointIO, Checkpoints, ResumeState
from attnorm.training.callbacks.graceful_stop import EarlyStopping, GracefulStop, TimeLimit
from attnorm.training.callbacks.watchdog import SLOW
from attnorm.training.compiled import CompiledModel
from attnorm.training.datamodule import TaskDataModule

SHORTEST_WAIT = 1800.0  # seconds that processes wait for each other at least, which is Lightning's default
FOREVER = 365 * 86400.0


def build_trainer(
    cfg: Settings,
    run: RunWriter,
    task_module: TaskModule,
    directions: Mapping[str, str],
    resuming: ResumeState,
    required: list[pl.Callback],
    stop: GracefulStop,
) -> pl.Trainer:
    """The trainer of a run. Keys of `trainer` reach Lightning unchanged.

    directions: of the metrics that callbacks may watch, whether "min" or "max" is best.
    resuming:   the first of all callbacks.
    required:   callbacks of the run itself, which the group `callbacks` cannot take away.
    stop:       receives the signals.
    """
    settings = {**cfg.trainer.arguments, "max_epochs": cfg.trainer.max_epochs}
    if settings.get("profiler"):
        settings["profiler"] = SimpleProfiler(dirpath=run.folder / "profile", filename="simple")
    facts = {"run_folder": run.folder, "monitor": task_module.monitor}
    entries, keys = build_entries(cfg.callbacks, directions, **facts), set[str]()
    for name, entry in zip(cfg.callbacks, entries, strict=True):
        if entry.state_key in keys:  # such as two that stop early by one metric; a checkpoint tells them apart by name
            named = {"state_key": f"{entry.state_key} of callbacks.{name}"}
            entry.__class__ = type(type(entry).__name__, (type(entry),), named)
        keys.add(entry.state_key)
    callbacks = [resuming, *entries]
    if settings.get("max_time") is not None:
        callbacks.append(TimeLimit(settings["max_time"], verbose=False))
    callbacks += [*required, stop]
    if cfg.run.compile:
        callbacks.append(CompiledModel())
    if not settings.get("fast_dev_run"):
        callbacks.append(Checkpoints(run, task_module.monitor, task_module.mode, cfg.run, stop))
    plugins: list[Any] = [AtomicCheckpointIO()]
    if SLURMEnvironment.detect():
        plugins.append(SLURMEnvironment(auto_requeue=False))  # `GracefulStop` requeues
    limits = {"limit_train_batches": None, "limit_val_batches": None}  # the loaders of `TaskDataModule` end there
    trainer = pl.Trainer(
        **settings | limits | {"max_steps": -1, "val_check_interval": 1},  # the latter two are set in `set_length`
        logger=False,  # they are opened last, since they write
        callbacks=callbacks,
        plugins=plugins,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=not settings.get("fast_dev_run"),
        use_distributed_sampler=False,
        check_val_every_n_epoch=None,
        default_root_dir=run.folder,
    )
    if hasattr(trainer.strategy, "_timeout"):  # longer than the watchdog allows, which prints the stacks
        limit = cfg.run.hang_timeout
        seconds = FOREVER if limit is None else max(SHORTEST_WAIT, SLOW * limit + 60.0)
        trainer.strategy._timeout = timedelta(seconds=seconds)
    return trainer


def set_length(trainer: pl.Trainer, data: TaskDataModule) -> int:
    """Tells the trainer how many updates to make and when to validate; returns the number of updates.

    Both depend on how many devices the trainer has found. Lightning must not compute them itself: it would build the
    loaders too early (see `TrainingModule.configure_optimizers`).
    """
    data.trainer = trainer
    updates = data.num_training_steps()
    if not data.cfg.trainer.fast_dev_run:
        trainer.val_check_interval = validation_interval(data, updates) * trainer.accumulate_grad_batches
        trainer.fit_loop.epoch_loop.max_steps = updates
    return updates


def validation_interval(data: TaskDataModule, updates: int) -> int:
    """After how many updates to validate: trainer.val_check_interval counts batches (whole number) or is a share of an
    epoch; without it, at most task.validations times over the run."""
    asked = data.cfg.trainer.val_check_interval
    if asked is None:
        return math.ceil(updates / data.cfg.task.validations)
    if isinstance(asked, float):
        return max(1, round(asked * data.updates_per_epoch()))
    return asked // data.trainer.accumulate_grad_batches


def ending(trainer: pl.Trainer, steps: int, updates: int) -> dict[str, Any]:
    """Whether training came to its end, and why if it made fewer updates than planned."""
    if steps >= updates:
        return {"state": RunState.FINISHED}
    made = f"after {steps:,} of {updates:,} updates"
    for callback in trainer.callbacks:  # type: ignore[attr-defined]  # set by Lightning
        if isinstance(callback, pl.callbacks.EarlyStopping) and callback.wait_count >= callback.patience:
            name = "callbacks.early_stopping.patience" if isinstance(callback, EarlyStopping) else "EarlyStopping"
            return {"state": RunState.FINISHED, "why": f"{name}={callback.patience}: stopped {made}"}
        if isinstance(callback, TimeLimit) and (callback.time_remaining() or 0) <= 0:
            return {"state": RunState.INTERRUPTED, "why": f"trainer.max_time was reached {made}"}
    return {"state": RunState.INTERRUPTED, "why": f"training ended {made}"}


def build_entries(
    entries: Mapping[str, Part], directions: Mapping[str, str] | None = None, /, **facts: Any
) -> list[Any]:
    """The callbacks or loggers of a run, in order.

    An entry gets those facts that its class names as parameters, unless they are set. facts: values of FACTS, to which
    `entry`, the name, is added, `dirpath`, a folder of its own, and `mode`, the direction of the metric that a callback
    watches.
    """
    built = []
    for name, part in entries.items():
        takes = parameters(part.cls).keys()  # not what a **kwargs would also take
        known = {**facts, "entry": name, "dirpath": facts["run_folder"] / "callbacks" / name}
        if "monitor" in takes and (mode := (directions or {}).get(part.options.get("monitor", facts.get("monitor")))):
            known["mode"] = mode
        known = {fact: value for fact, value in known.items() if fact in takes - part.options.keys()}
        built.append(part.build(**known))
    return built
