"""One pass over the settings: from composed values to a `ResolvedConfig`, or all problems together.

Each part reads its own keys: a key is valid if and only if the part that is configured takes it. No data is read.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from attnorm.attention.sites import Sites
from attnorm.attention.tables import TABLES
from attnorm.attention.testing.before_training import problems_before_training
from attnorm.choices import files_with
from attnorm.errors import ConfigError, Problem, RunError, UnknownOption, key_of
from attnorm.imports import SYNONYMS, did_you_mean, nearest
from attnorm.optim import read_optimization
from attnorm.parts import TARGET, Part, Problems, names_of, options_of
from attnorm.run.checkpoint import best_checkpoints
from attnorm.run.fixed_shares import with_fixed_shares
from attnorm.run.folder import opened
from attnorm.run.resume import changed_settings
from attnorm.run.run import Run
from attnorm.run.warm_start import resolve_init
from attnorm.spec.compose import values_typed
from attnorm.spec.lightning import GROUPS_OF_LIGHTNING, check_trainer, check_update_size, read_entries, read_trainer
from attnorm.spec.read_parts import fitting_files, read_attention, read_model, read_paths, read_source, read_tokenizer
from attnorm.spec.settings import (
    CleaningConfig,
    DataConfig,
    ResolvedConfig,
    RunConfig,
    RunSettings,
    TaskConfig,
    TrainerConfig,
    leaves,
)
from attnorm.tasks.task import Task

GROUPS = (  # of keys that every run has
    *("task", "model", "attention", "data", "tokenizer", "optimizer", "scheduler"),
    *("trainer", "run", "callbacks", "logger", "paths"),
)


def resolve(
    settings: Mapping[str, Any], overrides: Sequence[str] = (), checkpoint: Path | None = None
) -> ResolvedConfig:
    """The configuration of a run that trains. Raises ConfigError with every problem of the settings.

    Lightning takes seconds to import, so problems that are found without it are reported without it, unless the user
    also typed keys that only Lightning can judge: then all problems are reported together. So it is with what an
    optimizer says of its values.

    settings: the composed values. overrides: those of the command line, "key=value". checkpoint: the one in the folder
    `resume` from which the run continues.
    """
    problems, typed, composed = Problems(), values_typed(overrides), settings
    settings, task = completed(with_defaults(settings), problems)
    if checkpoint is None and isinstance(settings["ckpt_path"], str):
        checkpoint = Path(settings["ckpt_path"])
    settings = resolve_init(settings, checkpoint)
    config = _read(settings, task, problems, ("train", "validation"), typed)
    run = problems.typed("run", RunSettings, settings["run"])
    trainer = read_trainer(settings["trainer"], problems)
    groups = {key.split(".")[0] for key in typed}
    build = not problems or not groups.isdisjoint(("optimizer", "scheduler"))
    optimization = read_optimization(settings["optimizer"], settings["scheduler"], problems, build)
    if problems.is_valid("trainer", "data"):
        problems += check_update_size(settings["data"], trainer)
    if config is not None and checkpoint is not None:
        problems += check_resume(config, checkpoint, problems)
    callbacks: dict[str, Part] = {}
    loggers: dict[str, Part] = {}
    if not problems or any(problems.is_valid(group) for group in groups.intersection(GROUPS_OF_LIGHTNING)):
        callbacks = read_entries("callbacks", settings["callbacks"], problems)
        loggers = read_entries("logger", settings["logger"], problems)
        trainer = check_trainer(trainer, problems)
    if problems and (foreign := defaults_of_others(problems, typed)):
        return resolve(_without(composed, foreign), overrides, checkpoint)
    if problems or config is None:
        raise ConfigError([with_owners(problem, settings) for problem in problems])
    config = replace(config, run=run, trainer=trainer, optimization=optimization, checkpoint=checkpoint)
    return replace(config, callbacks=callbacks, loggers=loggers)


def resolve_recorded(settings: Mapping[str, Any], splits: Sequence[str] = ()) -> ResolvedConfig:
    """What evaluating a finished run needs of its configuration. Raises ConfigError with every problem.

    Of the tokenizer only the class is checked: a run folder has its own, so the file that it came from is not needed.
    The parts of training are neither read nor imported.

    splits: the splits that the data source must provide; if empty, its files are not checked.
    """
    problems = Problems()
    settings = with_defaults(settings)
    config = _read(settings, problems.class_of("task", settings["task"], Task), problems, splits, None)
    if problems or config is None:
        raise ConfigError(problems)
    return config


def with_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the defaults of the keys that attnorm reads itself. Groups that are missing become empty."""
    full = {"resume": None, "ckpt_path": None, **settings}
    for group in GROUPS:
        full[group] = full.get(group) or {}
    full["data"] = optional(DataConfig) | full["data"]
    full["run"] = optional(RunSettings) | full["run"]
    full["attention"] = {table: {} for table in TABLES} | full["attention"]
    return full


def optional(cls: type) -> dict[str, Any]:
    """The fields of a dataclass that need not be given, with their defaults."""
    return {field.name: field.default for field in fields(cls) if field.default is not MISSING}


