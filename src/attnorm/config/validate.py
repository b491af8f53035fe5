"""Checking a configuration: all problems together, before any data is read.

Each part checks its own keys: a key is valid if and only if the part that is configured takes it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from pydantic import Field
from torch import nn

from attnorm.attention.testing.before_training import problems_before_training
from attnorm.choices import choices
from attnorm.config.check_compiler import check_compiler
from attnorm.config.check_paths import check_paths
from attnorm.config.check_trainer import check_trainer
from attnorm.config.components import component_problems
from attnorm.config.resolve import (
    GROUPS,
    attention_problems,
    model_attention,
    model_heads,
    model_sites,
    typed_keys,
)
from attnorm.config.run_settings import RunSettings
from attnorm.config.suggestions import keys_named, with_owners
from attnorm.data.sources.base import Source
from attnorm.data.tokenizers.base import check_tokenizer, tokenizer_class
from attnorm.errors import ConfigError, Problem, RunError, key_of
from attnorm.imports import did_you_mean, nearest
from attnorm.optim import Optimization
from attnorm.parts import TARGET, class_of, names_of, options_of
from attnorm.run.config_file import FILE
from attnorm.run.opened_folder import opened
from attnorm.run.resume import changed_settings
from attnorm.schema import Text, option_problems
from attnorm.tasks.task import (
    CleaningConfig,
    DataConfig,
    StartConfig,
    Task,
    build_source,
    model_options,
    source_options,
    task_of,
)

MODEL_FACTS = ("attention", "seed", "vocab_size", "pad_id")  # what a task tells a model; a task may add others


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Keys at the top level.

    seed:      of parameters, dropout and the order of examples.
    tags:      words to find the run by.
    ckpt_path: the checkpoint from which a new run starts.
    resume:    the run folder in which a run continues, or "auto" for the newest one of the same settings.
    """

    seed: Annotated[int, Field(ge=0, le=2**32 - 1)]
    tags: list[str]
    ckpt_path: Text | None = None
    resume: Text | None = None


class Problems(list[str]):
    """The problems found so far."""

    def is_valid(self, *keys: str) -> bool:
        """Whether none of these keys, or of the keys in these groups, has a problem."""
        wrong = set(map(key_of, self))
        return not any(it == key or it.startswith(f"{key}.") for it in wrong for key in keys)

    def add(self, group: str, problems: Iterable[str]) -> None:
        """Adds problems; those that are plain sentences are about `group`."""
        self.extend(it if key_of(it) else Problem.about(group, it) for it in problems)

    def attempt(self, group: str, action: Callable[[], Any]) -> Any:
        """The result of `action`; None, with its problems added, if it raises ConfigError."""
        try:
            return action()
        except ConfigError as error:
            self.add(group, error.problems)
            return None


def check(cfg: Mapping[str, Any], overrides: Sequence[str] = ()) -> list[str]:
    """Every problem of a composed configuration; empty if it can be trained.

    overrides: the overrides of the command line, "key=value".
    """
    found = check_parts(cfg, ("train", "validation"), typed_keys(overrides))
    if found.is_valid("model", "task", "data"):
        found += ineffective_overrides(cfg, overrides)
    if found.is_valid("model", "attention"):
        found += problems_before_training(cfg["attention"], model_sites(cfg), model_heads(cfg))
    if found.is_valid("tokenizer"):
        found.add("tokenizer", check_tokenizer(cfg["tokenizer"]))
    found += Optimization(cfg["optimizer"], cfg["scheduler"]).problems()
    found += option_problems("run", RunSettings, cfg["run"])
    found += check_compiler(cfg["run"])
    found += component_problems(cfg)
    found += check_trainer(cfg["trainer"])
    if found.is_valid("trainer", "data"):
        found += check_update_size(cfg)
    found += check_resume(cfg, found)
    return [with_owners(problem, cfg) for problem in found]


