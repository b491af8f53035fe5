"""Swappable parts of a run: the class that a group's `_target_` names, and the options beside it.

    optimizer:                        # a group, in conf/optimizer/<name>.yaml
      _target_: torch.optim.AdamW     # its class, from this package or any other
      lr: 3.0e-3                      # an option of it

Keys that the program reads itself, such as `data.batch_tokens`, may stand in the same group; the class is not given
those.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from attnorm.errors import ConfigError, Problem, is_in, key_of
from attnorm.imports import accepts_any, locate, parameters
from attnorm.schema import defaults_of, read_options

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


class Problems(list[str]):
    """The problems of the settings that have been read so far."""

    def is_valid(self, *keys: str) -> bool:
        """Whether none of these keys, or of the keys in these groups, has a problem."""
        return not any(is_in(key_of(problem), key) for problem in self for key in keys)

    def add(self, group: str, problems: Iterable[str]) -> None:
        """Adds problems; those that are plain sentences are about `group`."""
        for problem in problems:
            self.append(problem if key_of(problem) else Problem.about(group, problem))

    def class_of(self, group: str, settings: Mapping[str, Any], base: type | None = None) -> Any:
        """Returns the class that a group names, or adds its problem and returns None."""
        try:
            return class_of(group, settings, base)
        except ConfigError as error:
            self.extend(error.problems)
            return None

    def part(
        self,
        group: str,
        settings: Mapping[str, Any],
        base: type | None = None,
        facts: Collection[str] = (),
        shared: Collection[str] = (),
    ) -> Part | None:
        """The part that a group names; None, with its problems added, if it cannot be made.

        facts: as in `read_options`. shared: keys of the group that the program reads itself.
        """
        before, cls = len(self), self.class_of(group, settings, base)
        if cls is None:
            return None
        options, problems = read_options(group, cls, settings, facts, elsewhere=(*RESERVED, *shared))
        self.extend(problems)
        return Part(cls, options) if len(self) == before else None

    def typed(
        self,
        group: str,
        cls: type,
        settings: Mapping[str, Any],
        *,
        elsewhere: Collection[str] | None = (),
        owner: object = None,
    ) -> Any:
        """The keys of a group as an instance of a dataclass, and their problems added.

        elsewhere: keys of the group that are read elsewhere; None for all that the dataclass does not declare.

        If a key has a problem, the instance has its value as it was set, or the default; only keys that
        are `is_valid` may be read then.
        """
        options, problems = read_options(group, cls, settings, elsewhere=elsewhere, owner=owner)
        self.extend(problems)
        if not problems:
            try:
                return cls(**options)
            except ValueError as error:  # values that do not fit each other
                self.append(Problem.about(f"{group}.{str(error).partition('=')[0]}", f"{group}.{error}"))
        incomplete: Any = object.__new__(cls)
        for name, default in defaults_of(cls).items():
            object.__setattr__(incomplete, name, settings.get(name, default))
        return incomplete


def class_of(group: str, settings: Mapping[str, Any], base: type | None = None) -> Any:
    """The class (or function) that a group names. base: the class that it must extend; None accepts any callable.

    Raises ConfigError for a group without `_target_`, for a path that cannot be imported, and for anything that is
    not a concrete subclass of `base`.
    """
    key, path = f"{group}.{TARGET}", settings.get(TARGET)
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