def completed(settings: dict[str, Any], problems: Problems) -> tuple[dict[str, Any], type[Task] | None]:
    """The settings with what follows from them for their task, and its class; None if there is no such task.

    Raises ConfigError if shares are to be those of a run that has none.
    """
    task = problems.class_of("task", settings["task"], Task)
    for group, cls in {"task": task.Config, **task.groups}.items() if task else {"task": TaskConfig}.items():
        settings[group] = optional(cls) | (settings.get(group) or {})
    settings["attention"] = with_fixed_shares(settings["attention"])
    return (task.completed(settings) if task else settings), task


def _read(
    settings: dict[str, Any],
    task: type[Task] | None,
    problems: Problems,
    splits: Sequence[str],
    typed: Mapping[str, Any] | None,
) -> ResolvedConfig | None:
    """Reads task, model, attention, data, tokenizer and paths; None if there is no such task or model.

    typed: the values that the user typed, by key; None for a finished run, of which every key counts as typed.
    """
    top = problems.shared("", RunConfig, settings)
    problems += unknown_keys(settings, task)
    paths = read_paths(settings["paths"], problems)
    source: Any = read_source(settings["data"], task, splits, problems)
    tokenizer: Any = read_tokenizer(settings["tokenizer"], typed is not None, problems)
    if (found := read_model(settings["model"], problems)) is not None:
        model, start, options = found
        tables = read_attention(settings["attention"], settings["model"], model, typed, task)
        problems.add("attention", tables.problems)
    if task is not None:
        options_of_task = problems.typed("task", task.Config, options_of(settings["task"]), owner=task)
        groups = {name: problems.typed(name, cls, settings.get(name) or {}) for name, cls in task.groups.items()}
    if task is None or found is None:
        return None
    is_sound = problems.is_valid("attention")
    config = ResolvedConfig(
        settings={**settings, "attention": tables.resolved} if is_sound else settings,
        **vars(top),
        task_class=task,
        task=options_of_task,
        groups=groups,
        model_class=model,
        model=options,
        start=start,
        attention=tables.resolved if is_sound else {},
        sites=tables.autoregressive,
        label=run_label(settings["model"], tables) if is_sound else "",
        source=source,
        data=problems.shared("data", DataConfig, settings["data"]),
        cleaning=problems.shared("data", CleaningConfig, settings["data"]),
        tokenizer=tokenizer,
        paths=paths,
        trainer=TrainerConfig(),
        run=RunSettings(),
    )
    problems += check_together(config, problems)
    if typed is not None and problems.is_valid("model", "task", "data"):
        problems += ineffective(config, typed)
    if typed is not None and problems.is_valid("model", "attention"):
        problems += problems_before_training(tables)
    return config


def run_label(model: Mapping[str, Any], tables: Sites) -> str:
    """The label of a run: its attention; without the attention that fuses, the fusion too."""
    fusion = model.get("fusion", "attention")
    parts = [] if fusion == "attention" else [fusion]
    return "_".join(parts + ([tables.label] if tables else []))


# ------------------------------------------------------------------------------ settings that are valid alone only


def check_together(config: ResolvedConfig, problems: Problems) -> Iterator[str]:
    """Values of model, data and task that are valid alone and not together."""
    task, model = config.task_class, config.model_class
    width, heads = getattr(config.model, "d_model", None), getattr(config.model, "n_heads", None)
    if width and heads and problems.is_valid("model.d_model", "model.n_heads") and width % heads:
        yield Problem("model.d_model", f"not a multiple of model.n_heads={heads}", width)
    if getattr(model, "interface", None) == task.interface:
        yield from task(config).problems(problems.is_valid)
        return
    fitting = fitting_files("model", nn.Module, lambda other: getattr(other, "interface", None) == task.interface)
    message = f"has the interface {model.interface!r}, but this task trains models with {task.interface!r}"
    yield Problem("model", f"{model.__name__} {message}; use {', '.join(fitting) or 'a model of your own'}")


def ineffective(config: ResolvedConfig, typed: Mapping[str, Any]) -> Iterator[Problem]:
    """Keys that were typed and change nothing: keys that have no effect with the other settings, and keys of the model
    that its pretrained weights or the data decide. Those of `attention` are checked with its tables."""
    ignored, model = config.task_class(config).ignored_keys(), config.settings["model"]
    for key, value in typed.items():
        group, _, name = key.partition(".")
        if key in ignored:
            yield Problem(key, f"has no effect with these settings; it is for {ignored[key]}", value)
        elif group == "model" and name in model and value != (now := model[name]) and "${" not in str(value):
            by = "model.init fixes" if config.start.init else "the data fix"
            yield Problem(key, f"ignored: {by} it at {now}", value)


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


# ------------------------------------------------------------------------------------ keys that no part of a run reads


def unknown_keys(settings: Mapping[str, Any], task: type[Task] | None) -> Iterator[Problem]:
    """Yields a problem for each key at the top level that no part of a run reads."""
    names, groups = names_of(RunConfig), (*GROUPS, *(task.groups if task else ()))
    for key in settings:
        if key not in names and key not in groups and (task or not isinstance(settings[key], dict)):
            same = keys_named(key, settings)
            meant = did_you_mean(same) if same else nearest(key, (*names, *groups), cutoff=0.7)
            yield Problem(key, f"nothing reads this key.{meant}")


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
    key = key_of(problem)
    if not isinstance(problem, UnknownOption):
        return problem
    if owners := files_with(key):
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
