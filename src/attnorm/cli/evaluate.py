"""`eval.py`: scores a run folder, or a file of predictions."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from attnorm import progress
from attnorm.cli.score_predictions import METRICS, FileKeys, file_problems, score_file
from attnorm.data.sources.base import Source
from attnorm.errors import Problem
from attnorm.parts import TARGET, names_of
from attnorm.run.integrity import recorded_digest
from attnorm.run.opening import open_run, read_run
from attnorm.run.run import Run
from attnorm.run.writing import RunWriter
from attnorm.schema import Text
from attnorm.spec.command import Command, read
from attnorm.spec.overrides import OVERRIDABLE, changed
from attnorm.spec.read import resolve_recorded
from attnorm.spec.settings import ResolvedConfig
from attnorm.tasks.leaks import describe_leaks
from attnorm.tasks.task import task_of
from attnorm.training import console
from attnorm.training.baselines import unbeaten, undefined
from attnorm.training.callbacks.out_of_memory import OutOfMemory

CheckpointName = Literal["best", "last"]


@dataclass(frozen=True, kw_only=True)
class RunKeys:
    """The keys of `attnorm eval` about runs, as in conf/eval.yaml."""

    run: Text | None = None
    split: Literal["validation", "test"] = "validation"
    ckpt: CheckpointName = "best"
    trust_code: bool = False


@dataclass(frozen=True, kw_only=True)
class EvalKeys(FileKeys, RunKeys):
    """The keys of `attnorm eval`."""


def evaluate(arguments: list[str]) -> None:
    """Scores a run on a split and writes eval_<split>.json, and what the model wrote, into its folder; or, with
    `metric`, a file of predictions."""
    progress.quiet_libraries()
    command = read(arguments, EvalKeys, "attnorm eval", OVERRIDABLE, check=key_problems)
    keys = command.settings
    if keys.metric is not None:
        return score_file(keys)
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


def key_problems(command: Command[EvalKeys]) -> Iterator[Problem]:
    """Keys that are missing, or not for what is scored: a run, or a file."""
    if command.settings.metric is not None:
        yield from file_problems(command, names_of(RunKeys))
    elif "metric" not in command.wrong:
        metrics = f"metric={'|'.join(METRICS)}"
        if command.settings.run is None and "run" not in command.wrong:
            yield Problem("run", f"must be given, as in run=<run folder>, or {metrics} with files to score")
        else:
            for key in (key for key in names_of(FileKeys) if key in command.typed):
                yield Problem(key, f"it is for {metrics}, which score a file, not a run")


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
