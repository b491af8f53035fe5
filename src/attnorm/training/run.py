"""One training run, from a resolved configuration to a run folder."""

import time
from pathlib import Path

import pytorch_lightning as pl
import torch
import yaml

from attnorm.attention.multihead import attention_layers
from attnorm.data.corpus import describe
from attnorm.tasks.base import Task
from attnorm.training import assemble, callbacks, checkpoints, console, init, integrity, tracking, watching
from attnorm.training.config import run_label
from attnorm.training.environment import describe_environment, peak_memory, write_json
from attnorm.training.recipes.base import Recipe, recipe_of
from attnorm.training.scores import Scores

CSV_FILES = ("metrics.csv", watching.HYBRID_FILE, watching.ATTENTION_FILE)


def train(cfg: dict, run: Path) -> dict:
    """Trains, keeps the best model by the task's metric, scores it, and returns what summary.json says.

    cfg: resolved, plain, and found sound by `config.check`. run: the run folder, made here.
    Whatever stops the run (an exception, a signal) is written into summary.json before it is raised again.
    """
    started = time.perf_counter()
    console.quiet_libraries()
    label, recipe = run_label(cfg), recipe_of(cfg)
    trainer, throughput, loggers = None, callbacks.Throughput(), []
    summary = {"task": cfg["task"]["name"], "attention": label, "seed": cfg["seed"], "tags": cfg["tags"]}
    first = pl.utilities.rank_zero_only.rank == 0
    if first:
        start_record(cfg, run)
        console.show_config(assemble.record_of(cfg))
    try:
        splits = recipe.splits()
        tokenizer = splits["train"].tokenizer
        if first:
            tokenizer.save(run)
            recipe.save(run)
            console.show_lines(describe(splits, recipe.layout()), recipe.notes())
        model = first_model(recipe, tokenizer, show=first)
        task = recipe.task(model, tokenizer, splits["validation"])
        data = assemble.RunData(recipe, splits)
        if first and cfg["ckpt_path"]:
            resume_history(Path(cfg["ckpt_path"]), run, model)
        loggers = tracking.build_loggers(cfg, run, label) if first else []
        updates = data.planned_updates()
        trainer = build_trainer(cfg, run, task, updates, loggers, throughput)
        summary |= describe_parts(cfg, task.model, splits, data)
        if first:
            console.show_plan(summary, cfg["data"]["batch_tokens"], updates)

        trainer.fit(task, datamodule=data, ckpt_path=cfg["ckpt_path"])
        keep_checkpoints(trainer, task, data)
        summary |= {"steps": trainer.global_step, "epochs": round(trainer.global_step / data.updates_an_epoch, 2)}
        if trainer.is_global_zero and not cfg["trainer"]["fast_dev_run"]:
            best = load_weights(task.model, run / "checkpoints" / f"{checkpoints.BEST}.ckpt")
            scores = recipe.score(task.to(trainer.strategy.root_device), splits["validation"])
            summary |= {"best_step": best, "validation": scores.record()}
            show_result(run, label, scores, cfg["callbacks"]["samples"])
            if (run / watching.HYBRID_FILE).exists():
                console.show_hybrid_weights(tracking.read_csv(run / watching.HYBRID_FILE))
        summary["finished"] = True
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
            tracking.finish_loggers(loggers, failed=not summary.get("finished", False))
            write_json(run / "summary.json", summary)
    if first:
        console.console.print(f"run folder: {run}")
    return summary


def first_model(recipe: Recipe, tokenizer, show: bool) -> torch.nn.Module:
    """The model before its first update: from the weights that `model.init` names, unless a checkpoint follows."""
    model, start = recipe.model(tokenizer), recipe.cfg["model"].get("init")
    if start and not recipe.cfg["ckpt_path"]:
        filled = init.start(model, start)
        if show:
            console.show_lines(init.describe(filled, start))
    return model


def start_record(cfg: dict, run: Path) -> None:
    """The run folder with its configuration and environment."""
    run.mkdir(parents=True, exist_ok=True)
    (run / "config.yaml").write_text(yaml.safe_dump(assemble.record_of(cfg), sort_keys=False, allow_unicode=True))
    write_json(run / "environment.json", describe_environment())
    checkpoints.sweep_unfinished(run / "checkpoints")


