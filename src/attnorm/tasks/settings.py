"""The options that tasks share: of the task itself, of its data, and of the model that it starts from."""

from dataclasses import dataclass
from typing import Literal

from attnorm.schema import Count, FolderName, Text, WholeNumber


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """Options that every task has.

    name:        name of the folder that contains the task's runs.
    max_steps:   number of updates, if neither trainer.max_steps nor trainer.max_epochs is set.
    validations: number of validations, evenly spaced over the run, with the last one at its end.
    selection:   the validation examples on which the best checkpoint is selected: a fixed "half" of them, so that
                 comparisons of runs can use the other half, or "all".
    """

    name: FolderName
    max_steps: Count = 1000
    validations: Count = 5
    selection: Literal["half", "all"] = "half"


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
    """Keys of `model` that are used here.

    init: a BERT model or a run folder whose weights initialize the model.
    """

    init: Text | None = None
