"""Checking `trainer`: its keys reach pytorch_lightning.Trainer unchanged, except those that a run itself decides."""

import inspect
import os
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import torch
from pydantic import Field

from attnorm.config.components import build_strategy
from attnorm.errors import ConfigError, Problem
from attnorm.imports import nearest
from attnorm.schema import Count, NonNegative, WholeNumber, value_problems

OWN_KEYS = {  # what a run decides itself, and what to use instead
    "logger": "use the group logger, such as logger=wandb",
    "callbacks": "use the group callbacks, such as callbacks.mine._target_=my_module.MyCallback",
    "plugins": "checkpoints are always written atomically",
    "enable_progress_bar": "use callbacks.progress.bar",
    "enable_checkpointing": "a run always keeps its best and last checkpoint",
    "enable_model_summary": "the number of parameters is always shown",
    "use_distributed_sampler": "batches are shared among devices already",
    "default_root_dir": "use paths.log_dir",
    "overfit_batches": "use debug=overfit or data.max_train",
    "check_val_every_n_epoch": "use trainer.val_check_interval (batches, or a share of an epoch) or task.validations",
    "reload_dataloaders_every_n_epochs": "the order of examples changes every epoch already",
    "barebones": "it leaves out checkpoints and logs, which every run keeps",
}
LIMITS = ("max_steps", "max_epochs")  # null and -1: no such limit
UNCHECKED: dict[str, Any] = {  # keys of which Lightning accepts any value
    "accumulate_grad_batches": Count,
    "gradient_clip_val": NonNegative | None,
    "log_every_n_steps": WholeNumber | None,
    "num_sanity_val_steps": Annotated[int, Field(ge=-1)] | None,
    "min_steps": WholeNumber | None,
    "min_epochs": WholeNumber | None,
    "detect_anomaly": bool | None,
    "inference_mode": bool,
}
PER_CORE = 4  # processes on the CPU: a small test may have more of them than there are cores
NOT_ZERO = ("limit_train_batches", "limit_val_batches", "val_check_interval")  # a run could never end with 0


def check_trainer(trainer: Mapping[str, Any]) -> list[str]:
    """Keys that Lightning's trainer does not have or that are not a user's to set, values that it refuses, and
    intervals that would end in the middle of an update."""
    problems = [*check_keys(trainer), *check_strategy(trainer)]
    problems += [] if problems else check_values(trainer)
    problems += [] if problems else check_intervals(trainer)
    problems += [] if problems else check_machines(trainer)
    return problems


def check_keys(trainer: Mapping[str, Any]) -> Iterator[Problem]:
    """Keys that cannot be set."""
    import pytorch_lightning as pl

    known = inspect.signature(pl.Trainer).parameters
    for key in trainer:
        if key in OWN_KEYS:
            yield Problem(f"trainer.{key}", f"cannot be set; {OWN_KEYS[key]}")
        elif key not in known:
            message = f"pytorch_lightning.Trainer has no such argument.{nearest(key, known.keys() - OWN_KEYS.keys())}"
            yield Problem(f"trainer.{key}", message)


def check_machines(trainer: Mapping[str, Any]) -> Iterator[Problem]:
    """Several machines, if nothing starts the processes of the others."""
    from lightning_fabric.plugins.environments import SLURMEnvironment, TorchElasticEnvironment

    nodes = trainer.get("num_nodes") or 1
    if nodes > 1 and not (TorchElasticEnvironment.detect() or SLURMEnvironment.detect()):
        message = "start the processes of all machines with torchrun or srun; see docs/clusters.md"
        yield Problem("trainer.num_nodes", message, nodes)


def check_strategy(trainer: Mapping[str, Any]) -> list[str]:
    """Problems of a strategy that is given as a class with options."""
    try:
        build_strategy(trainer)
    except ConfigError as error:
        return error.problems
    return []


def check_values(trainer: Mapping[str, Any]) -> list[Problem]:
    """Values that no run could finish with, and those that Lightning refuses."""
    if trainer.get("accelerator") in ("gpu", "cuda") and not torch.cuda.is_available():
        message = "torch sees no GPU here; use trainer=auto or trainer=cpu"
        return [Problem("trainer.accelerator", message, trainer["accelerator"])]
    found = list(check_limits(trainer))
    wrong = {problem.key for problem in found}
    return found + refused_by_lightning({key: it for key, it in trainer.items() if f"trainer.{key}" not in wrong})


