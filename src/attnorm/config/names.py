"""Names in messages: the files, options and keys that a user may have meant, and options that nobody meant."""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from attnorm.choices import choices
from attnorm.errors import ConfigError, Problem, UnknownOption, is_in
from attnorm.imports import SYNONYMS, accepts_any, did_you_mean, parameters
from attnorm.optim import GROUPING, SchedulerTiming
from attnorm.parts import RESERVED, TARGET, class_of, names_of
from attnorm.settings import CleaningConfig, DataConfig, StartConfig, leaves
from attnorm.tasks.task import Task

OF_DATA = (*names_of(DataConfig), *names_of(CleaningConfig))
SHARED = {*RESERVED, *OF_DATA, *GROUPING, *names_of(SchedulerTiming), *names_of(StartConfig)}  # not of a class


def fitting_files(group: str, base: type, fits: Callable[[Any], bool]) -> list[str]:
    """The files of a group whose class fits, as they are typed, such as ["data=newswire"]."""
    fitting = []
    for name, settings in choices(group).items():
        with suppress(ConfigError):
            fitting += [f"{group}={name}"] if fits(class_of(group, settings, base)) else []
    return fitting


def remedy(model: Any, facts: Collection[str]) -> str:
    """The tasks that pass these facts to a model of this class, as the end of a sentence. It is pickled with the sites
    for processes that are spawned."""
    fitting = fitting_files("task", Task, lambda other: {*facts} <= {*other.provides(model)})
    return f"; use {' or '.join(fitting)}" if fitting else ""


def without_leftovers(settings: Mapping[str, Any], target: str, typed: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without the options of a group that its class does not have and nobody typed, if the class was typed
    with the key `target`: they are defaults of the class that it replaces."""
    first, _, rest = (group := target.removesuffix(f".{TARGET}")).partition(".")
    entry: Any = settings[first].get(rest) if rest else settings.get(first)
    try:
        cls = class_of(group, entry)
    except ConfigError:  # which is reported with the group
        return dict(settings)
    maker = getattr(cls, "Config", getattr(cls, "from_settings", cls))
    has = SHARED | parameters(maker).keys()
    if not accepts_any(maker):
        entry = {name: value for name, value in entry.items() if name in has or f"{group}.{name}" in typed}
    return {**settings, first: {**settings[first], rest: entry} if rest else entry}


def with_owners(problem: str, settings: Mapping[str, Any]) -> str:
    """A problem with a suggestion, if it is about an unknown option: the files of its group that have this option, or
    else the key with this meaning."""
    if not isinstance(problem, UnknownOption):
        return problem
    key, (group, _, name) = problem.key, problem.key.partition(".")
    if owners := [f"{group}={file}" for file, settings in choices(group).items() if name in settings]:
        return Problem.about(key, f"{problem} {key} is a key of {', '.join(owners)}.")
    if "Did you mean" in problem:
        return problem
    meant = keys_named(key, settings)
    if key.endswith(f".{TARGET}"):  # of an entry without a class, such as callbacks.checkpoint: what was it to set?
        options = settings[group][name.removesuffix(f".{TARGET}")]
        meant = [other for option in options for other in keys_named(f"{key}.{option}", settings)]
        meant = [other for other in meant if not is_in(other, group)]
    return Problem.about(key, f"{problem}{did_you_mean(meant)}")


def keys_named(key: str, settings: Mapping[str, Any]) -> list[str]:
    """Other keys with the same last part, or with its name in attnorm: ["optimizer.lr"] for "lr" or "learning_rate"."""
    last = key.rpartition(".")[2]
    name, equals, value = SYNONYMS.get(last, last).partition("=")
    if "." in name:
        return [name] * (name != key)
    same = (other for other, _ in leaves(settings) if other.endswith((f".{last}", f".{name}")) and other != key)
    return [f"{other}{equals}{value}" for other in same]
