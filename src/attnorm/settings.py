"""The settings of a run: a tree of typed groups, and the plain values that are recorded. `config.read` checks them."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from attnorm.errors import Problem
from attnorm.parts import Part, keys
from attnorm.schema import Count, FolderName, NonNegative, PictureFormats, Positive, Text, WholeNumber

LONGEST_LABEL = 120  # bytes
Limit = Annotated[Count | None, Field(description="whole numbers from 1, null or -1 (no limit)")]
Batches = Annotated[
    Count | Annotated[float, Field(gt=0, le=1)] | None,
    Field(description="whole numbers from 1 (batches), numbers above 0 and up to 1.0 (a share of them) or null"),
]


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """Options that every task has.

    name:        name of the folder that contains the task's runs.
    max_steps:   number of updates, if neither trainer.max_steps nor trainer.max_epochs is set.
    validations: the largest number of validations. They are evenly spaced, and the last one is at the end of the run.
    selection:   the validation examples on which the best checkpoint is selected: a fixed "half" of them, so that
                 comparisons of runs can use the other half, or "all".
    monitor:     the validation metric that selects the best checkpoint, such as "loss"; None for that of the task.
    """

    name: FolderName
    max_steps: Count = 1000
    validations: Count = 5
    selection: Literal["half", "all"] = "half"
    monitor: Text | None = None


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Keys of `data` that are used with every source.

    max_train, max_valid, max_test: maximum number of rows of a split; the first rows are used. None: all rows.
    batch_tokens: number of tokens (padding included) per update, over all devices and accumulation steps.
    num_workers:  number of worker processes that load batches; 0 loads them in the training process.
    prefetch_factor: number of batches that each worker loads ahead; None: 2. It needs workers.
    """

    batch_tokens: Count
    max_train: Count | None = None
    max_valid: Count | None = None
    max_test: Count | None = None
    num_workers: WholeNumber = 0
    prefetch_factor: Count | None = None


@dataclass(frozen=True, kw_only=True)
class CleaningConfig:
    """Keys of `data` that are used if the texts of its source may be cleaned."""

    lowercase: bool = False
    digits: bool = False


@dataclass(frozen=True, kw_only=True)
class StartConfig:
    """Keys of `model` that are not those of its class.

    init: a BERT or GPT-2 model, or a run folder, whose weights initialize the model.
    """

    init: Text | None = None


@dataclass(frozen=True, kw_only=True)
class PathsConfig:
    """The keys of `paths`: run folders go to `log_dir`, prepared data to `cache_dir`."""

    log_dir: Text
    cache_dir: Text


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The keys of `run`: how a run saves, what it does when something goes wrong, and whether it is compiled.

    Each of these keys may differ when the run is resumed. They do not change what a run trains, but a compiled
    model rounds differently.

    save_every_steps:   updates between checkpoints, beside those of the validations; None for no such limit.
    save_every_minutes: minutes between checkpoints; None for no such limit.
    keep_best:          number of best checkpoints that are kept.
    hang_timeout:       seconds without progress in training after which the job is ended. Compiling, validating and
                        saving have ten times as long. None waits forever.
    compile:            whether `torch.compile` compiles the model.
    formats:            formats of the files in figures/. Loggers are sent the PNG, so without it they get no figure.
    ladder:             the rung of a ladder on which the run is; set by `attnorm sweep ladder=<file>` alone.
    """

    save_every_steps: Count | None = None
    save_every_minutes: Positive | None = 10.0
    keep_best: Count = 1
    hang_timeout: Positive | None = 600.0
    compile: bool = False
    formats: PictureFormats = ("png",)
    ladder: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """The keys of `trainer`: the arguments of `pytorch_lightning.Trainer`, whose import takes seconds, without those
    that a run decides itself. Values that only Lightning can judge are `Any`."""

    accelerator: Any = "auto"
    devices: Any = "auto"
    num_nodes: Any = 1
    strategy: Any = "auto"
    precision: Any = None
    max_steps: Limit = None
    max_epochs: Limit = None
    min_steps: WholeNumber | None = None
    min_epochs: WholeNumber | None = None
    max_time: Any = None
    accumulate_grad_batches: Count = 1
    gradient_clip_val: NonNegative | None = None
    gradient_clip_algorithm: Any = None
    val_check_interval: Batches = None
    limit_train_batches: Batches = None
    limit_val_batches: Batches = None
    limit_test_batches: Any = None
    limit_predict_batches: Any = None
    fast_dev_run: Any = False
    log_every_n_steps: WholeNumber | None = None
    num_sanity_val_steps: Annotated[int, Field(ge=-1)] | None = None
    detect_anomaly: bool | None = None
    deterministic: Annotated[bool | Literal["warn"] | None, Field(description="true, false, warn, null")] = None
    benchmark: Any = None
    inference_mode: bool = True
    sync_batchnorm: Any = False
    model_registry: Any = None
    enable_autolog_hparams: Any = True
    profiler: Annotated[
        Literal["simple"] | None, Field(description="simple or null; advanced and pytorch were removed")
    ] = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments for Lightning, with a strategy that a class makes; those that are null have its defaults."""
        values = {name: value for name, value in vars(self).items() if value is not None}
        return values | ({"strategy": self.strategy.build()} if isinstance(self.strategy, Part) else {})


