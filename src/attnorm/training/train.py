"""One training run, from a checked configuration to a run folder."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from traceback import walk_tb
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies.launchers.multiprocessing import _MultiProcessingLauncher
from pytorch_lightning.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

from attnorm.attention.model_sites import Sites
from attnorm.attention.multihead import attention_layers
from attnorm.data.preprocess import describe
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.imports import starting_processes
from attnorm.progress import quiet_libraries
from attnorm.run import warm_start
from attnorm.run.checkpoint import BEST, LAST, digest_of, keep_best, load_weights, naming_the_reason, read_checkpoint
from attnorm.run.csv_files import rate_note
from attnorm.run.folder import folder_lock
from attnorm.run.integrity import not_much_larger
from attnorm.run.opening import tokenizer_of_run
from attnorm.run.resume import deciding
from attnorm.run.run import Run
from attnorm.run.writing import RunWriter
from attnorm.settings import Settings
from attnorm.source_code import own_modules
from attnorm.tasks.data_notes import data_notes
from attnorm.tasks.ranks import is_sharded
from attnorm.tasks.results import monitor_directions
from attnorm.tasks.task import Task, task_of
from attnorm.training import console
from attnorm.training.baselines import warnings_of
from attnorm.training.callbacks.checkpointing import Checkpoints, ResumeState
from attnorm.training.callbacks.graceful_stop import GracefulStop
from attnorm.training.callbacks.run_files import RunFiles
from attnorm.training.callbacks.throughput import Throughput
from attnorm.training.callbacks.watchdog import Watchdog
from attnorm.training.datamodule import TaskDataModule
from attnorm.training.diagnosis import refuse_non_finite
from attnorm.training.module import TrainingModule
from attnorm.training.processes import DECIDED, end_with_parent, is_first_rank, slurm_requeue, was_launched
from attnorm.training.run_log import run_log
from attnorm.training.run_loggers import RunLoggers
from attnorm.training.trainer import build_trainer, ending, set_length

Draw = Callable[[Path], list[Path]]
SAMPLES = 5  # examples that are shown at the end


def train(
    config: Settings,
    run_folder: Path,
    overrides: Sequence[str] = (),
    *,
    draw: Draw | None = None,
) -> float | None:
    """Trains, keeps the best model by the task's metric, and scores it.

    config:     a checked configuration.
    run_folder: everything that the run leaves behind is in it. It is locked until the run ends. A run that
                continues there changes nothing in it before its settings, its data, its tokenizer and its checkpoint
                have been found to fit.
    overrides:  the overrides of this run, which are recorded.
    draw:       draws the figures of a run folder; they are sent to the loggers, also of a run that was stopped.

    Returns the best value of the metric that the task monitors. Whatever stops the run (an exception, a signal) is
    written into summary.json before it is raised again. Raises RunError if another process is training in the folder.
    """
    quiet_libraries()
    if was_launched():
        end_with_parent(signal.SIGTERM)
    task, throughput, run = task_of(config), Throughput(), RunWriter(run_folder)
    watchdog = Watchdog(config.run.hang_timeout)
    is_first = is_first_rank()
    described = {
        "task": config.task.name,
        "attention": config.label,
        "seed": config.seed,
        "tags": config.tags,
        "primary": task.primary_metric(),
        "overrides": list(overrides),
    }
    # They are left in reverse order, so that each still has those above it: the loggers are closed before summary.json
    # says how the run ended, which a job that is requeued must find; run.log has all of this; the lock is last.
    with (
        folder_lock(run_folder) if is_first else nullcontext(),
        run_log(config.settings, run_folder) as log_file,
        slurm_requeue(config.resume is not None),  # a job that cannot continue would start from the beginning
        RunFiles(run, throughput, **described) as files,
        GracefulStop(run) as stop,
        RunLoggers(config, run_folder, draw) as loggers,
        memory_note(),
    ):
        summary, resuming = files.summary, ResumeState(config.seed)

        def begin() -> None:
            """Changes the first bytes in the folder."""
            log_file.begin()
            files.begin(config, overrides)

        checkpoint = config.checkpoint
        if checkpoint is not None and not config.continues:
            checkpoint = run.checkpoint_file(LAST)  # a copy
        groups = config.optimization.groups
        begins_late = config.continues or groups.freeze or groups.lr_factors  # the model knows the names of its parts
        if not begins_late:
            begin()
        if is_first:
            console.show_start(config, overrides, run.config_file)
            console.show_lines(Sites(config.attention, config.sites).description)
        splits = task.splits(own_tokenizer(config))
        if is_first:
            summary["data_notes"] = data_notes(task, splits)
            console.show_lines(describe(splits, task.featurizer()), task.notes(), *summary["data_notes"])
        model = build_model(task, splits["train"].tokenizer, show=is_first)
        groups.freeze_parts(model)
        task_module = task.module(model, splits["train"].tokenizer, splits["validation"])
        if config.task.monitor and (selector := task.selector):
            task_module.monitor, task_module.mode = selector
        summary["directions"] = task.monitors() | {task_module.monitor.removeprefix("val/"): task_module.mode}
        directions = monitor_directions(summary["directions"])
        optimization = config.optimization.watching(task_module.monitor, directions)
        module = TrainingModule(task_module, optimization, refuse_non_finite)
        required: list[pl.Callback] = [throughput, files, watchdog, loggers]
        trainer = build_trainer(config, run, task_module, directions, resuming, required, stop)
        data = TaskDataModule(task, splits)
        updates = set_length(trainer, data)
        fingerprints = {"data": task.data_fingerprints(splits), "tokenizer": splits["train"].tokenizer.fingerprint()}
        resuming.record = {"settings": deciding(config.settings), "updates": updates, **fingerprints}
        if config.checkpoint is not None:
            resuming.check(config.checkpoint, module)
        if begins_late:
            begin()
        if is_first:
            splits["train"].tokenizer.save(run_folder)  # what the model must know about its training data
            task.save(run_folder)
            if checkpoint is not None:
                run.rewind(checkpoint)
        trainer.loggers = loggers.open()
        summary |= describe_parts(model, data)
        if is_first:
            run.add(fingerprints=fingerprints, modules=own_modules())  # with those imported since the first bytes
            console.show_plan(summary, config.data.batch_tokens, updates)
        with watchdog:
            fit(trainer, module, data, checkpoint, watchdog)
            if trainer.is_global_zero and not config.trainer.fast_dev_run:
                keep_best(run.checkpoints)
            summary |= describe_length(data, updates, run)
            if not config.trainer.fast_dev_run:
                summary |= evaluate_best(data, module, summary["steps"], updates, run, loggers)
        profiler = trainer.profiler  # type: ignore[attr-defined]  # set by Lightning
        if is_first and profiler.dirpath is not None:
            console.show_lines(profiler.summary(), f"profile: {profiler.dirpath}")
    if is_first:
        console.show_ending(run_folder, summary)
    return summary.get("best_value")


@contextmanager
def memory_note() -> Iterator[None]:
    """Adds the keys that help to an out-of-memory error."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        error.add_note("Try a larger trainer.accumulate_grad_batches (same result), or a smaller data.batch_tokens.")
        raise