def check_parts(cfg: Mapping[str, Any], splits: Sequence[str], typed: Collection[str] | None = None) -> Problems:
    """Problems of what a finished run is evaluated with: task, model, attention, data, and all together. Of the
    tokenizer only the class is checked: a run folder holds its own, so the file that it came from is not needed.

    splits: the splits that the data source must provide; if empty, its files are not checked.
    typed:  the keys that the user typed; None: every key counts as typed.
    """
    found = Problems()
    task = found.attempt("task", lambda: class_of("task", cfg["task"], Task))
    model = found.attempt("model", lambda: model_of(cfg["model"]))
    found += check_top_level(cfg, task)
    found += check_paths(cfg["paths"])
    if task:
        found += option_problems("task", task.Config, options_of(cfg["task"]), owner=task)
        for name, config in task.groups.items():
            found += option_problems(name, config, cfg.get(name) or {})
    if model:
        found += check_model(cfg["model"], model)
        found.add("attention", attention_problems(dict(cfg), typed))
    found += check_data(cfg, splits, task)
    found.attempt("tokenizer", lambda: tokenizer_class(cfg["tokenizer"]))
    if task and model:
        found += check_together(cfg, task, model, found)
    return found


def check_top_level(cfg: Mapping[str, Any], task: type[Task] | None) -> Iterator[Problem]:
    """Problems of seed, tags and ckpt_path, and unknown keys."""
    names, groups = names_of(RunConfig), (*GROUPS, *(task.groups if task else ()))
    yield from option_problems("", RunConfig, {key: value for key, value in cfg.items() if key in names})
    for key in cfg:
        if key not in names and key not in groups and (task or not isinstance(cfg[key], dict)):
            same = keys_named(key, cfg)
            meant = did_you_mean(same) if same else nearest(key, (*names, *groups), cutoff=0.7)
            yield Problem(key, f"nothing reads this key.{meant}")


def model_of(settings: Mapping[str, Any]) -> type:
    """The class of the model. Raises ConfigError for a module that cannot be the model of a task."""
    cls = class_of("model", settings, nn.Module)
    if not hasattr(cls, "interface"):
        message = "must be a model with an `interface` and attention `sites`, see attnorm.models"
        raise ConfigError([Problem(f"model.{TARGET}", message, settings[TARGET])])
    return cls


def check_model(settings: Mapping[str, Any], cls: type) -> list[Problem]:
    """Problems with the keys of `model`."""
    ours = {key: value for key, value in settings.items() if key in names_of(StartConfig)}
    problems = option_problems("model", StartConfig, ours)
    if hasattr(cls, "Config"):
        return problems + option_problems("model", cls.Config, model_options(settings), owner=cls)
    return problems + option_problems("model", cls, model_options(settings), MODEL_FACTS)


def check_data(cfg: Mapping[str, Any], splits: Sequence[str], task: type[Task] | None) -> Problems:
    """Problems of `data`: the shared keys, the source's own, missing files, and rows that the task cannot use."""
    found, settings = Problems(), cfg["data"]
    source = found.attempt("data", lambda: class_of("data", settings, Source))
    shared = {key: value for key, value in settings.items() if key in names_of(DataConfig)}
    found += option_problems("data", DataConfig, shared)
    if found.is_valid("data") and settings.get("prefetch_factor") is not None and not settings.get("num_workers"):
        message = "has no effect without worker processes; set data.num_workers to 1 or more"
        found.append(Problem("data.prefetch_factor", message, settings["prefetch_factor"]))
    if source is None:
        return found
    found += check_cleaning(settings, source)
    own = option_problems("data", source, source_options(settings))
    found += own
    if task is not None and source.schema != task.schema:
        message = f"yields {source.schema.name}, but this task needs {task.schema.name}; use {fitting_sources(task)}"
        found.append(Problem("data", f"{source.__name__} {message}"))
    elif not own and splits:
        found.add("data", found.attempt("data", lambda: build_source(settings).check(splits)) or [])
    return found


def check_cleaning(settings: Mapping[str, Any], source: type[Source]) -> list[Problem]:
    """Problems with data.lowercase and data.digits, which have no effect on rows that may not be cleaned."""
    cleaning = {key: value for key, value in settings.items() if key in names_of(CleaningConfig)}
    if source.schema.cleaned:
        return option_problems("data", CleaningConfig, cleaning)
    message = f"has no effect, since the texts of {source.__name__} must not be changed"
    return [Problem(f"data.{key}", message, value) for key, value in cleaning.items() if value is not False]


