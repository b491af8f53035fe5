"""Exact resuming: which settings must be the same as those of the run being resumed."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attnorm.config.checkpoint_files import RECORD, naming_the_reason, read_resumable
from attnorm.config.resolve import leaves
from attnorm.errors import CheckpointError, Problem
from attnorm.parts import TARGET, class_of
from attnorm.tasks.task import Task

FREE = (  # groups and keys that may change: how long, where and how fast a run trains, and what is shown of it
    *("ckpt_path", "resume", "tags", "paths", "logger", "callbacks", "trainer", "run", "model.init", "tokenizer.file"),
    *("task.max_steps", "task.validations", "data.num_workers", "data.prefetch_factor", "data.max_test"),
    "data.test_size",
)
NOT_FREE = ("precision", "gradient_clip_val", "gradient_clip_algorithm", "limit_train_batches")  # keys of the trainer


def deciding(record: Mapping[str, Any]) -> dict[str, Any]:
    """The flat keys of a configuration that decide what is trained.

    Texts in `data`, such as paths, are left out: files may have moved, and their content is compared once it is read.
    """
    task = class_of("task", record["task"], Task)
    free = (*FREE, *task.scoring, *task.monitoring)
    kept = {key: value for key, value in leaves(record) if not any(_is_in(key, group) for group in free)}
    moved = [key for key, value in kept.items() if key.startswith("data.") and isinstance(value, (str, list))]
    kept = {key: value for key, value in kept.items() if key not in moved or key == f"data.{TARGET}"}
    return kept | {f"trainer.{name}": record["trainer"][name] for name in NOT_FREE if name in record["trainer"]}


def _is_in(key: str, group: str) -> bool:
    return key == group or key.startswith(f"{group}.")


CONTENT = {"settings": dict, "data": dict, "tokenizer": str, "updates": int}  # of a record


def changed_settings(now: Mapping[str, Any], checkpoint: Path) -> list[str]:
    """The keys in which a configuration differs from that of the run whose checkpoint is being resumed.

    Raises CheckpointError for a file that no run can be resumed from.
    """
    record = read_resumable(checkpoint)[RECORD]
    if not all(isinstance(record.get(name), kind) for name, kind in CONTENT.items()):
        raise CheckpointError(f"{checkpoint}: cannot be resumed from: its record of the run is incomplete")
    settings = deciding(now)
    with naming_the_reason(checkpoint):
        found = list(_differences(record["settings"], settings))
    return explained(found, checkpoint) if found else []


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted(before.keys() | now.keys()):
        if key not in before:
            yield Problem(key, "the run being resumed does not have this key", now[key])
        elif key not in now:
            yield Problem(key, f"the run being resumed has {before[key]}")
        elif before[key] != now[key]:
            yield Problem(key, f"the run being resumed has {before[key]}", now[key])


def explained(problems: list[str], checkpoint: Path) -> list[str]:
    """The problems, and what to do about them."""
    advice = (
        f"ckpt_path={checkpoint}: resuming repeats the settings of the run; to start a new run from its weights, use "
        f"model.init={checkpoint.parent.parent} (for runs with tokenizer=wordpiece; see docs/pretrained.md)"
    )
    return [*problems, advice]