def fit(
    trainer: pl.Trainer, module: TrainingModule, data: TaskDataModule, checkpoint: Path | None, watchdog: Watchdog
) -> None:
    """Trains. Raises CheckpointError if Lightning cannot restore the state that is in the checkpoint."""
    launcher, variables = trainer.strategy.launcher, dict(DECIDED)
    if not isinstance(launcher, _MultiProcessingLauncher):  # a fork would lack the thread of `faulthandler`
        watchdog.arm()
    if isinstance(launcher, _SubprocessScriptLauncher) and sys.modules["__main__"].__spec__ is None:
        # a script that is started again has its modules beside it
        variables["PYTHONSAFEPATH"] = os.environ.get("PYTHONSAFEPATH", "")
    try:
        with nullcontext() if launcher is None else starting_processes(**variables):
            trainer.fit(module, datamodule=data, ckpt_path=checkpoint)
    except BaseException as error:
        trainer.profiler.describe()  # type: ignore[attr-defined]  # Lightning does so after a whole training only
        frames = (frame.f_code for frame, _ in walk_tb(error.__traceback__))
        if any(code.co_filename.endswith("checkpoint_connector.py") and "restore" in code.co_name for code in frames):
            with naming_the_reason(Path(str(checkpoint))):
                raise
        raise


