"""Checkpoint files: written whole or not at all, and read as plain values and tensors."""

import hashlib
import os
import pickle
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnorm.errors import CheckpointError, ConfigError, Problem, SaveError, UserError
from attnorm.run.integrity import check_fit, parameters_of

BEST, LAST, PREVIOUS = "best", "last", "previous"
UNFINISHED = ".unfinished"
RECORD = "run"  # the key under which a checkpoint records its run
CHECKPOINTS = "Checkpoints"  # the key of the state of the callback that saves them
LOGGED = "logged"  # the key of the metrics of the update after which it was saved, if they are due to be logged
FOR_RESUME = {  # what Lightning restores, besides the parameters
    "pytorch-lightning_version": str,
    "epoch": int,
    "loops": dict,
    "callbacks": dict,
    "optimizer_states": list,
    "lr_schedulers": list,
    RECORD: dict,
}


def read_checkpoint(path: Path, may_be_bare: bool = False) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU. Only plain values and tensors are read, so no code in it can run.

    Raises CheckpointError, in one line that also says which other checkpoint of the folder can be used. may_be_bare:
    whether a file of other values is read as well.
    """
    try:
        content = load_file(path)
        is_bare = may_be_bare and isinstance(content, dict) and "state_dict" not in content
        return content if is_bare else checked_content(content, path)
    except CheckpointError as error:
        others = [name for name in intact(path.parent) if name != path.name]
        raise CheckpointError(f"{error} (intact in that folder: {', '.join(others) or 'none'})") from error


def read_resumable(path: Path) -> dict[str, Any]:
    """The content of a checkpoint that has all that a run is resumed from. Raises CheckpointError for any other."""
    content = read_checkpoint(path)
    missing = [key for key, kind in FOR_RESUME.items() if not isinstance(content.get(key), kind)]
    if not missing:
        optimizers = content["optimizer_states"]
        inner = {"callbacks": [*content["callbacks"].values()], "loops": [content["loops"].get("fit_loop")]}
        inner |= {"lr_schedulers": content["lr_schedulers"], "optimizer_states": optimizers}
        inner |= {LOGGED: [content.get(LOGGED, {})]}
        missing = [key for key, states in inner.items() if not all(isinstance(state, dict) for state in states)]
        if not missing and not (optimizers and all(state.get("param_groups") for state in optimizers)):
            missing = ["optimizer_states"]
    if missing:
        raise CheckpointError(f"{path}: cannot be resumed from: it has no {', '.join(missing)}")
    return content


@contextmanager
def naming_the_reason(path: Path) -> Iterator[None]:
    """Turns whatever goes wrong while the content of a checkpoint is used into a CheckpointError.

    The file may come from anyone, and each of its values can be something else than what a run saves.
    """
    try:
        yield
    except (UserError, OSError):
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()
        said = f"{type(error).__name__}{f': {reason[0]}' if reason else ''}"
        raise CheckpointError(f"{path}: its content is not that of a checkpoint of a run ({said})") from error


def best_file(folder: Path, rank: int) -> Path:
    """The file of the best checkpoint (rank 0), the second best (1), and so on."""
    return folder / (f"{BEST}_{rank + 1}.ckpt" if rank else f"{BEST}.ckpt")


def checkpoints_of(folder: Path) -> list[Path]:
    """The checkpoints of a run that exist: last.ckpt, previous.ckpt, best.ckpt, best_2.ckpt, ..."""
    latest = (folder / f"{LAST}.ckpt", folder / f"{PREVIOUS}.ckpt")
    return [*(path for path in latest if path.exists()), *best_checkpoints(folder)]


def best_checkpoints(folder: Path) -> list[Path]:
    """The best checkpoints of a run that exist: best.ckpt, best_2.ckpt, ..."""
    numbered = sorted(folder.glob(f"{BEST}_*.ckpt"), key=lambda path: (len(path.name), path.name))
    return [path for path in (folder / f"{BEST}.ckpt", *numbered) if path.exists()]


def intact(folder: Path) -> list[str]:
    """The names of the checkpoints of a run that can be read."""
    names = []
    for path in checkpoints_of(folder):
        with suppress(CheckpointError):
            checked_content(load_file(path), path)
            names.append(path.name)
    return names


def load_file(path: Path) -> Any:
    """What torch.save put into a file. Raises CheckpointError for a damaged file, and one with code in it."""
    if not path.is_file():
        raise CheckpointError(f"{path}: no such checkpoint")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch says to developers about unusual files
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # torch would advise to load it anyway
        raise CheckpointError(f"{path}: not a checkpoint of a run: it holds more than tensors and values") from error
    except Exception as error:  # a file of anyone's can fail in any way, and torch has no error class of its own
        reason = str(error).splitlines()[0] if str(error) and "weights_only" not in str(error) else type(error).__name__
        raise CheckpointError(f"{path}: damaged, or not a checkpoint of a run: {reason}") from error


def checked_content(content: Any, path: Path) -> dict[str, Any]:
    """The content of `path`, if it has parameters and the update that they are from."""
    state = content.get("state_dict") if isinstance(content, dict) else None
    if not isinstance(state, dict) or type(content.get("global_step")) is not int:
        raise CheckpointError(f"{path}: not a checkpoint of a run: expected a state_dict and a global_step")
    if not all(type(name) is str and isinstance(tensor, Tensor) for name, tensor in state.items()):
        raise CheckpointError(f"{path}: not a checkpoint of a run: its state_dict holds more than tensors by name")
    return content


def load_weights(model: nn.Module, path: Path) -> int:
    """Puts a checkpoint's parameters into the model and returns the update they are from. Raises CheckpointError."""
    content = read_checkpoint(path)
    check_fit(model, content, path)
    model.load_state_dict(parameters_of(content))
    return content["global_step"]


