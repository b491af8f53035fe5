"""One training run, from a resolved configuration to a run folder."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytorch_lightning as pl
import torch

from attnorm.attention.multihead import attention_layers
from attnorm.config.checkpoint_files import BEST, LAST, AtomicCheckpointIO, read_checkpoint, replace_by_copy
from attnorm.config.resolve import record_of, run_label
from attnorm.config.resume import deciding
from attnorm.data.preprocess import describe
from attnorm.errors import ConfigError
from attnorm.tasks.module import Task
from attnorm.tasks.results import Scores
from attnorm.tasks.task import Recipe, recipe_of
from attnorm.training import console, warm_start
from attnorm.training.baselines import warnings_of
from attnorm.training.callbacks.attention_stats import AttentionStats
from attnorm.training.callbacks.checkpointing import BestAndLast
from attnorm.training.callbacks.graceful_stop import GracefulStop, TimeLimit
from attnorm.training.callbacks.learned_scalars import LearnedScalars, recorded_scalars
from attnorm.training.callbacks.progress import ProgressLine
from attnorm.training.callbacks.rng_state import RandomStreams
from attnorm.training.callbacks.run_record import RunRecord
from attnorm.training.callbacks.throughput import Throughput
from attnorm.training.datamodule import RunData
from attnorm.training.environment import peak_memory, write_json
from attnorm.training.loggers import build_loggers, finish_loggers
from attnorm.training.run_folder import load_weights, resume_history, start_record


def train(cfg: dict, run: Path, overrides: Sequence[str] = ()) -> dict:
    """Trains, keeps the best model by the task's metric, scores it, and returns what summary.json says.

    cfg: resolved, plain, and without a problem for `validate.check`. run: the run folder, made here. overrides: what
    was typed for this run, for its record. Whatever stops the run (an exception, a signal) is written into summary.json
    before it is raised again.
    """
    started = time.perf_counter()
    console.quiet_libraries()
    label, recipe = run_label(cfg), recipe_of(cfg)
    throughput, loggers, failed = Throughput(), [], True
    summary = {"task": cfg["task"]["name"], "attention": label, "seed": cfg["seed"], "tags": cfg["tags"]}
    summary |= {"overrides": list(overrides), "finished": False}
    first = pl.utilities.rank_zero_only.rank == 0
    if first:
        start_record(cfg, run, list(overrides))
        console.show_config(record_of(cfg))
    try:
        with GracefulStop(run / "checkpoints") as stop:
            splits = recipe.splits()
            tokenizer = splits["train"].tokenizer
            if first:
                tokenizer.save(run)
                recipe.save(run)
                console.show_lines(describe(splits, recipe.layout()), recipe.notes())
            model = first_model(recipe, tokenizer, show=first)
            task = recipe.task(model, tokenizer, splits["validation"])
            loggers = build_loggers(cfg, run, label) if first else []
            trainer = build_trainer(cfg, run, task, loggers, [throughput, stop])
            data = RunData(recipe, splits)
            updates = set_length(trainer, data)
            record = RunRecord(deciding(record_of(cfg)), recipe.data_fingerprints(splits), tokenizer, updates)
            trainer.callbacks.insert(0, record)
            if cfg["ckpt_path"]:
                record.check(Path(cfg["ckpt_path"]), task.optim)
                if first:
                    resume_history(Path(cfg["ckpt_path"]), run, model)
            summary |= describe_parts(cfg, task.model, splits, data)
            if first:
                console.show_plan(summary, cfg["data"]["batch_tokens"], updates)

            trainer.fit(task, datamodule=data, ckpt_path=cfg["ckpt_path"])
            if trainer.is_global_zero and not cfg["trainer"]["fast_dev_run"]:
                keep_best(run / "checkpoints")
            # processes that were forked for training do not tell their parent how far they came
            steps = trainer.global_step or read_checkpoint(run / "checkpoints/last.ckpt")["global_step"]
            summary |= {"steps": steps, "epochs": round(steps / data.updates_per_epoch(), 2)}
            summary |= ending(trainer, steps, updates)
            if trainer.is_global_zero and not cfg["trainer"]["fast_dev_run"]:
                best = load_weights(task.model, run / "checkpoints" / f"{BEST}.ckpt")
                scores = recipe.score(task.to(trainer.strategy.root_device), splits["validation"])
                summary |= {"monitor": task.monitor, "best_value": best_value(trainer), "best_step": best}
                warnings = warnings_of(scores, cfg, steps, updates, data.updates_per_epoch())
                summary |= {"validation": scores.record(), "warnings": warnings}
                show_result(run, label, scores, cfg["callbacks"]["samples"])
                for name, rows in recorded_scalars(run).items():
                    console.show_learned_scalar(name, rows)
                console.show_warnings(warnings)
            failed = False
    except BaseException as error:
        summary |= {"finished": False, "why": f"{type(error).__name__}: {error}"}
        raise
    finally:
        summary |= {
            "tokens_per_second": throughput.per_second(),
            "peak_memory": peak_memory(),
            "wall_seconds": round(time.perf_counter() - started, 1),
        }
        if first:
            finish_loggers(loggers, failed=failed)
            write_json(run / "summary.json", summary)
    if first:
        console.show_ending(run, summary)
    return summary


def first_model(recipe: Recipe, tokenizer, show: bool) -> torch.nn.Module:
    """The model before its first update: from the weights that `model.init` names, unless a checkpoint follows."""
    model, start = recipe.model(tokenizer), recipe.cfg["model"].get("init")
    if start and not recipe.cfg["ckpt_path"]:
        filled = warm_start.start(model, start)
        if show:
            console.show_lines(warm_start.describe(filled, start))
    return model


def build_trainer(cfg: dict, run: Path, task: Task, loggers: list, own: list[pl.Callback]) -> pl.Trainer:
    """Lightning's trainer with this project's callbacks; the trainer's own keys pass through as typed."""
    settings, options = dict(cfg["trainer"]), cfg["callbacks"]
    folder = run / "checkpoints"
    used = [
        RandomStreams(cfg["seed"]),
        LearnedScalars(run, options["hybrid_every"]),
        AttentionStats(run, options["attention_every"]),
        ProgressLine(run / "samples", options["samples"], options["progress"]),
    ]
    if settings["max_time"] is not None:
        used.append(TimeLimit(settings["max_time"]))
    if options["patience"] is not None:
        used.append(pl.callbacks.EarlyStopping(task.monitor, mode=task.better, patience=options["patience"]))
    used += own
    if not settings["fast_dev_run"]:
        used.append(BestAndLast(folder, task.monitor, task.better))
    return pl.Trainer(
        **settings | {"max_steps": -1, "val_check_interval": 1},  # both are known once the trainer is: `set_length`
        logger=loggers or False,
        callbacks=used,
        plugins=[AtomicCheckpointIO()],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=not settings["fast_dev_run"],
        use_distributed_sampler=False,
        check_val_every_n_epoch=None,
        default_root_dir=run,
    )