def check_processes(trainer: Mapping[str, Any]) -> Iterator[Problem]:
    """Far more processes on the CPU than this machine has cores."""
    accelerator, devices = trainer.get("accelerator") or "auto", str(trainer.get("devices"))
    on_cpu = accelerator == "cpu" or (accelerator == "auto" and not torch.cuda.is_available())
    cores = os.cpu_count() or 1
    if on_cpu and devices.isdecimal() and int(devices) > PER_CORE * cores:
        message = f"allowed: 1 to {PER_CORE * cores} on the CPU of this machine, which has {cores} cores"
        yield Problem("trainer.devices", message, trainer["devices"])


def check_limits(trainer: Mapping[str, Any]) -> Iterator[Problem]:
    """Values that Lightning would accept although no run could finish with them, or refuse without a clear message."""
    for key in LIMITS:
        value = trainer.get(key)
        if value is not None and (not _is_integer(value) or (value < 1 and value != -1)):
            yield Problem(f"trainer.{key}", "allowed: whole numbers from 1, null or -1 (no limit)", value)
    for key in NOT_ZERO:
        if not _is_amount(trainer.get(key)):
            message = "allowed: whole numbers from 1 (batches), numbers above 0 and up to 1.0 (a share of them) or null"
            yield Problem(f"trainer.{key}", message, trainer[key])
    if not _is_duration(trainer.get("max_time")):
        yield Problem("trainer.max_time", "allowed: durations DD:HH:MM:SS above 0 or null", trainer["max_time"])
    for key, annotation in UNCHECKED.items():
        if key in trainer:
            yield from value_problems(f"trainer.{key}", trainer[key], annotation)
    yield from check_processes(trainer)
    if trainer.get("deterministic") not in (None, True, False, "warn"):
        yield Problem("trainer.deterministic", "allowed: true, false, warn, null", trainer["deterministic"])


def refused_by_lightning(trainer: Mapping[str, Any]) -> list[Problem]:
    """What Lightning says of the values: of each alone, or else of all together."""
    import pytorch_lightning as pl

    def refusal(settings: Mapping[str, Any]) -> str | None:
        try:
            whole = {**settings, "strategy": build_strategy(settings) or "auto"}
            pl.Trainer(**whole, logger=False, enable_checkpointing=False, enable_progress_bar=False)
        except Exception as error:  # of many kinds, with the same meaning: this value is not accepted
            return str(error).strip().splitlines()[0]
        return None

    # null means that a key is not set; deterministic acts on the whole process
    tried = {key: value for key, value in trainer.items() if key != "deterministic" and not _is_unset(key, value)}
    if (reason := refusal(tried)) is None:
        return []
    if (here := refusal({})) is not None:  # not because of a value: the environment does not suit Lightning
        return [Problem("trainer", here)]
    alone = ((key, value, refusal({key: value})) for key, value in tried.items())
    named = [Problem(f"trainer.{key}", why, value) for key, value, why in alone if why is not None]
    return named or [Problem("trainer", reason)]


def check_intervals(trainer: Mapping[str, Any]) -> Iterator[Problem]:
    """Numbers of batches that would end in the middle of an update."""
    pieces = trainer.get("accumulate_grad_batches", 1)
    for key in ("val_check_interval", "limit_train_batches"):
        batches = trainer.get(key)
        if _is_integer(batches) and batches % pieces:
            near = max(pieces, round(batches / pieces) * pieces)
            message = (
                f"counts batches and must be a multiple of trainer.accumulate_grad_batches={pieces}, so that it ends "
                f"with an update; the nearest is {near}"
            )
            yield Problem(f"trainer.{key}", message, batches)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_amount(value: Any) -> bool:
    return value is None or (_is_integer(value) and value > 0) or (isinstance(value, float) and 0 < value <= 1)


def _is_duration(value: Any) -> bool:
    from pytorch_lightning.callbacks import Timer

    try:
        return value is None or (Timer(value).time_remaining() or 0) > 0
    except Exception:  # Lightning raises errors of many kinds for an invalid duration
        return False


def _is_unset(key: str, value: Any) -> bool:
    return value is None or (key in LIMITS and value == -1)
