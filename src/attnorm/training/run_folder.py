"""The run folder: claimed by one run alone, with a record of what was set, and the history of a run that it resumes."""

import itertools
import os
from pathlib import Path

import torch
import yaml

from attnorm.config.checkpoint_files import BEST, LAST, read_checkpoint, replace_by_copy, sweep_unfinished
from attnorm.config.integrity import check_fit, parameters_of
from attnorm.training.callbacks.attention_stats import ATTENTION_FILE
from attnorm.training.callbacks.learned_scalars import file_of, learned_scalars
from attnorm.training.csv_table import continue_history
from attnorm.training.environment import describe_environment, is_first_rank, write_json
from attnorm.training.rendezvous import decided_by_first, started_together

CONFIG = "config.yaml"
CSV_FILES = ("metrics.csv", ATTENTION_FILE)  # beside those of learned scalars
OF_RANK_0 = "ATTNORM_RUN_FOLDER"  # tells the processes that rank 0 starts which folder it claimed


def claim_folder(folder: Path, ckpt_path: str | None = None) -> Path:
    """`folder`, or the first free one of `<folder>_2`, `<folder>_3`, ...: no two runs ever share one.

    Folders are named after the second in which a run starts, so two runs can ask for the same one. A run that resumes
    a checkpoint of `folder` keeps that folder. Ranks other than 0 get the folder of rank 0, also on other machines.
    """
    if (ranks := started_together()) is not None:
        return Path(decided_by_first(ranks, "run_folder", lambda: str(_free_folder(folder, ckpt_path).absolute())))
    if not is_first_rank():
        return Path(os.environ.get(OF_RANK_0, folder))
    folder = _free_folder(folder, ckpt_path)
    os.environ[OF_RANK_0] = str(folder)
    return folder


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


def start_record(cfg: dict, run: Path, overrides: list[str]) -> None:
    """Writes the configuration and the environment of a run, with the overrides that were typed for it."""
    run.mkdir(parents=True, exist_ok=True)
    (run / CONFIG).write_text(yaml.safe_dump(cfg, sort_keys=False, allow_unicode=True))
    write_json(run / "environment.json", describe_environment() | {"overrides": overrides})
    sweep_unfinished(run / "checkpoints")


def resume_history(checkpoint: Path, run: Path, model: torch.nn.Module) -> None:
    """Takes over the checkpoint itself, the best.ckpt beside it and, from a run folder, the curves that lead up to it.

    The resumed run then has a checkpoint before it saves one, and also if it has no update left to make. Raises
    CheckpointError for a checkpoint, or a best.ckpt beside it, that is not of this model.
    """
    content = read_checkpoint(checkpoint)
    check_fit(model, content, checkpoint)
    best = checkpoint.with_name(f"{BEST}.ckpt")
    if best.exists():
        check_fit(model, read_checkpoint(best), best)
    files = (*CSV_FILES, *(file_of(run, name).name for name in learned_scalars(model)))
    continue_history(checkpoint.parent.parent, run, content["global_step"], files)
    for source, name in ((checkpoint, LAST), (best, BEST)):
        target = run / "checkpoints" / f"{name}.ckpt"
        if source.exists() and source.resolve() != target.resolve():
            target.parent.mkdir(exist_ok=True)
            replace_by_copy(source, target)


def load_weights(model: torch.nn.Module, checkpoint: Path) -> int:
    """Puts a checkpoint's parameters into the model and returns the update they are from. Raises CheckpointError."""
    content = read_checkpoint(checkpoint)
    check_fit(model, content, checkpoint)
    model.load_state_dict(parameters_of(content))
    return content["global_step"]
