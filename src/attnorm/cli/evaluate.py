"""`eval.py`: scores a run folder, or a file of predictions."""

from pathlib import Path

from attnorm import progress
from attnorm.cli.score_predictions import METRICS, OF_FILES, score_file
from attnorm.config.overrides import EvalCommand, changed, read_command
from attnorm.config.resolve import resolve_recorded
from attnorm.data.sources.base import Source
from attnorm.errors import ConfigError
from attnorm.parts import TARGET
from attnorm.resolved import ResolvedConfig
from attnorm.run.config_file import Recorded
from attnorm.run.integrity import recorded_digest
from attnorm.run.opening import open_run, read_run
from attnorm.tasks.task import task_of
from attnorm.training import console
from attnorm.training.baselines import unbeaten
from attnorm.training.callbacks.out_of_memory import OutOfMemory
from attnorm.training.environment import write_json

SPLITS = ("validation", "test")
OF_RUNS = ("run", "split", "ckpt", "trust_code")  # eval.py's keys about runs; those about files are in score_file


def evaluate(arguments: list[str], defaults: dict, conf: Path) -> None:
    """Scores a run on a split and writes eval_<split>.json, and what the model wrote, into its folder; or, with
    `metric`, a file of predictions."""
    progress.quiet_libraries()
    command = read_command(arguments, defaults)
    if command.settings["metric"] is not None:
        return score_file(command, OF_RUNS)
    metrics = f"metric={'|'.join(METRICS)}"
    if command.settings["run"] in (None, ""):
        raise ConfigError([f"run: must be given, as in run=<run folder>, or {metrics} with files to score"])
    if others := [key for key in OF_FILES if key in command.asked]:
        raise ConfigError([f"{key}: it is for {metrics}, which score a file, not a run" for key in others])
    run, split = Path(command.settings["run"]), command.settings["split"]
    if split not in SPLITS:
        raise ConfigError([f"split={split}: allowed: {', '.join(SPLITS)}"])
    trained, cfg = configurations(run, command, conf, (split,))
    tokenizer, model, step = open_run(run, cfg, command.settings["ckpt"])
    task = task_of(cfg, run)
    data = task.splits(tokenizer, (split,), cleaner(trained, cfg))[split]
    with OutOfMemory(cfg):
        scores = task.score(task.module(model, tokenizer, data), data)
    if scores.predictions is not None:
        scores.predictions.input_hashes = task.input_hashes(data)
        checkpoint = run / "checkpoints" / f"{command.settings['ckpt']}.ckpt"
        scores.predictions.checkpoint = {"update": step, "sha256": recorded_digest(checkpoint)}
    name = free_name(run, f"eval_{split}")
    written = [*scores.write(run, name), *scores.write_predictions(run, name)]
    record = {
        "checkpoint": command.settings["ckpt"],
        "step": step,
        "typed": dict(command.typed),
        "data": cfg.settings["data"],
        **scores.record(),
    }
    write_json(run / f"{name}.json", record)
    console.show_scores(scores, cfg.label)
    console.show_warnings(unbeaten(scores))
    progress.console.print(f"written to {', '.join([f'{run / name}.json', *written])}")


def cleaner(trained: Recorded, cfg: ResolvedConfig) -> Source:
    """The source whose cleaning a run keeps: its own, also with `data=<another source>`; its options may be changed.

    trained: the configuration that the run was trained with; cfg: the one that is asked for now.
    """
    same = cfg.settings["data"][TARGET] == trained["data"][TARGET]
    return task_of(cfg if same else resolve_recorded(trained)).source()


def configurations(
    run: Path, command: EvalCommand, conf: Path, splits: tuple[str, ...] = ()
) -> tuple[Recorded, ResolvedConfig]:
    """A run's configuration, as it was trained and with the overrides applied. splits: as in `resolve_recorded`."""
    recorded = read_run(run, command.settings["trust_code"], [key for key, _ in command.typed])
    return recorded, resolve_recorded(changed(recorded, command.typed, conf), splits)


def free_name(run: Path, stem: str) -> str:
    """`stem`, or `stem_2`, `stem_3`, ... : an earlier result is not overwritten."""
    number, name = 1, stem
    while (run / f"{name}.json").exists():
        number += 1
        name = f"{stem}_{number}"
    return name
