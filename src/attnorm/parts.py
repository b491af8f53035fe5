"""Swappable parts of a run: the class that a group's `_target_` names, and the options beside it.

    optimizer:                        # a group, in conf/optimizer/<name>.yaml
      _target_: torch.optim.AdamW     # its class, from this package or any other
      lr: 3.0e-3                      # an option of it

Keys that the program reads itself, such as `data.batch_tokens`, may stand in the same group; the class is not given
those.
"""

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from attnorm.errors import ConfigError, Problem
from attnorm.imports import is_concrete, locate

TARGET = "_target_"
RESERVED = (TARGET, "_partial_")  # keys that Hydra's users know; both are read here


def class_of(group: str, settings: Mapping[str, Any], base: type | None = None) -> Any:
    """The class (or function) that a group names. base: the class that it must extend; None accepts any callable.

    Raises ConfigError for a group without `_target_`, for a path that cannot be imported, and for anything that is
    not a concrete subclass of `base`.
    """
    key, path = f"{group}.{TARGET}", settings.get(TARGET)
    if path is None:
        message = f"is not set; choose a file that sets it, with {group}=<file>"
        raise ConfigError([Problem(key, message)])
    try:
        found = locate(path) if isinstance(path, str) else None
    except ValueError as error:
        raise ConfigError([Problem(key, str(error), path)]) from error
    if base is not None and not is_concrete(found, base):
        raise ConfigError([Problem(key, f"must be a subclass of {base.__module__}.{base.__qualname__}", path)])
    if not callable(found):
        raise ConfigError([Problem(key, "must be a class or a function", path)])
    return found


def options_of(settings: Mapping[str, Any], shared: Collection[str] = ()) -> dict[str, Any]:
    """The options that stand beside `_target_`, without those that the program reads itself."""
    return {key: value for key, value in settings.items() if key not in RESERVED and key not in shared}


def names_of(dataclass: type) -> tuple[str, ...]:
    """The field names of a dataclass, which are the keys of a group."""
    return tuple(field.name for field in fields(dataclass))
