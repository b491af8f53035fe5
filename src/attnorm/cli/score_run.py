"""The part of `attnorm eval` that needs the model of a run."""

from typing import Any

from attnorm import progress
from attnorm.data.sources.base import Source
from attnorm.parts import TARGET
from attnorm.run.integrity import recorded_digest
from attnorm.run.opening import open_run, read_run
from attnorm.run.run import Run
from attnorm.run.writing import RunWriter
from attnorm.spec.command import Command
from attnorm.spec.read import resolve_recorded
from attnorm.spec.recorded import changed
from attnorm.spec.settings import ResolvedConfig
from attnorm.tasks.leaks import describe_leaks
from attnorm.tasks.task import task_of
from attnorm.training import console
from attnorm.training.baselines import unbeaten, undefined
from attnorm.training.callbacks.out_of_memory import OutOfMemory


def score_run(command: Command[Any]) -> None:
    """Scores a run on a split and writes eval_<split>.json, and what the model wrote, into its folder."""
    keys = command.settings
    run, split = RunWriter(str(keys.run)), keys.split
    trained, cfg = configurations(run, command, (split,))
    tokenizer, model, step = open_run(run.folder, cfg, keys.ckpt)
    task = task_of(cfg, run.folder)
    data = task.splits(tokenizer, (split,), cleaner(trained, cfg))[split]
    with OutOfMemory(cfg):
        scores = task.score(task.module(model, tokenizer, data), data)
    if scores.predictions is not None:
        scores.predictions.input_hashes = task.input_hashes(data)
        checkpoint = run.checkpoint_file(keys.ckpt)
        scores.predictions.checkpoint = {"update": step, "sha256": recorded_digest(checkpoint)}
    name = run.free_name(f"eval_{split}")
    written = run.write_results(scores, name)
    record = {
        "checkpoint": keys.ckpt,
        "step": step,
        "typed": dict(command.changes),
        "data": cfg.settings["data"],
        **scores.record(),
    }
    run.write(name, record)
    console.show_scores(scores, cfg.label)
    leaks = describe_leaks(task, {split: data}, run.summary.get("data_fingerprints"))
    console.show_warnings([*undefined(scores), *unbeaten(scores), *leaks])
    progress.console.print(f"written to {', '.join([f'{run.folder / name}.json', *written])}")


def cleaner(trained: dict[str, Any], cfg: ResolvedConfig) -> Source:
    """The source whose cleaning a run keeps: its own, also with `data=<another source>`; its options may be changed.

    trained: the configuration that the run was trained with; cfg: the one that is asked for now.
    """
    same = cfg.settings["data"][TARGET] == trained["data"][TARGET]
    return task_of(cfg if same else resolve_recorded(trained)).source()


def configurations(
    run: Run, command: Command[Any], splits: tuple[str, ...] = ()
) -> tuple[dict[str, Any], ResolvedConfig]:
    """A run's configuration, as it was trained and with the overrides applied. splits: as in `resolve_recorded`."""
    recorded = read_run(run.folder, command.settings.trust_code, [key for key, _ in command.changes])
    return recorded, resolve_recorded(changed(recorded, command.changes), splits)
