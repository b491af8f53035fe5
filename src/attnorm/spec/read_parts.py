"""Reading the groups paths, model, attention, data and tokenizer: their classes, options and problems."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import nn

from attnorm.attention.sites import Sites
from attnorm.choices import choices
from attnorm.data.sources.base import Source
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import ConfigError, Problem
from attnorm.parts import TARGET, Part, Problems, names_of, options_of
from attnorm.schema import defaults_of, read_options
from attnorm.spec.settings import CleaningConfig, DataConfig, PathsConfig, StartConfig
from attnorm.tasks.task import Task

MODEL_FACTS = ("attention", "seed", "vocab_size", "pad_id")  # what a task tells a model; a task may add others


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
    start, options = problems.shared("model", StartConfig, settings), options_of(settings, names_of(StartConfig))
    if hasattr(cls, "Config"):
        return cls, start, problems.typed("model", cls.Config, options, owner=cls)
    values, wrong = read_options("model", cls, options, MODEL_FACTS)
    problems += wrong
    free = {name: value for name, value in defaults_of(cls).items() if name not in MODEL_FACTS}
    return cls, start, SimpleNamespace(**{**free, **values})


def read_attention(
    attention: Mapping[str, Any],
    settings: Mapping[str, Any],
    model: Any,
    typed: Collection[str] | None,
    task: type[Task] | None = None,
) -> Sites:
    """The sites of a model with these settings, as the attention tables set them. typed: as in `Sites`.

    A model may say how many layers and heads each site has, by optional methods `site_layers` and `site_heads`; without
    the latter it is `n_heads`. It declares its sites of self-attention in `self_sites`, or returns them from
    `self_sites_of`, and those with token embeddings in `token_sites`.
    """
    options = {**defaults_of(getattr(model, "Config", model)), **settings}
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


def read_source(
    settings: Mapping[str, Any], task: type[Task] | None, splits: Sequence[str], problems: Problems
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
    shared = (*names_of(DataConfig), *names_of(CleaningConfig))
    options, wrong = read_options("data", cls, options_of(settings, shared))
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
    given = options_of(settings)
    options, wrong = read_options("tokenizer", cls.from_settings, given, facts=("draw",))
    problems += wrong
    for problem in wrong:
        given.pop(problem.key.removeprefix("tokenizer."), None)
    problems.add("tokenizer", cls.check(given))
    return Part(cls, options)


def fitting_files(group: str, base: type, fits: Callable[[Any], bool]) -> list[str]:
    """The files of a group whose class fits, as they are typed, such as ["data=newswire"]."""
    classes = {name: Problems().class_of(group, settings, base) for name, settings in choices(group).items()}
    return [f"{group}={name}" for name, cls in classes.items() if cls and fits(cls)]
