"""Swappable parts of a run: the class that a group's `_target_` names, and the options beside it.

    optimizer:                        # a group, in conf/optimizer/<name>.yaml
      _target_: torch.optim.AdamW     # its class, from this package or any other
      lr: 3.0e-3                      # an option of it

Keys that the program reads itself, such as `data.batch_tokens`, may stand in the same group; the class is not given
those.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from functools import cache, partial
from typing import Any

from pydantic import PlainValidator

from attnorm.errors import ConfigError, Problem
from attnorm.imports import accepts_any, locate, parameters
from attnorm.schema import read_options

TARGET = "_target_"
RESERVED = (TARGET, "_partial_")  # keys that Hydra's users know; both are read here


@dataclass(frozen=True)
class Part:
    """A class (or function) that a group names, and its options as its constructor takes them: those that were set."""

    cls: Any
    options: Mapping[str, Any]

    def build(self, **facts: Any) -> Any:
        """An instance with these options, and with those of the facts that the class takes."""
        if not accepts_any(self.cls):
            facts = {name: fact for name, fact in facts.items() if name in parameters(self.cls)}
        return self.cls(**self.options, **facts)


def keys(group: str, cls: Callable[..., Any], elsewhere: Collection[str] | None = None) -> PlainValidator:
    """How pydantic reads keys of a group as an instance of a dataclass. elsewhere: as in `read_options`."""
    return PlainValidator(partial(made, group, cls, elsewhere=elsewhere))


def made(
    group: str,
    cls: Callable[..., Any],
    settings: Mapping[str, Any],
    elsewhere: Collection[str] | None = (),
    owner: object = None,
) -> Any:
    """The keys of a group as an instance of a dataclass. Raises ConfigError, also for values that do not fit each
    other, of which the dataclass says "key=value: reason"."""
    options = read_options(group, cls, as_group(group, settings), elsewhere=elsewhere, owner=owner)
    try:
        return cls(**options)
    except ValueError as error:
        raise ConfigError([Problem.about(f"{group}.{str(error).partition('=')[0]}", f"{group}.{error}")]) from error


def as_group(group: str, settings: Any) -> Mapping[str, Any]:
    """Settings by name. Raises ConfigError for anything else."""
    if not isinstance(settings, Mapping):
        raise ConfigError([Problem(group, f"expected settings by name, as in {group}.<name>=<value>", settings)])
    return settings


def class_of(group: str, settings: Mapping[str, Any], base: type | None = None) -> Any:
    """The class (or function) that a group names. base: the class that it must extend; None accepts any callable.

    Raises ConfigError for a group without `_target_`, for a path that cannot be imported, and for anything that is
    not a concrete subclass of `base`.
    """
    key, path = f"{group}.{TARGET}", as_group(group, settings).get(TARGET)
    if path is None:
        message = f"is not set; choose a file that sets it, with {group}=<file>"
        if "." in group:  # an entry of a group, which is not a file
            message = f"no file sets it; a part of your own needs {key}=package.module.Class"
        raise ConfigError([Problem(key, message)])
    try:
        located = locate(path, base) if isinstance(path, str) else None
    except ValueError as error:
        raise ConfigError([Problem(key, str(error), path)]) from error
    if not callable(located):
        raise ConfigError([Problem(key, "must be a class or a function", path)])
    return located


def options_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The options that stand beside `_target_`."""
    return {key: value for key, value in settings.items() if key not in RESERVED}


@cache
def names_of(dataclass: type) -> tuple[str, ...]:
    """The field names of a dataclass, which are the keys of a group."""
    return tuple([field.name for field in fields(dataclass)])
