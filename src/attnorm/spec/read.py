"""One pass over the settings: from composed values to a `ResolvedConfig`, or all problems together.

Each part reads its own keys: a key is valid if and only if the part that is configured takes it. No data is read.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from attnorm.attention.sites import Sites
from attnorm.attention.tables import TABLES
from attnorm.attention.testing.before_training import problems_before_training
from attnorm.errors import ConfigError, Problem, UnknownOption, key_of
from attnorm.imports import did_you_mean, nearest
from attnorm.optim import read_optimization
from attnorm.parts import TARGET, Part, Problems, names_of, options_of
from attnorm.run.fixed_shares import with_fixed_shares
from attnorm.run.warm_start import resolve_init
from attnorm.spec.check_together import check_resume, check_together, check_update_size, ineffective, typed_keys
from attnorm.spec.check_trainer import check_trainer, read_trainer
from attnorm.spec.components import read_entries
from attnorm.spec.read_parts import (
    model_of,
    read_attention,
    read_model,
    read_paths,
    read_source,
    read_tokenizer,
    sites_of,
)
from attnorm.spec.settings import (
    CleaningConfig,
    DataConfig,
    ResolvedConfig,
    RunConfig,
    RunSettings,
    TaskConfig,
    TrainerConfig,
)
from attnorm.spec.suggestions import keys_named, with_owners
from attnorm.tasks.task import Task

GROUPS = (  # of keys that every run has
    *("task", "model", "attention", "data", "tokenizer", "optimizer", "scheduler"),
    *("trainer", "run", "callbacks", "logger", "paths"),
)
LIGHTNING_GROUPS = ("trainer", "callbacks", "logger")  # groups that cannot be checked without importing Lightning


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
    problems, typed = Problems(), OverridesParser.create().parse_overrides(list(overrides))
    composed = settings
    settings, task = completed(with_defaults(settings), problems)
    if checkpoint is None and isinstance(settings["ckpt_path"], str):
        checkpoint = Path(settings["ckpt_path"])
    settings = resolve_init(settings, checkpoint)
    config = read(settings, task, problems, ("train", "validation"), typed)
    run = problems.typed("run", RunSettings, settings["run"])
    trainer = read_trainer(settings["trainer"], problems)
    groups = {override.key_or_group.split(".")[0] for override in typed}
    build = not problems or not groups.isdisjoint(("optimizer", "scheduler"))
    optimization = read_optimization(settings["optimizer"], settings["scheduler"], problems, build)
    if problems.is_valid("trainer", "data"):
        problems += check_update_size(settings["data"], trainer)
    if config is not None and checkpoint is not None:
        problems += check_resume(config, checkpoint, problems)
    callbacks: dict[str, Part] = {}
    loggers: dict[str, Part] = {}
    undecided = {group for group in LIGHTNING_GROUPS if problems.is_valid(group)}
    if not problems or groups & undecided:
        callbacks = read_entries("callbacks", settings["callbacks"], problems)
        loggers = read_entries("logger", settings["logger"], problems)
        trainer = check_trainer(trainer, problems)
    if foreign := defaults_of_others(problems, typed_keys(typed)):
        return resolve(without(composed, foreign), overrides, checkpoint)
    if problems or config is None:
        raise ConfigError([with_owners(problem, settings) for problem in problems])
    config = replace(config, run=run, trainer=trainer, optimization=optimization, checkpoint=checkpoint)
    return replace(config, callbacks=callbacks, loggers=loggers)


def defaults_of_others(problems: Iterable[str], typed: Collection[str]) -> set[str]:
    """The unknown options that nobody typed, in groups whose class was typed: defaults of the class that it replaces.

    typed: the keys that were typed.
    """
    replaced = {key.removesuffix(TARGET) for key in typed if key.endswith(f".{TARGET}")}
    unknown = {key_of(problem) for problem in problems if isinstance(problem, UnknownOption)}
    return {key for key in unknown - {*typed} if key.rpartition(".")[0] + "." in replaced}


def without(settings: Mapping[str, Any], keys: Collection[str], group: str = "") -> dict[str, Any]:
    """The settings without some keys, such as "optimizer.betas"."""
    return {
        name: without(value, keys, f"{group}{name}.") if isinstance(value, Mapping) else value
        for name, value in settings.items()
        if f"{group}{name}" not in keys
    }


def resolve_recorded(settings: Mapping[str, Any], splits: Sequence[str] = ()) -> ResolvedConfig:
    """What evaluating a finished run needs of its configuration. Raises ConfigError with every problem.

    Of the tokenizer only the class is checked: a run folder has its own, so the file that it came from is not needed.
    The parts of training are neither read nor imported.

    splits: the splits that the data source must provide; if empty, its files are not checked.
    """
    problems = Problems()
    settings = with_defaults(settings)
    config = read(settings, problems.class_of("task", settings["task"], Task), problems, splits, None)
    if problems or config is None:
        raise ConfigError(problems)
    return config


def label_of(settings: Mapping[str, Any]) -> str:
    """The name that a run is filed under, "unknown" if there are problems that keep it from having one.

    How many layers a site has does not matter: that may be known only once pretrained weights are read.

    settings: the groups attention, model, data and task.
    """
    problems = Problems()
    try:
        settings, _ = completed(with_defaults(settings), problems)
        tables = Sites(settings["attention"], sites_of(settings["model"]), typed=())
        return "unknown" if problems or tables.problems else run_label(settings["model"], tables)
    except Exception:  # of a part of one's own too: it is raised again later, outside an interpolation of Hydra
        return "unknown"


def run_label(model: Mapping[str, Any], tables: Sites) -> str:
    """The label of a run: its attention; without the attention that fuses, the fusion too."""
    fusion = model.get("fusion", "attention")
    parts = [] if fusion == "attention" else [fusion]
    return "_".join(parts + ([tables.label] if tables else []))


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


def read(
    settings: dict[str, Any],
    task: type[Task] | None,
    problems: Problems,
    splits: Sequence[str],
    typed: Sequence[Override] | None,
) -> ResolvedConfig | None:
    """Reads task, model, attention, data, tokenizer and paths; None if there is no such task or model.

    typed: what the user typed; None for a finished run, of which every key counts as typed.
    """
    top = problems.shared("", RunConfig, settings)
    problems += unknown_keys(settings, task)
    paths = read_paths(settings["paths"], problems)
    source: Any = read_source(settings["data"], task, splits, problems)
    tokenizer: Any = read_tokenizer(settings["tokenizer"], typed is not None, problems)
    try:
        model = model_of(settings["model"])
    except ConfigError as error:
        problems += error.problems
        model = None
    if model is not None:
        start, options = read_model(settings["model"], model, problems)
        tables = read_attention(
            settings["attention"], settings["model"], model, None if typed is None else typed_keys(typed), task
        )
        problems.add("attention", tables.problems)
    if task is not None:
        options_of_task = problems.typed("task", task.Config, options_of(settings["task"]), owner=task)
        groups = {name: problems.typed(name, cls, settings.get(name) or {}) for name, cls in task.groups.items()}
    if task is None or model is None:
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


def unknown_keys(settings: Mapping[str, Any], task: type[Task] | None) -> Iterator[Problem]:
    """Yields a problem for each key at the top level that no part of a run reads."""
    names, groups = names_of(RunConfig), (*GROUPS, *(task.groups if task else ()))
    for key in settings:
        if key not in names and key not in groups and (task or not isinstance(settings[key], dict)):
            same = keys_named(key, settings)
            meant = did_you_mean(same) if same else nearest(key, (*names, *groups), cutoff=0.7)
            yield Problem(key, f"nothing reads this key.{meant}")
