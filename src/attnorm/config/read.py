"""One pass over the settings: from composed values to a `ResolvedConfig`, or all problems together.

Each part reads its own keys: a key is valid if and only if the part that is configured takes it. No data is read.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import nn

from attnorm.attention.sites import Sites
from attnorm.attention.testing.before_training import problems_before_training
from attnorm.config.compose import values_typed
from attnorm.config.lightning import CHECKED, check_trainer, differs, problems_of_metrics, read_entries, read_trainer
from attnorm.config.read_parts import (
    GROUPS,
    _without,
    defaults_of_others,
    fitting_files,
    keys_named,
    optional,
    read_paths,
    read_source,
    read_tokenizer,
    with_defaults,
    with_owners,
)
from attnorm.errors import ConfigError, Problem, unknown
from attnorm.imports import did_you_mean, nearest
from attnorm.optim import read_optimization
from attnorm.parts import RESERVED, TARGET, Part, Problems, names_of
from attnorm.run.resume import check_resume
from attnorm.run.warm_start import resolve_init
from attnorm.schema import defaults_of, read_options
from attnorm.settings import (
    CleaningConfig,
    DataConfig,
    ResolvedConfig,
    RunConfig,
    RunSettings,
    StartConfig,
    TaskConfig,
    TrainerConfig,
)
from attnorm.tasks.results import watchable
from attnorm.tasks.task import Task

LONGEST_LABEL = 120  # bytes
MODEL_FACTS = ("attention", "seed", "vocab_size", "pad_id")  # what a task tells a model; a task may add others


def resolve(
    settings: Mapping[str, Any],
    overrides: Sequence[str] = (),
    checkpoint: Path | None = None,
    right: Mapping[str, Any] | None = None,
) -> ResolvedConfig:
    """The configuration of a run that trains. Raises ConfigError with every problem of the settings.

    Lightning takes seconds to import, so problems that are found without it are reported without it, unless the user
    also typed keys that only Lightning can judge: then all problems are reported together. So it is with what an
    optimizer says of its values.

    settings: the composed values. overrides: those of the command line, "key=value". checkpoint: the one in the folder
    `resume` from which the run continues. right: settings without a problem, if the run is only checked: it then has no
    callbacks and no loggers, and what is known to be right as it equals these settings is not tried.
    """
    problems, typed, composed = Problems(), values_typed(overrides), settings
    settings, task = completed(with_defaults(settings), problems)
    if checkpoint is None and isinstance(settings["ckpt_path"], str):
        checkpoint = Path(settings["ckpt_path"])
    if isinstance(settings["model"].get("init"), str):
        settings = resolve_init(settings, checkpoint)
    config = _read(settings, task, problems, ("train", "validation"), typed)
    run = problems.typed("run", RunSettings, settings["run"])
    trainer = read_trainer(settings["trainer"], settings["data"], problems)
    groups = {key.split(".")[0] for key in typed}
    tried = {group for group in CHECKED if right is None or differs(group, settings[group], right[group])}
    build = "optimizer" in tried and (not problems or not groups.isdisjoint(("optimizer", "scheduler")))
    optimization = read_optimization(settings["optimizer"], settings["scheduler"], problems, build)
    if config is not None and problems.is_valid("task"):
        problems += problems_of_metrics(settings, watchable(config.task_class(config).monitors()))
    if config is not None and checkpoint is not None:
        problems += check_resume(config, checkpoint, problems)
    tried -= {"optimizer"}
    callbacks, loggers = dict[str, Part](), dict[str, Part]()
    if tried and (not problems or any(problems.is_valid(group) for group in groups & tried)):
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


def completed(settings: dict[str, Any], problems: Problems) -> tuple[dict[str, Any], type[Task] | None]:
    """The settings with what follows from them for their task, and its class; None if there is no such task.

    Raises ConfigError for a group that is something else.
    """
    task = problems.class_of("task", settings["task"], Task)
    for group, cls in {"task": task.Config, **task.groups}.items() if task else {"task": TaskConfig}.items():
        if not isinstance(given := settings.get(group) or {}, dict):
            raise ConfigError([Problem(group, f"expected settings by name, as in {group}.<name>=<value>", given)])
        settings[group] = optional(cls) | given
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
    top = problems.typed("", RunConfig, settings, elsewhere=None)
    problems += unknown_keys(settings, task)
    paths = read_paths(settings["paths"], problems)
    source: Any = read_source(settings["data"], task, splits, problems)
    tokenizer: Any = read_tokenizer(settings["tokenizer"], typed is not None, problems)
    if (read := read_model(settings["model"], problems)) is not None:
        model, start, options = read
        tables = read_attention(settings["attention"], vars(options), model, typed, task)
        problems.add("attention", tables.problems)
    if task is not None:
        options_of_task = problems.typed("task", task.Config, settings["task"], elsewhere=RESERVED, owner=task)
        groups = {name: problems.typed(name, cls, settings.get(name) or {}) for name, cls in task.groups.items()}
    if task is None or read is None:
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
        label=run_label(settings["model"], tables) if problems.is_valid("attention", "model") else "",
        source=source,
        data=problems.typed("data", DataConfig, settings["data"], elsewhere=None),
        cleaning=problems.typed("data", CleaningConfig, settings["data"], elsewhere=None),
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
    """The label of a run: its attention; without the attention that fuses, the fusion too. It is the name of a folder,
    so the end of a long one is replaced by a digest."""
    fusion = model.get("fusion", "attention")
    parts = [] if fusion == "attention" else [fusion]
    label = "_".join(parts + ([tables.label] if tables else []))
    if len(label.encode()) <= LONGEST_LABEL:
        return label
    return f"{label.encode()[:LONGEST_LABEL].decode(errors='ignore')}_{hashlib.sha256(label.encode()).hexdigest()[:8]}"


def read_model(settings: Mapping[str, Any], problems: Problems) -> tuple[Any, StartConfig, Any] | None:
    """The class of the model, the keys of `model` that attnorm reads, and the options of the class: an instance of its
    `Config`, or else a namespace with the defaults filled in. None, with a problem, if there is no such model."""
    cls = problems.class_of("model", settings, nn.Module)
    if cls is None:
        return None
    if not hasattr(cls, "interface"):
        message = "must be a model with an `interface` and attention `sites`, see attnorm.models"
        problems.append(Problem(f"model.{TARGET}", message, settings[TARGET]))
        return None
    start = problems.typed("model", StartConfig, settings, elsewhere=None)
    elsewhere = (*RESERVED, *names_of(StartConfig))
    if hasattr(cls, "Config"):
        return cls, start, problems.typed("model", cls.Config, settings, elsewhere=elsewhere, owner=cls)
    values, wrong = read_options("model", cls, settings, MODEL_FACTS, elsewhere=elsewhere)
    problems += wrong
    free = {name: value for name, value in defaults_of(cls).items() if name not in MODEL_FACTS}
    return cls, start, SimpleNamespace(**{**free, **values})


def read_attention(
    attention: Mapping[str, Any],
    options: Mapping[str, Any],
    model: Any,
    typed: Collection[str] | None,
    task: type[Task] | None = None,
) -> Sites:
    """The sites of a model with these options, as the attention tables set them. typed: as in `Sites`.

    A model may say how many layers and heads each site has, by optional methods `site_layers` and `site_heads`; without
    the latter it is `n_heads`. It declares its sites of self-attention in `self_sites`, or returns them from
    `self_sites_of`, and those with token embeddings in `token_sites`.
    """
    sites = model.sites_of(options) if hasattr(model, "sites_of") else model.sites
    of_self = model.self_sites_of(options) if hasattr(model, "self_sites_of") else getattr(model, "self_sites", ())

    def remedy(facts: Collection[str]) -> str:
        fitting = fitting_files("task", Task, lambda other: {*facts} <= {*other.provides(model)})
        return f"; use {' or '.join(fitting)}" if fitting else ""

    return Sites(
        attention,
        sites,
        model.site_layers(options) if hasattr(model, "site_layers") else {},
        typed,
        model.site_heads(options) if hasattr(model, "site_heads") else dict.fromkeys(sites, options.get("n_heads")),
        self_sites=[site for site in of_self if site in sites],
        token_sites=getattr(model, "token_sites", ()),
        facts=None if task is None else task.provides(model),
        remedy=remedy,
    )


# ------------------------------------------------------------------------------ settings that are valid alone only


def check_together(config: ResolvedConfig, problems: Problems) -> Iterator[str]:
    """Values of model, data and task that are valid alone and not together."""
    task, model = config.task_class, config.model_class
    width, heads = getattr(config.model, "d_model", None), getattr(config.model, "n_heads", None)
    if width and heads and problems.is_valid("model.d_model", "model.n_heads") and width % heads:
        yield Problem("model.d_model", f"not a multiple of model.n_heads={heads}", width)
    if getattr(model, "interface", None) == task.interface:
        built = task(config)
        yield from built.problems(problems.is_valid)
        if problems.is_valid("task") and (monitor := config.task.monitor) and monitor not in built.monitors():
            yield Problem("task.monitor", f"allowed: {', '.join(built.monitors())}", monitor)
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


# ------------------------------------------------------------------------------------ keys that no part of a run reads


def unknown_keys(settings: Mapping[str, Any], task: type[Task] | None) -> Iterator[Problem]:
    """Yields a problem for each key at the top level that no part of a run reads."""
    names, groups = names_of(RunConfig), (*GROUPS, *(task.groups if task else ()))
    for key in settings:
        if key not in names and key not in groups and (task or not isinstance(settings[key], dict)):
            same = keys_named(key, settings)
            meant = did_you_mean(same) if same else nearest(key, (*names, *groups), cutoff=0.7)
            yield unknown(key, Problem(key, f"nothing reads this key.{meant}"))
