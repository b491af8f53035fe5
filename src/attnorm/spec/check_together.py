"""Settings that are valid alone, and not together or not for what they are used for."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from torch import nn

from attnorm.choices import choices
from attnorm.errors import Problem, RunError
from attnorm.parts import Problems
from attnorm.run.checkpoint import best_checkpoints
from attnorm.run.folder import opened
from attnorm.run.resume import changed_settings
from attnorm.run.run import Run
from attnorm.spec.settings import ResolvedConfig, TrainerConfig


def check_together(config: ResolvedConfig, problems: Problems) -> Iterator[str]:
    """Values of model, data and task that are valid alone and not together."""
    task, model = config.task_class, config.model_class
    width, heads = getattr(config.model, "d_model", None), getattr(config.model, "n_heads", None)
    if width and heads and problems.is_valid("model.d_model", "model.n_heads") and width % heads:
        yield Problem("model.d_model", f"not a multiple of model.n_heads={heads}", width)
    if getattr(model, "interface", None) == task.interface:
        yield from task(config).problems(problems.is_valid)
        return
    fitting = []
    for name, settings in choices("model").items():
        other = Problems().class_of("model", settings, nn.Module)
        if other and getattr(other, "interface", None) == task.interface:
            fitting.append(f"model={name}")
    message = f"has the interface {model.interface!r}, but this task trains models with {task.interface!r}"
    yield Problem("model", f"{model.__name__} {message}; use {', '.join(fitting) or 'a model of your own'}")


def typed_keys(typed: Sequence[Override]) -> set[str]:
    """The keys that overrides set: {"attention.encoder"}, and also for `attention={encoder: dnas}`."""
    keys = set()
    left = [(override.key_or_group, override.value()) for override in typed if not override.is_delete()]
    while left:
        key, value = left.pop()
        if isinstance(value, dict):
            left += [(f"{key}.{name}", inner) for name, inner in value.items()]
        else:
            keys.add(key)
    return keys


def ineffective(config: ResolvedConfig, typed: Sequence[Override]) -> Iterator[Problem]:
    """Keys that were typed and change nothing: keys that have no effect with the other settings, and keys of the model
    that its pretrained weights or the data decide. Those of `attention` are checked with its tables."""
    ignored, model = config.task_class(config).ignored_keys(), config.settings["model"]
    for key, override in {override.key_or_group: override for override in typed}.items():  # the last counts
        group, _, name = key.partition(".")
        if key in ignored:
            yield Problem(key, f"has no effect with these settings; it is for {ignored[key]}", override.value())
        elif group == "model" and name in model and not override.is_delete():
            value, now = override.value(), model[name]
            if value != now and "${" not in str(value):
                by = "model.init fixes" if config.start.init else "the data fix"
                yield Problem(key, f"ignored: {by} it at {now}", value)


def check_update_size(data: Mapping[str, Any], trainer: TrainerConfig) -> Iterator[Problem]:
    """Updates that would be divided into more parts than the training data has rows."""
    devices, parts = trainer.devices, trainer.accumulate_grad_batches
    devices = len(devices) if isinstance(devices, list) else devices
    limits = {key: data[key] for key in ("train_size", "max_train") if isinstance(data.get(key), int)}
    if not limits or not isinstance(devices, int) or devices < 1:
        return
    key = min(limits, key=limits.__getitem__)
    if limits[key] < devices * parts:
        message = (
            f"an update is divided into {devices * parts} parts (times trainer.devices={devices}), but "
            f"data.{key}={limits[key]} gives fewer rows than that"
        )
        yield Problem("trainer.accumulate_grad_batches", message, parts)


def check_resume(config: ResolvedConfig, checkpoint: Path, problems: Problems) -> list[str]:
    """What keeps a run from continuing from a checkpoint: no such file, a damaged one, or one of another run.

    The best checkpoints beside it are checked in the same way, because a new run copies them.
    """
    if not problems.is_valid("ckpt_path", "model._target_", "attention", "task"):
        return []
    if not checkpoint.is_file():
        return [Problem("ckpt_path", "no such file", checkpoint)]
    try:
        if (run := Run.of_checkpoint(checkpoint)).exists:
            opened(run.folder)
        changed = changed_settings(config.settings, checkpoint)
        for path in () if changed or config.continues else best_checkpoints(checkpoint.parent):
            changed += changed_settings(config.settings, path)
        return changed
    except RunError as error:
        return [Problem.about("ckpt_path", f"ckpt_path={error}")]