class RunConfig(BaseModel):
    """Keys at the top level.

    seed:      of parameters, dropout and the order of examples.
    tags:      words to find the run by.
    ckpt_path: a checkpoint; a new run starts with a copy of it and of the curves of its run.
    resume:    the run folder in which a run continues, or "auto" for the newest one of the same settings.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True, protected_namespaces=()
    )

    seed: Annotated[int, Field(ge=0, le=2**32 - 1)]
    tags: list[str]
    ckpt_path: Text | None = None
    resume: Text | None = None


class Settings(RunConfig):
    """The settings of a run. Every default is filled in, every part is located, and they have no problem.

    plain:       the values as they were set, with all defaults.
    task_class:  the class of the task. task: its options, an instance of its `Config`.
    groups:      further groups of keys that the task declares, each as an instance of its dataclass.
    model_class: the class of the model. model: its options, an instance of its `Config`, or else a namespace.
    tables:      the attention of the model, an instance of `Sites`.
    checkpoint:  from which training continues: one in the folder `resume`, or `ckpt_path`. None for the beginning.

    Evaluating a finished run does not need the groups of training, which have their defaults then.
    """

    plain: dict[str, Any]
    paths: Annotated[PathsConfig, keys("paths", PathsConfig, ())]
    task_class: Any = Field(validation_alias="task")
    task: Any
    groups: Mapping[str, Any]
    model_class: Any = Field(validation_alias="model")
    model: Any
    start: Annotated[StartConfig, keys("model", StartConfig)] = Field(validation_alias="model")
    tables: Any = Field(validation_alias="attention")
    source: Part = Field(validation_alias="data")
    data: Annotated[DataConfig, keys("data", DataConfig)]
    cleaning: Annotated[CleaningConfig, keys("data", CleaningConfig)] = Field(validation_alias="data")
    tokenizer: Part
    run: Annotated[RunSettings, keys("run", RunSettings, ())] = RunSettings()
    trainer: TrainerConfig = TrainerConfig()
    optimization: Any = None
    callbacks: Mapping[str, Any] = {}
    loggers: Mapping[str, Any] = Field(default={}, validation_alias="logger")
    checkpoint: Path | None = None

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The plain values, as a run records them: attention tables name every site of the model."""
        return {**self.plain, "attention": self.attention}

    @property
    def attention(self) -> dict[str, Any]:
        """The attention tables, which name every site of the model."""
        return self.tables.resolved

    @property
    def sites(self) -> Mapping[str, bool]:
        """The attention sites of the model, each with whether it is autoregressive."""
        return self.tables.autoregressive

    @property
    def label(self) -> str:
        """The name that a run is filed under: its attention; without the attention that fuses, the fusion too. It names
        a folder, so the end of a long one is replaced by a digest."""
        fusion = self.plain["model"].get("fusion", "attention")
        label = "_".join([*([] if fusion == "attention" else [fusion]), *([self.tables.label] if self.tables else [])])
        name = label.encode()
        if len(name) <= LONGEST_LABEL:
            return label
        return f"{name[:LONGEST_LABEL].decode(errors='ignore')}_{hashlib.sha256(name).hexdigest()[:8]}"

    @property
    def max_steps(self) -> int | None:
        """The limit of updates: trainer.max_steps, or task.max_steps if the trainer has no limit at all."""
        return self.trainer.max_steps or (None if self.trainer.max_epochs else self.task.max_steps)

    @property
    def continues(self) -> bool:
        """Whether this is a run that continues in its folder, and not a new one."""
        return self.resume not in (None, "auto")

    def __getitem__(self, key: str) -> Any:
        return self.settings[key]


def leaves(cfg: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """('trainer.max_steps', value) for every value of a nested dict."""
    for key, value in cfg.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def not_recordable(value: Any, key: str = "") -> Iterator[Problem]:
    """A problem for each mapping inside settings with a key that is no text: JSON has no other keys."""
    for name, inner in value.items() if isinstance(value, Mapping) else ():
        if isinstance(name, str):
            yield from not_recordable(inner, f"{key}.{name}" if key else name)
        else:
            yield Problem(key, f"the key {name!r} must be text, as in '{name}'", value)
    for number, inner in enumerate(value) if isinstance(value, list) else ():
        yield from not_recordable(inner, f"{key}[{number}]")
