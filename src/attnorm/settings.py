"""The configuration of a run, read and checked once: typed groups, and the plain settings that a run records."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from attnorm.parts import Part
from attnorm.schema import Count, FolderName, NonNegative, PictureFormats, Positive, Text, WholeNumber

Limit = Annotated[Count | None, Field(description="whole numbers from 1, null or -1 (no limit)")]
Batches = Annotated[
    Count | Annotated[float, Field(gt=0, le=1)] | None,
    Field(description="whole numbers from 1 (batches), numbers above 0 and up to 1.0 (a share of them) or null"),
]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Keys at the top level.

    seed:      of parameters, dropout and the order of examples.
    tags:      words to find the run by.
    ckpt_path: a checkpoint; a new run starts with a copy of it and of the curves of its run.
    resume:    the run folder in which a run continues, or "auto" for the newest one of the same settings.
    """

    seed: Annotated[int, Field(ge=0, le=2**32 - 1)]
    tags: list[str]
    ckpt_path: Text | None = None
    resume: Text | None = None


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
    """

    save_every_steps: Count | None = None
    save_every_minutes: Positive | None = 10.0
    keep_best: Count = 1
    hang_timeout: Positive | None = 600.0
    compile: bool = False
    formats: PictureFormats = ("png",)


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """Keys of `trainer` that attnorm reads, and those of which Lightning would accept any value.

    arguments: all keys as they were set, which reach `pytorch_lightning.Trainer` unchanged.
    """

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
    val_check_interval: Batches = None
    limit_train_batches: Batches = None
    limit_val_batches: Batches = None
    fast_dev_run: Any = False
    log_every_n_steps: WholeNumber | None = None
    num_sanity_val_steps: Annotated[int, Field(ge=-1)] | None = None
    detect_anomaly: bool | None = None
    deterministic: Annotated[bool | Literal["warn"] | None, Field(description="true, false, warn, null")] = None
    inference_mode: bool = True
    profiler: Annotated[
        Literal["simple"] | None, Field(description="simple or null; advanced and pytorch were removed")
    ] = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ResolvedConfig(Mapping[str, Any]):
    """A configuration without a problem. Every default is filled in, and every part is located.

    settings:    the plain values, as a run records them: a mapping with these values, and so is the configuration.
    task_class:  the class of the task. task: its options, an instance of its `Config`.
    groups:      further groups of keys that the task declares, each as an instance of its dataclass.
    model_class: the class of the model. model: its options, an instance of its `Config`, or else a namespace.
    attention:   the attention tables, which name every site of the model. label: the name that a run is filed under.
    sites:       the attention sites of the model, each with whether it is autoregressive.
    checkpoint:  from which training continues: one in the folder `resume`, or `ckpt_path`. None for the beginning.

    A finished run is evaluated without the parts of training: `optimization`, `callbacks` and `loggers` are empty then.
    """

    settings: dict[str, Any]
    seed: int
    tags: list[str]
    ckpt_path: str | None
    resume: str | None
    task_class: Any
    task: Any
    groups: Mapping[str, Any]
    model_class: Any
    model: Any
    start: StartConfig
    attention: dict[str, Any]
    sites: Mapping[str, bool]
    label: str
    source: Part
    data: DataConfig
    cleaning: CleaningConfig
    tokenizer: Part
    paths: PathsConfig
    trainer: TrainerConfig
    run: RunSettings
    optimization: Any = None
    callbacks: Mapping[str, Part] = field(default_factory=dict)
    loggers: Mapping[str, Part] = field(default_factory=dict)
    checkpoint: Path | None = None

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

    def __iter__(self) -> Iterator[str]:
        return iter(self.settings)

    def __len__(self) -> int:
        return len(self.settings)


def leaves(cfg: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """('trainer.max_steps', value) for every value of a nested dict."""
    for key, value in cfg.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