def fitting_sources(task: type[Task]) -> str:
    """The files of conf/data whose source a task can use."""
    fitting = []
    for name, settings in choices("data").items():
        try:
            if class_of("data", settings, Source).schema == task.schema:
                fitting.append(f"data={name}")
        except ConfigError:
            continue  # a file that others build on
    return ", ".join(fitting) or "a source of your own"


def check_together(cfg: Mapping[str, Any], task: type[Task], model: type, found: Problems) -> Iterator[str]:
    """Values of model, data and task that are valid alone and not together."""
    settings = cfg["model"]
    width, heads = settings.get("d_model"), settings.get("n_heads")
    if width and heads and found.is_valid("model.d_model", "model.n_heads") and width % heads:
        yield Problem("model.d_model", f"not a multiple of model.n_heads={heads}", width)
    elif hasattr(model, "Config") and found.is_valid("model"):
        try:
            model.Config(**model_options(settings))
        except ValueError as error:
            yield Problem.about(f"model.{str(error).partition('=')[0]}", f"model.{error}")
    interface = getattr(model, "interface", None)
    if interface != task.interface:
        fitting = [f"model={name}" for name, it in choices("model").items() if interface_of(it) == task.interface]
        message = f"has the interface {interface!r}, but this task trains models with {task.interface!r}"
        yield Problem("model", f"{model.__name__} {message}; use {', '.join(fitting) or 'a model of your own'}")
    else:
        yield from task_of(dict(cfg)).problems(found.is_valid)


def interface_of(settings: Mapping[str, Any]) -> str | None:
    """The interface of the model in a file of conf/model; None for a file that builds on another one."""
    try:
        return class_of("model", settings, nn.Module).interface
    except ConfigError:
        return None


def ineffective_overrides(cfg: Mapping[str, Any], overrides: Sequence[str]) -> Iterator[Problem]:
    """Keys that were typed and change nothing: keys that have no effect with the other settings, and keys of the model
    that its pretrained weights or the data decide. Those of `attention` are checked with its tables."""
    ignored, model = task_of(dict(cfg)).ignored_keys(), cfg["model"]
    typed = {it.key_or_group: it for it in OverridesParser.create().parse_overrides(list(overrides))}  # the last counts
    for key, override in typed.items():
        group, *rest = key.split(".")
        if key in ignored:
            yield Problem(key, f"has no effect with these settings; it is for {ignored[key]}", override.value())
        elif group == "model" and len(rest) == 1 and rest[0] in model and not override.is_delete():
            value, now = override.value(), model[rest[0]]
            if value != now and "${" not in str(value):
                by = "model.init fixes" if model.get("init") else "the data fix"
                yield Problem(key, f"ignored: {by} it at {now}", value)


def check_update_size(cfg: Mapping[str, Any]) -> Iterator[Problem]:
    """Updates that would be divided into more parts than the training data has rows."""
    trainer, data = cfg["trainer"], cfg["data"]
    pieces, devices = trainer.get("accumulate_grad_batches") or 1, trainer.get("devices")
    devices = len(devices) if isinstance(devices, list) else devices
    limits = {key: data[key] for key in ("train_size", "max_train") if isinstance(data.get(key), int)}
    if not limits or not isinstance(devices, int) or devices < 1:
        return
    key = min(limits, key=limits.__getitem__)
    if limits[key] < devices * pieces:
        message = (
            f"an update is divided into {devices * pieces} parts (times trainer.devices={devices}), but "
            f"data.{key}={limits[key]} gives fewer rows than that"
        )
        yield Problem("trainer.accumulate_grad_batches", message, pieces)


def check_resume(cfg: Mapping[str, Any], found: Problems) -> list[str]:
    """What keeps a run from resuming `ckpt_path`: no such file, a damaged one, or one of another run."""
    path = cfg.get("ckpt_path")
    if not isinstance(path, str) or not found.is_valid("ckpt_path", "model._target_", "attention", "task"):
        return []
    if not Path(path).is_file():
        return [Problem("ckpt_path", "no such file", path)]
    try:
        if (Path(path).parent.parent / FILE).is_file():
            opened(Path(path).parent.parent)
        return changed_settings({**cfg, "attention": model_attention(cfg)}, Path(path))
    except RunError as error:
        return [Problem.about("ckpt_path", f"ckpt_path={error}")]
