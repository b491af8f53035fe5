"""Exact resuming: which settings must be the same as those of the run being resumed, and where a run continues."""

import csv
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from attnorm.errors import CheckpointError, Problem, RunError, is_in
from attnorm.parts import TARGET, class_of
from attnorm.run.checkpoint import (
    RECORD,
    best_checkpoints,
    checkpoints_of,
    naming_the_reason,
    read_checkpoint,
    read_resumable,
)
from attnorm.run.folder import RUN, RunState
from attnorm.run.record import run_key
from attnorm.run.run import Run
from attnorm.settings import Settings, leaves
from attnorm.tasks.task import Task

log = logging.getLogger(__name__)

FREE = (  # groups and keys that may change: how long, where and how fast a run trains, and what is shown of it
    *("ckpt_path", "resume", "tags", "paths", "logger", "callbacks", "trainer", "run", "model.init", "tokenizer.file"),
    *("task.max_steps", "task.validations", "data.num_workers", "data.prefetch_factor", "data.max_test"),
    "data.test_size",
)
NOT_FREE = (  # keys of the trainer
    "precision",
    "gradient_clip_val",
    "gradient_clip_algorithm",
    "limit_train_batches",
    "limit_val_batches",  # of the examples that select the checkpoint
)


def deciding(record: Mapping[str, Any]) -> dict[str, Any]:
    """The flat keys of a configuration that decide what is trained, sorted.

    Texts in `data`, such as paths, are left out: files may have moved, and their content is compared once it is read.
    """
    task = class_of("task", record["task"], Task)
    free = (*FREE, *task.scoring, *(() if record["task"].get("monitor") else task.monitoring))
    kept = {key: value for key, value in leaves(record) if not any(is_in(key, group) for group in free)}
    moved = [key for key, value in kept.items() if key.startswith("data.") and isinstance(value, (str, list))]
    kept = {key: value for key, value in kept.items() if key not in moved or key == f"data.{TARGET}"}
    kept |= {f"trainer.{name}": record["trainer"][name] for name in NOT_FREE if name in record["trainer"]}
    return dict(sorted(kept.items()))


CONTENT = {"settings": dict, "data": dict, "tokenizer": str, "updates": int}  # of a record


def check_resume(config: Settings, checkpoint: Path) -> list[str]:
    """What keeps a run from continuing from a checkpoint: no such file, a damaged one, or one of another run.

    The best checkpoints beside it are checked in the same way, because a new run copies them.
    """
    if not checkpoint.is_file():
        return [Problem("ckpt_path", "no such file", checkpoint)]
    try:
        changed = changed_settings(config.settings, checkpoint)
        for path in () if changed or config.continues else best_checkpoints(checkpoint.parent):
            changed += changed_settings(config.settings, path)
        return changed
    except RunError as error:
        return [Problem.about("ckpt_path", f"ckpt_path={error}")]


def changed_settings(now: Mapping[str, Any], checkpoint: Path) -> list[str]:
    """The keys in which a configuration differs from that of the run whose checkpoint is being resumed.

    Raises CheckpointError for a file that no run can be resumed from.
    """
    record = read_resumable(checkpoint)[RECORD]
    if not all(isinstance(record.get(name), kind) for name, kind in CONTENT.items()):
        raise CheckpointError(f"{checkpoint}: cannot be resumed from: its record of the run is incomplete")
    before, settings, differences = record["settings"], deciding(now), list[str]()
    with naming_the_reason(checkpoint):
        for key in sorted(before.keys() | settings.keys()):
            if key not in before:
                differences.append(Problem(key, "the run being resumed does not have this key", settings[key]))
            elif key not in settings:
                differences.append(Problem(key, f"the run being resumed has {before[key]}"))
            elif before[key] != settings[key]:
                differences.append(Problem(key, f"the run being resumed has {before[key]}", settings[key]))
    return with_advice(differences, checkpoint) if differences else []


def with_advice(problems: list[str], checkpoint: Path) -> list[str]:
    """The problems, and what to do about them."""
    advice = (
        f"{checkpoint}: resuming repeats the settings of the run; to start a new run from its weights, use "
        f"model.init={Run.of_checkpoint(checkpoint).folder} (see docs/pretrained.md)"
    )
    return [*problems, advice]


def newest_unfinished(config: Settings) -> Path | None:
    """The newest run of the same resolved configuration that has started and ended without finishing.

    Raises RunError if a newer one is still going.
    """
    parent, key = Path(config.paths.log_dir) / config.task.name / config.label, run_key(config.settings)
    records = sorted(parent.glob(f"*/{RUN}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in records:
        try:
            run = Run(path.parent)
            if run_key(run.config) != key:
                continue
            state = run.state
        except RunError as error:
            log.warning("resume=auto leaves out a folder: %s", error)
            continue
        if state is RunState.RUNNING:
            another = "wait until it has ended, or type resume=null to start another run with these settings"
            raise RunError(f"resume=auto: {path.parent} is still going; {another}")
        if state.is_unfinished:
            return path.parent
    return None


def newest_good(folder: Path) -> Path | None:
    """The checkpoint from which the run in a folder continues; None if it has not saved any.

    Damaged checkpoints, and those of other runs, are skipped with a warning. Raises RunError if there are checkpoints
    but none can be used.
    """
    run, reasons = Run(folder), list[str]()
    files = checkpoints_of(run.checkpoints)
    updates = dict.fromkeys(files[1:], -1)  # files[0], last.ckpt, is the newest one
    for path in updates:
        with suppress(CheckpointError):  # a damaged one
            updates[path] = read_checkpoint(path)["global_step"]
    for path in [*files[:1], *sorted(updates, key=lambda path: updates[path], reverse=True)]:
        try:
            foreign = changed_settings(run.config, path)
        except CheckpointError as error:
            reasons.append(str(error))
            continue
        if not foreign:
            for reason in reasons:
                log.warning("%s; continuing from %s", reason, path.name)
            return path
        reasons.append(f"{path}: this is a checkpoint of another run: {foreign[0]}")
    if files:
        raise RunError(f"resume={folder}: none of its checkpoints can be used: {'; '.join(reasons)}")
    try:  # a checkpoint is saved before the first update is logged
        step = max((int(row["step"] or 0) for row in run.rows()), default=0)
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise RunError(f"{folder}/metrics.csv: cannot be read: {error}") from error
    if step or (copied := run.config.get("ckpt_path")):  # which is copied before the settings are recorded
        raise RunError(
            f"resume={folder}: the run has {f'logged update {step:,}' if step else f'started from {copied}'}, but "
            f"{run.checkpoints} has no checkpoints. Is a disk missing? To train from the beginning, start a new "
            "run"
        )
    return None
