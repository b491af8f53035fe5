"""The base class of every task: it builds the parts of a run (data, model, loss, scores) from a configuration."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.utils.data import Dataset

from attnorm.data import validation as checks
from attnorm.data.featurizer import Layout
from attnorm.data.preprocess import Split, prepare
from attnorm.data.sampler import TokenBatches
from attnorm.data.sources.base import Source, build_source
from attnorm.errors import ConfigError
from attnorm.imports import find
from attnorm.models.config import Shape
from attnorm.optim import Optim
from attnorm.progress import tracked
from attnorm.tasks import RECIPES
from attnorm.tasks.module import TaskModule
from attnorm.tasks.results import Results


class Recipe(ABC):
    """One task. With `training.train` the only place that knows both data and models.

    models: the names of `MODELS` that it trains. kind: of `KINDS`, what its data source has to yield. unit: what a
    split consists of, in a person's words.
    """

    models: ClassVar[tuple[str, ...]]
    kind: ClassVar[str]
    unit: ClassVar[str]

    def __init__(self, cfg: dict):
        self.cfg = cfg

    @abstractmethod
    def layout(self) -> Layout:
        """How texts become rows of ids."""

    @abstractmethod
    def model(self, tokenizer) -> torch.nn.Module:
        """The configured model with its initial parameters."""

    @abstractmethod
    def task(self, model: torch.nn.Module, tokenizer, validation: Split) -> TaskModule:
        """The LightningModule around a model."""

    @abstractmethod
    def batches(self, split: Split) -> Dataset:
        """`Part` -> the tensors that the task wants."""

    def problems(self, sound: Callable[..., bool]) -> Iterator[str]:
        """What is wrong with the task's own keys taken together; `sound(*keys)` says whether each is right alone."""
        yield from ()

    def unread(self) -> dict[str, str]:
        """Keys that nothing reads as the others are set, and the setting that would read each."""
        return {}

    @staticmethod
    def completed(cfg: dict) -> dict:
        """The configuration with what follows from it for this task."""
        return cfg

    def data_fingerprints(self, splits: dict[str, Split]) -> dict[str, str]:
        """What stands for the content of each split, so that a resumed run can tell whether its data are the same."""
        return {name: split.fingerprint for name, split in splits.items()}

    def notes(self) -> str:
        """A line on the data that a user should see; may be empty."""
        return ""

    def save(self, folder: Path) -> None:  # noqa: B027 - most have nothing
        """Keeps in a run folder what the model has to know of its training data besides the tokenizer."""

    def load(self, folder: Path) -> None:  # noqa: B027
        """Takes it from there."""

    def cache(self) -> Path:
        """Where prepared data is kept."""
        return Path(self.cfg["paths"]["cache_dir"])

    def source(self) -> Source:
        """The configured source of data."""
        return build_source(self.cfg["data"]["name"], **source_settings(self.cfg))

    def splits(
        self,
        tokenizer=None,
        names: tuple[str, ...] = ("train", "validation"),
        cleaner: Source | None = None,
    ) -> dict[str, Split]:
        """The tokenized splits; without a tokenizer the configured one is trained or loaded. cleaner: the source that
        cleans the texts, if not the configured one."""
        data = self.cfg["data"]
        return prepare(
            self.source(),
            tokenizer or self.cfg["tokenizer"],
            self.layout(),
            lowercase=data.get("lowercase", False),
            digits=data.get("digits", False),
            max_rows={"train": data["max_train"], "validation": data["max_valid"], "test": data["max_test"]},
            cache_dir=self.cache(),
            splits=names,
            cleaner=cleaner,
        )

    def shape(self) -> Shape:
        """The shape of the model, as the configuration has it."""
        return build_settings(Shape, "model", self.cfg, NOT_SHAPE)

    def optim(self) -> Optim:
        """The optimizer's settings."""
        return build_settings(Optim, "optim", self.cfg)

    @torch.no_grad()
    def evaluate(self, task: TaskModule, split: Split) -> dict[str, float]:
        """The metrics of a model on a whole split, in the precision of its parameters; keeps `task.examples`, in the
        order of the rows."""
        task.eval()
        task.begin_validation(keep_examples=True)
        batches, device = self.batches(split), next(task.parameters()).device
        parts = TokenBatches(split.lengths, self.cfg["data"]["batch_tokens"], weights=split.weights, shuffle=False)
        for number, part in enumerate(tracked(list(parts), split.name)):
            task.validation_step({name: tensor.to(device) for name, tensor in batches[part].items()}, number)
        task.sort_examples()
        return task.metrics()

    def score(self, task: TaskModule, split: Split) -> Results:
        """What `eval.py` and the end of training report: the validation metrics of the whole split."""
        return Results(split.name, self.unit, len(split.texts), self.evaluate(task, split), samples=task.samples)


SHARED_DATA_KEYS = (  # keys of `data` that every source shares: cleaning and batching
    *("lowercase", "digits", "max_train", "max_valid", "max_test", "batch_tokens", "num_workers"),
)
NOT_SHAPE = ("name", "init", "vocab_size")  # keys of `model` that are no part of its shape


def build_settings(cls: type, group: str, cfg: dict, without: tuple[str, ...] = ()) -> Any:
    """`cls` with the keys of a group. Raises ConfigError that names keys that are missing, or that it does not have."""
    settings = {name: value for name, value in cfg[group].items() if name not in without}
    if problems := checks.option_problems(group, f"{group}={cfg[group].get('name', group)}", cls, settings):
        raise ConfigError(problems)
    return cls(**settings)


def source_settings(cfg: dict) -> dict:
    """The keys of `data` that belong to its source, not to batching and cleaning."""
    return {key: value for key, value in cfg["data"].items() if key not in ("name", *SHARED_DATA_KEYS)}


def completed(cfg: dict) -> dict:
    """The configuration with what follows from it for its task; as it is where there is no such task."""
    name = cfg["task"].get("name")
    known = isinstance(name, str) and name in RECIPES
    return find("task", name, RECIPES, Recipe).completed(cfg) if known else cfg


def recipe_of(cfg: dict, run: Path | None = None) -> Recipe:
    """The recipe of the configured task; of a run, with what its folder keeps of the training data."""
    recipe = find("task", cfg["task"]["name"], RECIPES, Recipe)(cfg)
    if run is not None:
        recipe.load(run)
    return recipe