def own_tokenizer(config: Settings) -> Tokenizer | None:
    """The tokenizer that a run has trained before the checkpoint from which it continues; None to train or read one.

    Another version of a library may train it in another way.
    """
    if config.checkpoint is None or not config.tokenizer.cls.needs_training(config.tokenizer.options):
        return None
    run = Run.of_checkpoint(config.checkpoint)
    return tokenizer_of_run(run.folder, config) if (run.folder / config.tokenizer.cls.FILE).is_file() else None


def build_model(task: Task, tokenizer: Tokenizer, show: bool) -> torch.nn.Module:
    """The model before its first update: from the weights that `model.init` names, unless a checkpoint follows."""
    start, checkpoint = task.cfg.start.init, task.cfg.checkpoint
    with not_much_larger(read_checkpoint(checkpoint), checkpoint) if checkpoint else nullcontext():
        model = task.model(tokenizer)
    if start and checkpoint is None:
        filled = warm_start.load_pretrained(model, start)
        if show:
            console.show_lines(filled.summary(start))
    return model


def describe_parts(model: torch.nn.Module, data: TaskDataModule) -> dict[str, Any]:
    """Dataset, sizes and padding, for summary.json."""
    source = data.cfg.settings["data"]["_target_"]
    return {
        "data": {"source": source, **{name: split.counts for name, split in data.splits.items()}},
        "data_fingerprints": data.task.data_fingerprints(data.splits),
        "padding_share": round(data.train_sampler.padding(), 4),
        "vocabulary": data.splits["train"].tokenizer.vocab_size,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "frozen": sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad),
        "attention_layers": len(attention_layers(model)),
    }


def describe_length(data: TaskDataModule, updates: int, run: Run) -> dict[str, Any]:
    """How far training came, for summary.json."""
    trainer = data.trainer
    # processes that were forked for training do not tell their parent how far they came
    steps = trainer.global_step or read_checkpoint(run.checkpoint_file(LAST))["global_step"]
    length: dict[str, Any] = {"steps": steps, "epochs": round(steps / data.updates_per_epoch(), 2)}
    if isinstance(saves := trainer.checkpoint_callback, Checkpoints):
        length["checkpoints"] = {"saved": saves.count, "seconds": round(saves.seconds, 3)}  # of this process
    return length | ending(trainer, steps, updates)


def evaluate_best(
    data: TaskDataModule,
    module: TrainingModule,
    steps: int,
    updates: int,
    run: RunWriter,
    loggers: RunLoggers,
) -> dict[str, Any]:
    """Scores the best model on the validation split, on all ranks together. The first rank shows, writes and logs the
    results; what summary.json says of them."""
    task, trainer, split = data.task, data.trainer, data.splits["validation"]
    trainer.strategy.barrier()  # until the first rank has written the best checkpoint
    task_module = module.task_module
    if is_sharded(module.model):
        task_module = task.module(task.model(split.tokenizer), split.tokenizer, split)
    best_file = run.checkpoint_file(BEST)
    best_step = load_weights(task_module.model, best_file)
    task_module.model.to(trainer.strategy.root_device)
    scores = task.score(task_module, split)
    if scores.predictions is not None:
        scores.predictions.selecting = task.selecting(split)
    if not trainer.is_global_zero:
        return {}
    warnings = warnings_of(scores, task.cfg, steps, updates, data.updates_per_epoch(), task.monitors())
    console.show_samples(scores.samples[:SAMPLES])
    if scores.predictions is not None:
        scores.predictions.input_hashes = task.input_hashes(split)
        scores.predictions.checkpoint = {"update": best_step, "sha256": digest_of(best_file)}
    run.write_results(scores, scores.split, "samples")
    loggers.log_final(scores, scores.samples[:SAMPLES], steps)
    console.show_scores(scores, task.cfg.label)
    for name, curves in run.curves().items():
        console.show_learned_scalar(name, curves, rate_note(run.rows(name)))
    console.show_warnings(warnings)
    saves = trainer.checkpoint_callback
    return {
        "monitor": task_module.monitor,
        "mode": task_module.mode,
        # forked processes, which have trained and saved, keep the best value to themselves
        "best_value": saves.best[0][0] if isinstance(saves, Checkpoints) and saves.best else None,
        "best_step": best_step,
        "validation": scores.record(),
        "warnings": warnings,
    }