def set_length(trainer: pl.Trainer, data: RunData) -> int:
    """Tells the trainer how many updates to make and when to validate; returns the number of updates.

    Both depend on how many devices the trainer has found. Lightning must not compute them itself: it would build the
    loaders too early (see `Task.configure_optimizers`).
    """
    data.trainer = trainer
    updates = data.planned_updates()
    if not trainer.fast_dev_run:
        asked = data.cfg["trainer"]["val_check_interval"]
        every = max(1, updates // data.cfg["task"]["validations"]) * trainer.accumulate_grad_batches
        trainer.val_check_interval = asked or every
        trainer.fit_loop.epoch_loop.max_steps = updates
        if data.cfg["trainer"]["limit_train_batches"] is not None:
            trainer.limit_train_batches = data.updates_per_epoch() * trainer.accumulate_grad_batches
    return updates


def ending(trainer: pl.Trainer, steps: int, updates: int) -> dict:
    """Whether training came to its end, and why if it made fewer updates than planned."""
    if steps >= updates:
        return {"finished": True}
    made = f"after {steps:,} of {updates:,} updates"
    for callback in trainer.callbacks:
        if isinstance(callback, pl.callbacks.EarlyStopping) and callback.wait_count >= callback.patience:
            return {"finished": True, "why": f"callbacks.patience={callback.patience}: stopped {made}"}
        if isinstance(callback, TimeLimit) and callback.time_remaining() <= 0:
            return {"finished": False, "why": f"trainer.max_time was reached {made}"}
    return {"finished": False, "why": f"training ended {made}"}


def keep_best(folder: Path) -> None:
    """Makes last.ckpt the best one if a resumed run has none: its checkpoint came without the run's best.ckpt.

    Raises ConfigError if the run has saved nothing at all.
    """
    last, best = (folder / f"{name}.ckpt" for name in (LAST, BEST))
    if not last.exists():
        raise ConfigError(["trainer.max_time: was reached before the first update, so there is no model to score"])
    if not best.exists():
        replace_by_copy(last, best)


def best_value(trainer: pl.Trainer) -> float | None:
    """The best value of the monitored metric; None after training in forked processes, which keep it to themselves."""
    value = trainer.checkpoint_callback.best_model_score
    return None if value is None else float(value)


def describe_parts(cfg: dict, model: torch.nn.Module, splits: dict, data: RunData) -> dict:
    """Data set, sizes and padding, for summary.json."""
    return {
        "data": {"name": cfg["data"]["name"], **{name: split.counts for name, split in splits.items()}},
        "padding_share": round(data.padding_share(), 4),
        "vocabulary": splits["train"].tokenizer.vocab_size,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "attention_layers": len(attention_layers(model)),
    }


def show_result(run: Path, label: str, scores: Scores, samples: int) -> None:
    """Samples and closing table on the screen, all that the model wrote in the run folder."""
    console.show_samples(scores.samples[:samples])
    scores.write(run / "samples", scores.split)
    console.show_scores(scores, label)
