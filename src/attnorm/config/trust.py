"""Code that a run folder names. The folder may come from anyone, so only packages that the user trusts are imported."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnorm.errors import ConfigError, Problem
from attnorm.parts import TARGET

IMPORTED = ("task", "model", "data", "tokenizer")  # for an evaluation: never optimizer, scheduler, callbacks or loggers
OF_TRAINING = ("torch.optim.", "pytorch_lightning.callbacks.", "pytorch_lightning.loggers.")  # may be named as well
VARIABLE = "ATTNORM_TRUST"  # top-level packages, separated by commas


def trusted_packages() -> set[str]:
    """The packages that a run folder may name: this one, and those of the environment variable ATTNORM_TRUST."""
    listed = os.environ.get(VARIABLE, "").split(",")
    return {"attnorm", *filter(None, map(str.strip, listed))}


def check_names(config: dict, trust_code: bool = False, training: bool = False) -> None:
    """Raises ConfigError, before anything is imported, if a run's configuration names code from other packages.

    trust_code: trust everything. training: whether the run continues training, which imports every part that it names.
    """
    if trust_code:
        return
    problems = []
    for key, path in dotted_paths(config, training):
        package = path.partition(":")[0].partition(".")[0]
        if package not in trusted_packages() and not (training and path.startswith(OF_TRAINING)):
            message = (
                "this run folder names code outside attnorm, and importing it runs it. If you trust it, add "
                f"{package!r} to the environment variable {VARIABLE}, or type trust_code=true"
            )
            problems.append(Problem(key, message, repr(path)))
    if problems:
        raise ConfigError(problems)


def dotted_paths(config: dict, training: bool = False) -> Iterator[tuple[str, str]]:
    """(key, dotted path) for each class that evaluating a run imports: `_target_` of task, model, data source and
    tokenizer, and everything under attention, options included. For training: every `_target_`, at any level."""
    if training:
        yield from targets(config)
    for group in () if training else IMPORTED:
        settings = config.get(group)
        if isinstance(settings, dict) and isinstance(path := settings.get(TARGET), str):
            yield f"{group}.{TARGET}", path
    yield from texts_with_colon(config.get("attention"), "attention")


def targets(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every `_target_` inside a value, with its key."""
    if isinstance(value, dict):
        for name, inner in value.items():
            place = f"{key}.{name}" if key else name
            if name == TARGET and isinstance(inner, str):
                yield place, inner
            else:
                yield from targets(inner, place)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from targets(inner, f"{key}[{number}]")


def texts_with_colon(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Every text with a colon inside a value, with its key."""
    if isinstance(value, str) and ":" in value:
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from texts_with_colon(inner, f"{key}.{name}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from texts_with_colon(inner, f"{key}[{number}]")


def keep_off_path(folder: str | Path) -> None:
    """Removes a run folder from sys.path, where `python -m` puts the current folder: its files could shadow modules."""
    here = os.path.realpath(folder)
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != here]
