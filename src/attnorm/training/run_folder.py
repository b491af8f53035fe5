"""The run folder: claimed by one run alone, with a record of what was set, and the history of a run that it resumes."""

import itertools
import os
from pathlib import Path

import torch
import yaml

from attnorm.config.arguments import AUTO
from attnorm.resolved import ResolvedConfig
from attnorm.run.checkpoint import (
    BEST,
    LAST,
    checkpoints_of,
    naming_the_reason,
    read_checkpoint,
    replace_by_copy,
    sweep_unfinished,
)
from attnorm.run.config_file import read_config
from attnorm.run.integrity import check_fit, check_types, parameters_of
from attnorm.run.opened_folder import opened
from attnorm.run.scalars import file_of
from attnorm.run.state import PROGRESS, read_json
from attnorm.training.callbacks.attention_measures import MEASURE_FILES
from attnorm.training.callbacks.attention_stats import ATTENTION_FILE
from attnorm.training.callbacks.checkpointing import LOGGED
from attnorm.training.callbacks.learned_scalars import learned_scalars
from attnorm.training.csv_table import complete_history, continue_history
from attnorm.training.environment import describe_environment, write_json, write_text
from attnorm.training.rendezvous import decided_by_first

CONFIG, ENVIRONMENT = "config.yaml", "environment.json"
CSV_FILES = ("metrics.csv", ATTENTION_FILE, *MEASURE_FILES)  # beside those of learned scalars


def claim_folder(folder: Path, ckpt_path: str | None = None) -> Path:
    """`folder`, or the first free one of `<folder>_2`, `<folder>_3`, ...: no two runs ever share one.

    Folders are named after the second in which a run starts, so two runs can ask for the same one. A run that resumes
    a checkpoint of `folder` keeps that folder. Ranks other than 0 get the folder of rank 0, also on other machines.
    """
    claimed = Path(decided_by_first("run_folder", lambda: str(_free_folder(folder, ckpt_path).absolute())))
    return claimed if folder.is_absolute() else Path(os.path.relpath(claimed))


def _free_folder(folder: Path, ckpt_path: str | None) -> Path:
    """Claims `folder`, or the first free one with a number, unless the run continues in `folder`."""
    if not (ckpt_path and _holds(folder, Path(ckpt_path))):
        names = (
            folder if number == 1 else folder.with_name(f"{folder.name}_{number}") for number in itertools.count(1)
        )
        folder = next(name for name in names if _claim(name))
    return folder


def _claim(folder: Path) -> bool:
    """Creates config.yaml in `folder`; False if another run has done so."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        (folder / CONFIG).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _holds(folder: Path, checkpoint: Path) -> bool:
    return checkpoint.resolve().parent.parent == folder.resolve()


def start_record(cfg: ResolvedConfig, run: Path, overrides: list[str]) -> None:
    """Writes the configuration and the environment of a run, with the overrides that were typed for it.

    A run that is resumed in its folder keeps its environment and the time of its start. What has changed since then is
    added to the list `resumed` of environment.json.
    """
    run.mkdir(parents=True, exist_ok=True)
    opened(run)  # a new run may have been given a folder with something in it
    environment, before = describe_environment() | {"overrides": overrides}, {}
    settings = {**cfg.settings, "resume": None}
    if cfg.resume not in (None, AUTO):
        if cfg.ckpt_path is None:
            forget(run)
        before = read_json(run / ENVIRONMENT)
        if (run / CONFIG).stat().st_size:
            settings["ckpt_path"] = read_config(run)["ckpt_path"]
    if before:
        changed = {key: value for key, value in environment.items() if before.get(key) != value}
        environment = {**before, "resumed": [*before.get("resumed", []), changed]}
    write_text(run / CONFIG, yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
    write_json(run / ENVIRONMENT, environment)
    sweep_unfinished(run / "checkpoints")


def resume_history(checkpoint: Path, run: Path, model: torch.nn.Module, precision: object) -> None:
    """Takes over the checkpoint itself, the best ones beside it and, from a run folder, the curves that lead up to it.

    The resumed run then has a checkpoint before it saves one, and also if it has no update left to make. Raises
    CheckpointError for a checkpoint, or a best.ckpt beside it, that is not of this model.
    """
    content, last = read_checkpoint(checkpoint), run / "checkpoints" / f"{LAST}.ckpt"
    check_fit(model, content, checkpoint)
    check_types(model, content, checkpoint, precision)
    taken_over = [(content["global_step"], checkpoint, last)]
    if not _holds(run, checkpoint):
        for path in checkpoints_of(checkpoint.parent):
            if path.stem.startswith(BEST):
                best = read_checkpoint(path)
                check_fit(model, best, path)
                taken_over.append((best["global_step"], path, last.with_name(path.name)))
    files = (*CSV_FILES, *(file_of(run, name).name for name in learned_scalars(model)))
    continue_history(checkpoint.parent.parent, run, content["global_step"], files)
    if row := content.get(LOGGED):
        with naming_the_reason(checkpoint):
            complete_history(run / CSV_FILES[0], row)
    last.parent.mkdir(exist_ok=True)
    # Oldest first, and last.ckpt after its equals: a run that is killed in between can resume from what it has.
    for _, source, target in sorted(taken_over, key=lambda it: (it[0], it[2] == last)):
        if source.resolve() != target.resolve():
            replace_by_copy(source, target)


def forget(run: Path) -> None:
    """Removes what a run wrote before its first checkpoint, so that it can start again in its folder."""
    for path in (*run.glob("*.csv"), run / PROGRESS):
        path.unlink(missing_ok=True)


def load_weights(model: torch.nn.Module, checkpoint: Path) -> int:
    """Puts a checkpoint's parameters into the model and returns the update they are from. Raises CheckpointError."""
    content = read_checkpoint(checkpoint)
    check_fit(model, content, checkpoint)
    model.load_state_dict(parameters_of(content))
    return content["global_step"]
