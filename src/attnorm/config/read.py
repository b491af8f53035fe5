"""From the plain settings of a run to the checked tree `Settings`, or all problems of its groups together.

Each group is read once, and what the groups demand of each other is in one validator. No data is read.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

from pydantic import Field, PlainValidator, ValidationError, ValidationInfo, field_validator, model_validator
from torch import nn

from attnorm.attention.model_sites import Sites
from attnorm.attention.testing.before_training import problems_before_training
from attnorm.choices import is_of_files
from attnorm.config import lightning
from attnorm.config.compose import values_typed
from attnorm.config.names import OF_DATA, fitting_files, keys_named, remedy, with_owners, without_leftovers
from attnorm.data.sources.base import Source
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import ConfigError, Problem, key_of, unknown
from attnorm.imports import did_you_mean, nearest, parameters
from attnorm.optim import ParamGroups, read_optimization, refusals
from attnorm.parts import RESERVED, TARGET, Part, as_group, class_of, made, names_of
from attnorm.removed import REMOVED
from attnorm.run.resume import check_resume
from attnorm.run.warm_start import with_init
from attnorm.schema import defaults_of, problems_in, read_options
from attnorm.settings import DataConfig, RunConfig, RunSettings, Settings, StartConfig, TaskConfig, TrainerConfig
from attnorm.tasks.task import Task

OF_TRAINING = ("optimizer", "scheduler", "trainer", "run", "callbacks", "logger")  # groups that scoring does not need
GROUPS = ("task", "model", "attention", "data", "tokenizer", "paths", *OF_TRAINING)  # of keys that every run has
MODEL_FACTS = ("attention", "seed", "vocab_size", "pad_id")  # what a task tells a model; a task may add others


@dataclass(frozen=True)
class Context:
    """What is known of settings besides their values.

    typed:      the values that the user typed, by key; None if every key counts as typed.
    checkpoint: the one in the folder `resume` from which the run continues.
    splits:     the splits that the data source must provide; if empty, its files are not checked.
    trains:     whether the run trains, and is not only scored.
    """

    typed: Mapping[str, Any] | None = field(default_factory=dict)
    checkpoint: Path | None = None
    splits: Sequence[str] = ("train", "validation")
    trains: bool = True


def read_settings(
    settings: Mapping[str, Any], overrides: Sequence[str] = (), checkpoint: Path | None = None, trains: bool = True
) -> Settings:
    """The settings of a run that trains. Raises ConfigError with the problems of all groups, or else with those between
    groups, or else with what Lightning, the optimizer's class and the checkpoint say of them.

    settings: the composed values. overrides: those of the command line, "key=value". checkpoint: as in `Context`.
    trains: whether this process trains the run; if not, Lightning is imported only for what no file of conf/ sets.
    """
    typed = values_typed(overrides)
    if gone := REMOVED.keys() & typed.keys():
        raise ConfigError([Problem.about(key, REMOVED[key]) for key in sorted(gone)])
    config = validated(settings, Context(typed, checkpoint))
    problems = check_resume(config, config.checkpoint) if config.checkpoint else []
    if not is_of_files("optimizer", config.plain["optimizer"], names_of(ParamGroups)):
        problems += refusals(config.optimization)
    if problems:
        raise ConfigError(problems)
    return lightning.located(config) if trains or lightning.is_needed(config) else config


def read_recorded(settings: Mapping[str, Any], splits: Sequence[str] = ()) -> Settings:
    """What scoring a finished run needs of its settings. Raises ConfigError with every problem.

    Of the tokenizer only the class is checked: a run folder has its own, so the file that it came from is not needed.
    The parts of training are neither read nor imported. splits: as in `Context`.
    """
    return validated(settings, Context(None, splits=splits, trains=False))


def validated(settings: Mapping[str, Any], context: Context) -> Settings:
    """The checked tree. Raises ConfigError."""
    try:
        return Checked.model_validate(settings, context=context)
    except ValidationError as error:
        problems = dict.fromkeys(problems_in(error, settings, parameters(RunConfig), "attnorm"))
        raise ConfigError([with_owners(problem, settings) for problem in problems]) from error


class Checked(Settings):
    """Settings whose groups are read by the parts that they name, and fit each other. A key is valid if and only if the
    part that is configured takes it."""

    task_class: Annotated[Any, PlainValidator(partial(class_of, "task", base=Task))] = Field(validation_alias="task")
    trainer: Annotated[TrainerConfig, PlainValidator(lightning.read_trainer)] = TrainerConfig()
    optimization: Annotated[Any, PlainValidator(read_optimization)] = None
    callbacks: Annotated[Mapping[str, Any], PlainValidator(partial(lightning.known_entries, "callbacks"))] = {}
    loggers: Annotated[Mapping[str, Any], PlainValidator(partial(lightning.known_entries, "logger"))] = Field(
        default={}, validation_alias="logger"
    )

    @model_validator(mode="before")
    @classmethod
    def completed(cls, settings: Mapping[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """The settings with their defaults and with what follows from them, by field."""
        context: Context = info.context or Context()
        plain: dict[str, Any] = {"resume": None, "ckpt_path": None, **settings}
        typed = context.typed or {}
        for key in typed:
            if key.endswith(f".{TARGET}"):
                plain = without_leftovers(plain, key, typed)
        for group in GROUPS:
            plain[group] = plain.get(group) or {}
        if "tokenizer" in typed:  # the size that the file of a task sets is that of tokenizers that are trained
            options = without_leftovers(plain, f"tokenizer.{TARGET}", typed)["tokenizer"]
            plain["tokenizer"] = {k: v for k, v in plain["tokenizer"].items() if k in options or k != "vocab_size"}
        task, defaults = None, {"task": TaskConfig, "data": DataConfig, "run": RunSettings}
        with suppress(ConfigError):  # which is reported with the group
            task = class_of("task", plain["task"], Task)
            defaults |= {"task": task.Config, **task.groups}
        for group, config in defaults.items():
            if isinstance(set_here := plain.get(group) or {}, Mapping):
                plain[group] = {**optional(config), **set_here}
        plain = task.completed(plain) if task and context.trains else plain  # what a run has recorded is complete
        checkpoint = context.checkpoint
        if checkpoint is None and isinstance(plain["ckpt_path"], str):
            checkpoint = Path(plain["ckpt_path"])
        if context.trains and isinstance(plain["model"], Mapping) and isinstance(plain["model"].get("init"), str):
            plain = with_init(plain, checkpoint)
        known = {*RunConfig.model_fields, *GROUPS}
        read = known - {*(OF_TRAINING[:2] if context.trains else OF_TRAINING)}
        fields: dict[str, Any] = {"plain": plain, "checkpoint": checkpoint, "groups": {}}
        for key, value in plain.items():
            if key in read:
                fields[key] = value
            elif key not in known:
                fields["groups"][key] = value
        return fields | ({"optimization": plain} if context.trains else {})

    @field_validator("task", mode="plain")
    @classmethod
    def read_task(cls, settings: Any, info: ValidationInfo) -> Any:
        task = info.data.get("task_class")
        return task and made("task", task.Config, settings, RESERVED, owner=task)

    @field_validator("groups", mode="plain")
    @classmethod
    def read_groups(cls, groups: Mapping[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Further groups of the task. Anything else at the top level is read by no part of a run."""
        task, read, problems = info.data.get("task_class"), dict[str, Any](), list[str]()
        of_task = task.groups if task else {}
        for key, value in groups.items():
            if key in of_task:
                try:
                    read[key] = made(key, of_task[key], value)
                except ConfigError as error:
                    problems += error.problems
            elif task or not isinstance(value, dict):
                same = keys_named(key, info.data["plain"])
                meant = did_you_mean(same) if same else nearest(key, (*RunConfig.model_fields, *GROUPS, *of_task), 0.7)
                problems.append(unknown(key, Problem(key, f"nothing reads this key.{meant}")))
        if problems:
            raise ConfigError(problems)
        return read

    @field_validator("model_class", mode="plain")
    @classmethod
    def read_model_class(cls, settings: Any, info: ValidationInfo) -> Any:
        """The class of the model, which must be one that the task trains."""
        model, task = class_of("model", settings, nn.Module), info.data.get("task_class")
        if not hasattr(model, "interface"):
            message = "must be a model with an `interface` and attention `sites`, see attnorm.models"
            raise ConfigError([Problem(f"model.{TARGET}", message, settings[TARGET])])
        if task and model.interface != task.interface:
            fitting = fitting_files("model", nn.Module, lambda other: getattr(other, "interface", 0) == task.interface)
            message = f"has the interface {model.interface!r}, but this task trains models with {task.interface!r}"
            use = ", ".join(fitting) or "a model of your own"
            raise ConfigError([Problem("model", f"{model.__name__} {message}; use {use}")])
        return model

    @field_validator("model", mode="plain")
    @classmethod
    def read_model(cls, settings: Any, info: ValidationInfo) -> Any:
        """The options of the model: an instance of its `Config`, or else a namespace with the defaults filled in."""
        model, elsewhere = info.data.get("model_class"), (*RESERVED, *names_of(StartConfig))
        if model is None or hasattr(model, "Config"):
            return model and made("model", model.Config, settings, elsewhere, owner=model)
        values = read_options("model", model, settings, MODEL_FACTS, elsewhere=elsewhere)
        free = {name: value for name, value in defaults_of(model).items() if name not in MODEL_FACTS}
        return SimpleNamespace(**{**free, **values})

    @field_validator("tables", mode="plain")
    @classmethod
    def read_attention(cls, attention: Any, info: ValidationInfo) -> Sites | None:
        """The attention of the model, as its tables set it; they can be read once the model is known."""
        task, model, context = info.data.get("task_class"), info.data.get("model_class"), info.context or Context()
        if (options := info.data.get("model")) is None:
            return None

        facts, attention = task.provides(model) if task else None, as_group("attention", attention)
        tables = Sites.of_model(model, vars(options), attention, context.typed, facts, partial(remedy, model))
        if tables.problems:
            raise error_of_group("attention", tables.problems)
        return tables

    @field_validator("source", mode="plain")
    @classmethod
    def read_source(cls, settings: Any, info: ValidationInfo) -> Part:
        """The data source, whose rows must be those of the task. Missing files are problems."""
        source: Any = class_of("data", settings, Source)
        context, task = info.context or Context(), info.data.get("task_class")
        if task and not source.schema.has(task.schema):
            fitting = fitting_files("data", Source, lambda other: other.schema.has(task.schema))
            use = ", ".join(fitting) or "a source of your own"
            why = f"yields {source.schema.name}, but this task needs {task.schema.name}"
            raise ConfigError([Problem("data", f"{source.__name__} {why}; use {use}")])
        part = Part(source, read_options("data", source, settings, elsewhere=(*RESERVED, *OF_DATA)))
        if context.splits and source.check is not Source.check and (problems := part.build().check(context.splits)):
            raise error_of_group("data", problems)
        return part

    @field_validator("tokenizer", mode="plain")
    @classmethod
    def read_tokenizer(cls, settings: Any, info: ValidationInfo) -> Part:
        """The tokenizer; without its options if there is one in the run folder."""
        tokenizer: Any = class_of("tokenizer", settings, Tokenizer)
        if info.context and not info.context.trains:
            return Part(tokenizer, {})
        options = read_options("tokenizer", tokenizer.from_settings, settings, facts=("draw",), elsewhere=RESERVED)
        if problems := tokenizer.check(options):
            raise error_of_group("tokenizer", problems)
        return Part(tokenizer, options)

    @model_validator(mode="after")
    def fit_each_other(self, info: ValidationInfo) -> "Checked":
        """Refuses values that are valid alone and not together, and keys that were typed and have no effect."""
        context, problems = info.context or Context(), list[str]()
        width, heads = getattr(self.model, "d_model", None), getattr(self.model, "n_heads", None)
        if width and heads and width % heads:
            raise ConfigError([Problem("model.d_model", f"not a multiple of model.n_heads={heads}", width)])
        task = self.task_class(self)
        problems += task.problems()
        if self.task.monitor and self.task.monitor not in (monitors := task.monitors()):
            problems.append(Problem("task.monitor", f"allowed: {', '.join(monitors)}", self.task.monitor))
        if self.data.prefetch_factor is not None and not self.data.num_workers:
            message = "has no effect without worker processes; set data.num_workers to 1 or more"
            problems.append(Problem("data.prefetch_factor", message, self.data.prefetch_factor))
        for name, value in vars(self.cleaning).items() if not self.source.cls.schema.cleaned else ():
            if value:
                message = f"has no effect, since the texts of {self.source.cls.__name__} must not be changed"
                problems.append(Problem(f"data.{name}", message, value))
        for key, value in vars(self.paths).items():
            folder = Path(value).absolute()
            while not folder.exists():
                folder = folder.parent
            if not folder.is_dir():
                problems.append(Problem(f"paths.{key}", f"must be a folder, but {folder} is a file", value))
        ignored, model = task.ignored_keys(), self.plain["model"]
        for key, value in (context.typed or {}).items():
            group, _, name = key.partition(".")
            if key in ignored:
                problems.append(Problem(key, f"has no effect with these settings; it is for {ignored[key]}", value))
            elif group == "model" and name in model and value != (now := model[name]) and "${" not in str(value):
                by = "model.init fixes" if self.start.init else "the data fix"
                problems.append(Problem(key, f"ignored: {by} it at {now}", value))
        if context.trains:
            problems += [*lightning.problems_of_machine(self.trainer)] or lightning.problems_of_updates(
                self.trainer, self.plain["data"]
            )
            problems += lightning.problems_of_metrics(self.plain, task)
            problems += problems_before_training(self.tables)
        if problems:
            raise ConfigError(problems)
        return self


def error_of_group(group: str, problems: Iterable[str]) -> ConfigError:
    """The error of a group; problems that are plain sentences are about it."""
    return ConfigError([problem if key_of(problem) else Problem.about(group, problem) for problem in problems])


@cache
def optional(cls: type) -> dict[str, Any]:
    """The fields of a dataclass that need not be given, with their defaults."""
    return {field.name: field.default for field in fields(cls) if field.default is not MISSING}