def digest_of(path: Path) -> str:
    """The SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Writes beside the target, flushes to disk, then renames: the old checkpoint survives until the new one is whole.

    The last.ckpt that is replaced becomes previous.ckpt, in case the new one is damaged later. Raises SaveError, naming
    the file and what survives, if the disk is full or the folder is not writable.
    """
    unfinished = path.with_name(path.name + UNFINISHED)
    try:
        path.parent.mkdir(exist_ok=True)  # without its parents: the run folder may have been moved
        with open(unfinished, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        if path.stem == LAST:
            keep_previous(path)
        os.replace(unfinished, path)
        sync_folder(path.parent)
    except (OSError, RuntimeError) as error:  # torch reports a failed write as a RuntimeError
        with suppress(OSError):
            sweep_unfinished(path.parent)
        kept = intact(path.parent)
        survives = f"still good in that folder: {', '.join(kept)}" if kept else "there was none before"
        raise SaveError(f"could not save the checkpoint {path}: {root_cause(error)} ({survives})") from error


def root_cause(error: BaseException) -> BaseException:
    """The OSError behind a failed write, such as a full disk, of which torch itself reports only file positions."""
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(before)
    return next((cause for cause in reversed(chain) if isinstance(cause, OSError)), error)


def keep_best(folder: Path) -> None:
    """Copies last.ckpt to best.ckpt if there is no best.ckpt: a checkpoint may have been moved without it.

    Raises ConfigError if the run has not made a single update.
    """
    last, best = folder / f"{LAST}.ckpt", folder / f"{BEST}.ckpt"
    if not last.exists() or not read_checkpoint(last)["global_step"]:
        message = "was reached before the first update, so there is no trained model to score"
        raise ConfigError([Problem("trainer.max_time", message)])
    if not best.exists():
        replace_by_copy(last, best)


def restore_best(folder: Path, content: dict[str, Any]) -> None:
    """Makes best.ckpt, best_2.ckpt, ... those that were the best when this checkpoint was saved, as far as the folder
    has them. A run that was killed between saving last.ckpt and copying it has them under other names."""
    by_step: dict[int, Path] = {}
    for path in [folder / f"{LAST}.ckpt", *sorted(folder.glob(f"{BEST}*.ckpt"))]:
        with suppress(CheckpointError):  # a damaged file is not copied
            by_step[read_checkpoint(path)["global_step"]] = path
    steps = [int(step) for _, step in content["callbacks"].get(CHECKPOINTS, {"best": []})["best"]]
    moves = [(by_step[step], best_file(folder, position)) for position, step in enumerate(steps) if step in by_step]
    moves = [(source, target) for source, target in moves if source != target]
    aside = [target.with_name(f"{target.name}.moving{UNFINISHED}") for _, target in moves]
    for (source, _), copy in zip(moves, aside, strict=True):  # first all copies, since targets may be sources
        replace_by_copy(source, copy)
    for (_, target), copy in zip(moves, aside, strict=True):
        copy.replace(target)


def replace_by_copy(source: Path, target: Path) -> None:
    """Makes `target` a copy of `source`, whole at any moment and flushed to disk."""
    unfinished = target.with_name(target.name + UNFINISHED)
    with open(source, "rb") as original, open(unfinished, "wb") as copy:
        shutil.copyfileobj(original, copy, 1 << 20)
        copy.flush()
        os.fsync(copy.fileno())
    os.replace(unfinished, target)
    sync_folder(target.parent)


def keep_previous(last: Path) -> None:
    """Makes last.ckpt, which is about to be replaced, also known as previous.ckpt."""
    if not last.exists():
        return
    previous, unfinished = last.with_stem(PREVIOUS), last.with_name(f"{PREVIOUS}.ckpt{UNFINISHED}")
    unfinished.unlink(missing_ok=True)
    try:
        os.link(last, unfinished)
    except OSError:  # a file system without hard links
        os.replace(last, previous)
    else:
        os.replace(unfinished, previous)


def sync_folder(folder: Path) -> None:
    """Makes a rename in `folder` durable, where the file system can do that."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sweep_unfinished(folder: Path) -> None:
    """Removes what a killed save left behind."""
    for leftover in folder.glob(f"*{UNFINISHED}"):
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()
