"""Reading the groups that need no PyTorch, whose import takes seconds; and what is said of an unknown option."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnorm.choices import choices
from attnorm.config.compose import values_typed
from attnorm.config.lightning import read_trainer
from attnorm.data.sources.base import Source
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import ConfigError, Problem, UnknownOption, key_of
from attnorm.imports import SYNONYMS, did_you_mean
from attnorm.parts import RESERVED, TARGET, Part, Problems, names_of
from attnorm.removed import REMOVED
from attnorm.schema import read_options
from attnorm.settings import CleaningConfig, DataConfig, PathsConfig, RunConfig, RunSettings, leaves

if TYPE_CHECKING:
    from attnorm.tasks.task import Task

GROUPS = (  # of keys that every run has
    *("task", "model", "attention", "data", "tokenizer", "optimizer", "scheduler"),
    *("trainer", "run", "callbacks", "logger", "paths"),
)
EARLY = ("data", "tokenizer", "trainer", "run", "paths")  # groups that are read here


def check_early(settings: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Raises ConfigError for the problems of the groups EARLY. If keys of other groups were typed, it does nothing, so
    that `config.read.resolve` reports the problems of all groups together."""
    if gone := [Problem.about(key, REMOVED[key]) for key, _ in leaves(settings) if key in REMOVED]:
        raise ConfigError(gone)
    typed, elsewhere = values_typed(overrides), {*names_of(RunConfig), *GROUPS} - {"attention"}
    if any(key not in elsewhere and key.partition(".")[0] not in EARLY for key in typed):
        return
    problems, full = Problems(), with_defaults(settings)
    problems.typed("", RunConfig, full, elsewhere=None)
    read_paths(full["paths"], problems)
    read_source(full["data"], None, (), problems)
    for cls in (DataConfig, CleaningConfig):
        problems.typed("data", cls, full["data"], elsewhere=None)
    if not full["model"].get("init"):  # which may bring another tokenizer
        read_tokenizer(full["tokenizer"], True, problems)
    problems.typed("run", RunSettings, full["run"])
    read_trainer(full["trainer"], full["data"], problems)
    if problems and not defaults_of_others(problems, typed):
        raise ConfigError([with_owners(problem, full) for problem in problems])


def with_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the defaults of the keys that attnorm reads itself. Groups that are missing become empty."""
    full = {"resume": None, "ckpt_path": None, **settings}
    for group in GROUPS:
        full[group] = full.get(group) or {}
    full["data"] = optional(DataConfig) | full["data"]
    full["run"] = optional(RunSettings) | full["run"]
    return full


@cache
def optional(cls: type) -> dict[str, Any]:
    """The fields of a dataclass that need not be given, with their defaults."""
    return {field.name: field.default for field in fields(cls) if field.default is not MISSING}


def read_paths(settings: Mapping[str, Any], problems: Problems) -> PathsConfig:
    """The group `paths`. A folder that cannot be made, because a file is in the way, is a problem."""
    paths: PathsConfig = problems.typed("paths", PathsConfig, settings)
    for key, value in vars(paths).items() if problems.is_valid("paths") else ():
        folder = Path(value).absolute()
        while not folder.exists():
            folder = folder.parent
        if not folder.is_dir():
            problems.append(Problem(f"paths.{key}", f"must be a folder, but {folder} is a file", value))
    return paths


def read_source(
    settings: Mapping[str, Any], task: "type[Task] | None", splits: Sequence[str], problems: Problems
) -> Part | None:
    """The source of the group `data`. Missing files, and rows that the task cannot use, are problems."""
    if settings.get("prefetch_factor") is not None and settings.get("num_workers") == 0:
        message = "has no effect without worker processes; set data.num_workers to 1 or more"
        problems.append(Problem("data.prefetch_factor", message, settings["prefetch_factor"]))
    cls = problems.class_of("data", settings, Source)
    if cls is None:
        return None
    if not cls.schema.cleaned:
        for name in names_of(CleaningConfig):
            if settings.get(name, False) is not False:
                message = f"has no effect, since the texts of {cls.__name__} must not be changed"
                problems.append(Problem(f"data.{name}", message, settings[name]))
    shared = (*RESERVED, *names_of(DataConfig), *names_of(CleaningConfig))
    options, wrong = read_options("data", cls, settings, elsewhere=shared)
    problems += wrong
    source = Part(cls, options)
    if task is not None and not cls.schema.has(task.schema):
        fitting = ", ".join(fitting_files("data", Source, lambda other: other.schema.has(task.schema)))
        message = f"yields {cls.schema.name}, but this task needs {task.schema.name}"
        problems.append(Problem("data", f"{cls.__name__} {message}; use {fitting or 'a source of your own'}"))
    elif not wrong and splits:
        try:
            problems.add("data", source.build().check(splits))
        except ConfigError as error:
            problems.add("data", error.problems)
    return source


def read_tokenizer(settings: Mapping[str, Any], trains: bool, problems: Problems) -> Part | None:
    """The tokenizer. trains: whether its options matter, because it is not the one of a run folder."""
    cls = problems.class_of("tokenizer", settings, Tokenizer)
    if cls is None or not trains:
        return cls and Part(cls, {})
    options, wrong = read_options("tokenizer", cls.from_settings, settings, facts=("draw",), elsewhere=RESERVED)
    problems += wrong
    problems.add("tokenizer", cls.check(options))
    return Part(cls, options)


def fitting_files(group: str, base: type, fits: Callable[[Any], bool]) -> list[str]:
    """The files of a group whose class fits, as they are typed, such as ["data=newswire"]."""
    classes = {name: Problems().class_of(group, settings, base) for name, settings in choices(group).items()}
    return [f"{group}={name}" for name, cls in classes.items() if cls and fits(cls)]


def defaults_of_others(problems: Iterable[str], typed: Collection[str]) -> set[str]:
    """The unknown options that nobody typed, in groups whose class was typed: defaults of the class that it replaces.

    typed: the keys that were typed.
    """
    replaced = {key.removesuffix(TARGET) for key in typed if key.endswith(f".{TARGET}")}
    unknown = {key_of(problem) for problem in problems if isinstance(problem, UnknownOption)}
    return {key for key in unknown - {*typed} if key.rpartition(".")[0] + "." in replaced}


def _without(settings: Mapping[str, Any], keys: Collection[str], group: str = "") -> dict[str, Any]:
    """The settings without some keys, such as "optimizer.betas"."""
    return {
        name: _without(value, keys, f"{group}{name}.") if isinstance(value, Mapping) else value
        for name, value in settings.items()
        if f"{group}{name}" not in keys
    }


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
    return Problem.about(key, f"{problem}{did_you_mean(keys_named(key, settings))}")


def keys_named(key: str, settings: Mapping[str, Any]) -> list[str]:
    """Other keys with the same last part, or with its name in attnorm: ["optimizer.lr"] for "lr" or "learning_rate"."""
    last = key.rpartition(".")[2]
    name, equals, value = SYNONYMS.get(last, last).partition("=")
    same = (other for other, _ in leaves(settings) if other.endswith((f".{last}", f".{name}")) and other != key)
    return [f"{other}{equals}{value}" for other in same]
