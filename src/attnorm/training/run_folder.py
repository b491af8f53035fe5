"""The run folder: claimed by one run alone, with a record of what was set, and the history that a run continues."""

import itertools
import logging
import os
import shutil
from pathlib import Path

import torch
import yaml

from attnorm.files import write_json, write_text
from attnorm.run.checkpoint import (
    LAST,
    LOGGED,
    best_checkpoints,
    naming_the_reason,
    read_checkpoint,
    replace_by_copy,
    sweep_unfinished,
)
from attnorm.run.integrity import COMPANIONS, check_fit, parameters_of
from attnorm.run.key import code_of
from attnorm.run.opened_folder import opened
from attnorm.run.scalars import file_of
from attnorm.run.state import PROGRESS, read_json
from attnorm.source_code import recorded
from attnorm.spec.settings import ResolvedConfig
from attnorm.training.callbacks.attention_measures import MEASURE_FILES
from attnorm.training.callbacks.attention_stats import ATTENTION_FILE
from attnorm.training.callbacks.learned_scalars import learned_scalars
from attnorm.training.csv_table import complete_history, cut_history
from attnorm.training.environment import describe_environment
from attnorm.training.rendezvous import decided_by_first

log = logging.getLogger(__name__)
CONFIG, ENVIRONMENT = "config.yaml", "environment.json"
CSV_FILES = ("metrics.csv", ATTENTION_FILE, *MEASURE_FILES)  # beside those of learned scalars
COPIED = (*COMPANIONS, "*.csv", "*_id.txt", "*/events.out.tfevents.*")  # the last are those of wandb and TensorBoard


def claim_folder(folder: Path) -> Path:
    """`folder`, or the first free one of `<folder>_2`, `<folder>_3`, ...: no two runs ever share one.

    Folders are named after the second in which a run starts, so two runs can ask for the same one. Ranks other
    than 0 get the folder of rank 0, also on other machines.
    """
    claimed = Path(decided_by_first("run_folder", lambda: str(_free_folder(folder).absolute())))
    return claimed if folder.is_absolute() else Path(os.path.relpath(claimed))


def _free_folder(folder: Path) -> Path:
    """Claims `folder`, or the first free one with a number."""
    numbered = (folder.with_name(f"{folder.name}_{number}") for number in itertools.count(2))
    return next(name for name in itertools.chain([folder], numbered) if _claim(name))


def _claim(folder: Path) -> bool:
    """Creates config.yaml in `folder`, which may have something in it; False if another run has done so."""
    if folder.exists():
        opened(folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        (folder / CONFIG).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def start_record(cfg: ResolvedConfig, run: Path, overrides: list[str]) -> None:
    """Writes the configuration and the environment of a run, with the overrides that were typed for it.

    A new run that starts from `ckpt_path` gets its copies before that, so that a run with recorded settings has them
    all. It claims its folder first: another run that starts from its checkpoint takes it for a run folder from then on.
    A run that is resumed in its folder keeps its environment and the time of its start. What has changed since then is
    added to the list `resumed` of environment.json.
    """
    _claim(run)
    modules = {"modules": modules_of(cfg)}
    environment, before = describe_environment() | modules | {"attention": cfg.label, "overrides": overrides}, {}
    if cfg.continues:
        if cfg.checkpoint is None:
            forget(run)
        before = read_json(run / ENVIRONMENT)
    elif cfg.checkpoint is not None:
        copy_run(cfg.checkpoint, run)
    if before:
        changed = {key: value for key, value in environment.items() if before.get(key) != value}
        environment = {**before, **modules, "resumed": [*before.get("resumed", []), changed]}
    settings = {**cfg.settings, "resume": None}
    write_text(run / CONFIG, yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
    write_json(run / ENVIRONMENT, environment)
    sweep_unfinished(run / "checkpoints")


def modules_of(cfg: ResolvedConfig) -> dict[str, list[str]]:
    """The digests of the own modules of a run, by name: of those that trained its checkpoint, and of those now."""
    before = read_json(cfg.checkpoint.parent.parent / ENVIRONMENT) if cfg.checkpoint else {}
    modules = recorded(before.get("modules"))
    if modules and cfg.checkpoint and read_checkpoint(cfg.checkpoint)["global_step"] == 0:  # nothing has been trained
        modules = {}
    for name, digest in code_of(cfg.settings).items():
        digests = modules.setdefault(name, [])
        if digest not in digests:
            digests.append(digest)
        if len(digests) > 1:
            log.warning("%s was edited since training started: the run mixes %s", name, " and ".join(digests))
    return modules


def copy_run(checkpoint: Path, run: Path) -> None:
    """Copies what continuing from a checkpoint needs into the folder of a new run: from a run folder, the tokenizer and
    what callbacks and loggers continue (COPIED); the best checkpoints beside it; and at last itself, as last.ckpt."""
    other = checkpoint.parent.parent
    if (other / CONFIG).is_file():
        for path in (path for pattern in COPIED for path in other.glob(pattern)):
            copy = run / path.relative_to(other)
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, copy)
    (run / "checkpoints").mkdir(exist_ok=True)
    for path in best_checkpoints(checkpoint.parent):
        replace_by_copy(path, run / "checkpoints" / path.name)
    replace_by_copy(checkpoint, run / "checkpoints" / f"{LAST}.ckpt")


def own_checkpoint(cfg: ResolvedConfig, run: Path) -> Path | None:
    """The checkpoint in the run folder from which training continues; None for the beginning."""
    return cfg.checkpoint if cfg.checkpoint is None or cfg.continues else run / "checkpoints" / f"{LAST}.ckpt"


def restore_history(checkpoint: Path, run: Path, model: torch.nn.Module) -> None:
    """Takes a run folder back to the update of one of its checkpoints: its curves, and last.ckpt.

    The run then has the right last.ckpt before it saves one, and also if it has no update left to make.
    """
    content, last = read_checkpoint(checkpoint), run / "checkpoints" / f"{LAST}.ckpt"
    scalars = [file_of(run, name) for name in learned_scalars(model)]
    cut_history([*(run / name for name in CSV_FILES), *scalars], content["global_step"])
    if row := content.get(LOGGED):
        with naming_the_reason(checkpoint):
            complete_history(run / CSV_FILES[0], row)
    if checkpoint != last:
        replace_by_copy(checkpoint, last)


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