def resume_history(checkpoint: Path, run: Path, model: torch.nn.Module) -> None:
    """Takes over best.ckpt and the curves that lead up to the checkpoint, when it lies in a run folder.

    Raises CheckpointError for one that is not of this model, and for a best.ckpt that could not be loaded at the end.
    """
    content = checkpoints.read_checkpoint(checkpoint)
    integrity.check_fit(model, content, checkpoint)
    best, here = checkpoint.with_name(f"{checkpoints.BEST}.ckpt"), run / "checkpoints" / f"{checkpoints.BEST}.ckpt"
    if best.exists():
        integrity.check_fit(model, checkpoints.read_checkpoint(best), best)
    tracking.continue_history(checkpoint.parent.parent, run, content["global_step"], CSV_FILES)
    if best.exists() and best.resolve() != here.resolve():
        here.parent.mkdir(exist_ok=True)
        checkpoints.replace_by_copy(best, here)


def build_trainer(
    cfg: dict, run: Path, task: Task, updates: int, loggers: list, throughput: callbacks.Throughput
) -> pl.Trainer:
    """Lightning's trainer with this project's callbacks; the trainer's own keys pass through as typed."""
    settings, options = dict(cfg["trainer"]), cfg["callbacks"]
    settings["max_steps"] = assemble.max_steps(cfg) or -1
    if settings["val_check_interval"] is None:
        pieces = settings["accumulate_grad_batches"]
        settings["val_check_interval"] = max(1, updates // cfg["task"]["validations"]) * pieces
    folder = run / "checkpoints"
    used = [
        checkpoints.RandomStreams(cfg["seed"]),
        watching.HybridCurve(run, options["hybrid_every"]),
        watching.AttentionWatch(run, options["attention_every"]),
        throughput,
        console.ProgressLine(run / "samples", options["samples"], options["progress"]),
        callbacks.StopOnSignal(folder),
    ]
    if options["patience"] is not None:
        used.append(pl.callbacks.EarlyStopping(task.monitor, mode=task.better, patience=options["patience"]))
    if not settings["fast_dev_run"]:
        used.append(checkpoints.BestAndLast(folder, task.monitor, task.better))
    return pl.Trainer(
        **settings,
        logger=loggers or False,
        callbacks=used,
        plugins=[checkpoints.AtomicCheckpointIO()],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=not settings["fast_dev_run"],
        use_distributed_sampler=False,
        check_val_every_n_epoch=None,
        default_root_dir=run,
    )


def keep_checkpoints(trainer: pl.Trainer, task: Task, data: pl.LightningDataModule) -> None:
    """Validates and saves the final state, where training did not end on a validation."""
    keeper = trainer.checkpoint_callback
    if trainer.global_step == 0:
        return  # trained in forked processes, which kept what they had
    if keeper is None or (keeper.best.exists() and keeper.validated_at == trainer.global_step):
        return
    if trainer.global_step != trainer.max_steps:
        trainer.save_checkpoint(keeper.last)
    known = keeper.best_model_score
    found = trainer.validate(task, datamodule=data, verbose=False)[0][task.monitor]
    better = known is None or (found < known if task.better == "min" else found > known)
    if trainer.is_global_zero and (better or not keeper.best.exists()):
        checkpoints.replace_by_copy(keeper.last, keeper.best)


def load_weights(model: torch.nn.Module, checkpoint: Path) -> int:
    """Puts a checkpoint's parameters into the model and returns the update they are from. Raises CheckpointError."""
    content = checkpoints.read_checkpoint(checkpoint)
    integrity.check_fit(model, content, checkpoint)
    model.load_state_dict(integrity.parameters_of(content))
    return content["global_step"]


def describe_parts(cfg: dict, model: torch.nn.Module, splits: dict, data: assemble.RunData) -> dict:
    """Data set, sizes and padding, for summary.json."""
    return {
        "data": {"name": cfg["data"]["name"], **{name: split.counts for name, split in splits.items()}},
        "padding_share": round(data.padding_share, 4),
        "vocabulary": splits["train"].tokenizer.vocab_size,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "attention_layers": len(attention_layers(model)),
    }


def show_result(run: Path, label: str, scores: Scores, samples: int) -> None:
    """Samples and closing table on the screen, all that the model wrote in the run folder."""
    console.show_samples(scores.samples[:samples])
    scores.write(run / "samples", scores.split)
    console.show_scores(scores, label)
