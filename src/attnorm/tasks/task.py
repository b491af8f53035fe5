"""The base class of all tasks. A task builds the parts of a run (data, model, loss, metrics) from a configuration."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, get_type_hints
from unicodedata import normalize

import torch
from torch import Tensor
from torch.utils.data import Dataset

from attnorm.data.arrow import cleaned
from attnorm.data.featurizer import Featurizer
from attnorm.data.preprocess import Split, prepare
from attnorm.data.sampler import TokenBatches
from attnorm.data.sources.base import RowSchema, Source
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import ConfigError, Problem, UserError
from attnorm.parts import Part
from attnorm.progress import tracked
from attnorm.settings import Settings, TaskConfig
from attnorm.tasks.module import ModelT, TaskModule
from attnorm.tasks.ranks import Ranks
from attnorm.tasks.results import Results, hash_of

Tokens = Callable[[str], tuple[list[str], list[str]]]  # label of a layer -> the tokens of its queries and of its keys
ModuleT = TypeVar("ModuleT", bound=TaskModule)


class Task(ABC, Generic[ModelT, ModuleT]):
    """A task builds the data and the model of a run, with its loss and its metrics, from a configuration.

    To add a task, write a subclass and name it with `_target_` in a YAML file of the group `task`.

    Config:      a dataclass that extends TaskConfig. Its fields are the keys of `task`.
    groups:      further groups of keys at the top level, each with a dataclass: {"decoding": Decoding}. `cfg.groups`
                 has an instance of each.
    interface:   the interface of the models that the task trains, see `attnorm.models`.
    schema:      the row schema that its data source must have.
    unit:        what a split consists of, in the plural.
    grouping:    the column with the groups of the rows, see `row_groups`; None: each row is a group by itself.
    primary:     the metric of single examples on which runs are compared; None: the one that selects the best model.
    scoring:     keys that only affect how a model is scored. They can be changed when a finished run is evaluated.
    monitoring:  keys that only affect what is shown during training. They can be changed when a run is resumed.
    measured:    metrics of every validation besides the loss, each with whether "min" or "max" of it is best.
    sampled:     metrics of those validations in which the keys `monitoring` are above 0; "max" is best.
    budget:      keys of `model` whose sum is the largest number of tokens of an example, and this number in words.
    """

    Config: ClassVar[type[TaskConfig]] = TaskConfig
    groups: ClassVar[dict[str, type]] = {}
    interface: ClassVar[str]
    schema: ClassVar[RowSchema]
    unit: ClassVar[str]
    grouping: ClassVar[str | None] = None
    primary: ClassVar[str | None] = None
    scoring: ClassVar[tuple[str, ...]] = ()
    monitoring: ClassVar[tuple[str, ...]] = ()
    measured: ClassVar[Mapping[str, str]] = {}
    sampled: ClassVar[tuple[str, ...]] = ()
    budget: ClassVar[tuple[tuple[str, ...], str]] = ((), "")

    def __init__(self, cfg: Settings):
        self.cfg = cfg
        self.config: Any = cfg.task  # the keys of `task` as an instance of `Config`

    @abstractmethod
    def featurizer(self) -> Featurizer:
        """The featurizer, which converts texts to rows of ids."""

    def model(self, tokenizer: Tokenizer) -> Any:
        """Builds the configured model with its initial parameters."""
        return self.build_model(tokenizer)

    @abstractmethod
    def module(self, model: ModelT, tokenizer: Tokenizer, validation: Split) -> ModuleT:
        """The model with its loss and its metrics."""

    @classmethod
    def provides(cls, model: type) -> tuple[str, ...]:
        """The facts that a model of this class passes to priors in this task (`attnorm.attention.priors`)."""
        return tuple(getattr(model, "provides", ()))

    @classmethod
    def objective(cls) -> tuple[str, str] | None:
        """The metric that selects the best model, and whether "min" or "max" of it is best: those of the class that
        `module` is annotated to return. None without such an annotation."""
        try:
            module = get_type_hints(cls.module).get("return")
        except NameError:  # an annotation that is only valid for a type checker
            return None
        return (module.monitor, module.mode) if isinstance(module, type) and issubclass(module, TaskModule) else None

    def monitors(self) -> dict[str, str]:
        """The metrics of every validation, each with whether "min" or "max" of it is best."""
        monitor, mode = self.objective() or ("val/loss", "min")
        samples = self.sampled and all(getattr(self.config, key.removeprefix("task.")) for key in self.monitoring)
        sampled = dict.fromkeys(self.sampled if samples else (), "max")
        return {monitor.removeprefix("val/"): mode, "loss": "min", **self.measured, **sampled}

    @property
    def selector(self) -> tuple[str, str] | None:
        """The metric that selects the best model of this run, as in `objective`."""
        name = self.config.monitor
        return (f"val/{name}", self.monitors()[name]) if name else self.objective()

    @classmethod
    def primary_metric(cls) -> str | None:
        """The name of the metric on which runs are compared, without the name of a split."""
        objective = cls.objective()
        return cls.primary or (objective[0].rpartition("/")[2] if objective else None)

    @abstractmethod
    def collator(self, split: Split) -> Dataset:
        """The dataset that maps a `MicroBatch` to the tensors of a batch."""

    def problems(self) -> Iterator[str]:
        """Problems with combinations of keys. By themselves, all of them are valid."""
        keys, what = self.budget
        least = sum(getattr(self.cfg.model, key.removeprefix("model."), 0) or 0 for key in keys)
        yield from self.budget_problems(least, what)

    def budget_problems(self, least: int, what: str) -> Iterator[Problem]:
        """Problems with `data.batch_tokens` if one example may have `least` tokens. what: that number in words."""
        if (tokens := self.cfg.data.batch_tokens) < least:
            yield Problem("data.batch_tokens", f"must be at least {least}, {what}", tokens)

    def ignored_keys(self) -> dict[str, str]:
        """Keys that have no effect with the current settings, each with the setting that would give it an effect."""
        return {}

    @staticmethod
    def completed(cfg: dict) -> dict:
        """Returns the configuration with the values that follow from it for this task."""
        return cfg

    def data_fingerprints(self, splits: dict[str, Split]) -> dict[str, str]:
        """A fingerprint of the content of each split, used to check that a resumed run has the same data."""
        return {name: split.fingerprint for name, split in splits.items()}

    def notes(self) -> str:
        """A line about the data for the user; may be empty."""
        return ""

    def save(self, folder: Path) -> None:
        """Saves, in a run folder, what the model needs to know about its training data in addition to the tokenizer."""

    def load(self, folder: Path) -> None:
        """Restores what `save` has written."""

    def clean(self, text: str, cleaner: Source) -> str:
        """What a user types as an input, cleaned by this source and in the way that the texts of the data are.

        If the data are not cleaned, only the white space around it is removed: the input may be the path of an image.
        """
        words = self.schema.words
        if not words or words[0] not in self.schema.cleaned:
            return text.strip()
        return cleaned(text, words[0], cleaner, **vars(self.cfg.cleaning))

    def while_decoding(self, model: ModelT) -> AbstractContextManager:
        """The context in which a model writes texts for the user and is read. A subclass may change the model in it."""
        return nullcontext()

    def generate(self, model: ModelT, tokenizer: Tokenizer, texts: list[str]) -> list[str]:
        """Generates one text for each of the given cleaned texts."""
        raise UserError(f"task={self.config.name}: its models do not generate text")

    def attended(self, model: ModelT, tokenizer: Tokenizer, text: str) -> tuple[tuple[Tensor, ...], Tokens]:
        """The input tensors with which the model reads one cleaned text, and the tokens of its attention."""
        message = f"task={self.config.name}: its models need more input than a text"
        if type(self).attended_example is not Task.attended_example:
            message += "; give the id of a validation example as example"
        raise ConfigError([Problem("text", message)])

    def attended_example(self, model: ModelT, split: Split, row: int) -> tuple[tuple, Tokens]:
        """The arguments with which the model reads one row of a split, as a batch, and the tokens of its attention."""
        raise ConfigError([Problem("example", f"task={self.config.name}: its models read a text; give a text instead")])

    def example_ids(self, split: Split, rows: Sequence[int]) -> list[str]:
        """The ids of rows of a split, as in the table of predictions: those of the source, or else the row numbers."""
        if "id" in split.texts.column_names and len(split.texts) == len(split):
            return list(split.texts[list(rows)]["id"])
        return list(map(str, rows))

    def input_hashes(self, split: Split) -> list[str]:
        """A hash of what the model is given of each example, in the order of the table of predictions.

        It depends on the cleaned data alone, not on the tokenizer or the model, so that runs can only be compared on
        the same inputs. If the model is also given an image, the hash of the image follows after a hyphen.
        """
        return [hash_of(row) for row in split.texts.select_columns(list(self.schema.columns))]

    def row_hashes(self, split: Split) -> list[str]:
        """A hash of each row, by which the same row is recognized in another split, under any id and in any case and
        Unicode form; [] if not known."""
        columns = [name for name in self.schema.columns if name not in ("id", "group")]
        batches = split.texts.select_columns(columns).iter(1000)  # three times as fast as row by row
        rows = (row for batch in batches for row in zip(*map(batch.get, columns), strict=True))
        named = (dict(zip(columns, row, strict=True)) for row in rows)
        return [hash_of(row | {it: normalize("NFKC", row[it]).casefold() for it in self.schema.words}) for row in named]

    def row_groups(self, split: Split) -> Sequence[object]:
        """The group of each row, such as its image, as in the column `group` of predictions; or its number.

        The rows of a group are either all used to select the best checkpoint, or all used to compare runs.
        """
        return range(len(split)) if self.grouping is None else list(split.texts[self.grouping])

    def selecting(self, split: Split) -> set[str]:
        """The groups of the validation split on which the best checkpoint is selected, see `selection_half`."""
        groups = set(map(str, self.row_groups(split)))
        return selection_half(groups) if self.config.selection == "half" else groups

    def cache(self) -> Path:
        """The folder for prepared data."""
        return Path(self.cfg.paths.cache_dir)

    def source(self) -> Source:
        """The configured source of data."""
        return self.cfg.source.build()

    def splits(
        self,
        tokenizer: Tokenizer | None = None,
        names: tuple[str, ...] = ("train", "validation"),
        cleaner: Source | None = None,
    ) -> dict[str, Split]:
        """Returns the tokenized splits. If no tokenizer is given, the configured one is trained or loaded.

        cleaner: the source whose `clean` is applied to the texts, if it is not the configured one.
        """
        data = self.cfg.data
        return prepare(
            self.source(),
            tokenizer or self.cfg.settings["tokenizer"],
            self.featurizer(),
            **vars(self.cfg.cleaning),
            max_rows={"train": data.max_train, "validation": data.max_valid, "test": data.max_test},
            cache_dir=self.cache(),
            splits=names,
            cleaner=cleaner,
        )

    def build_model(self, tokenizer: Tokenizer, cls: Any = None, **facts: Any) -> Any:
        """Builds the configured model, or an instance of `cls` with the same configuration, with initial parameters.

        facts: values that only the task knows, besides vocab_size and pad_id, those of the tokenizer. Only those that
               the model takes are passed.
        """
        words = {"vocab_size": tokenizer.vocab_size, "pad_id": tokenizer.pad_id}
        facts = {"attention": self.cfg.attention, "seed": self.cfg.seed, **words, **facts}
        options = {"shape": self.cfg.model} if hasattr(self.cfg.model_class, "Config") else vars(self.cfg.model)
        return Part(cls or self.cfg.model_class, options).build(**facts)

    @torch.no_grad()
    def evaluate(self, module: ModuleT, split: Split) -> dict[str, float]:
        """Computes the metrics of a model on a whole split, in the precision of its parameters.

        If several processes train together, each of them evaluates its share of the batches, and all have the result.
        The values of single examples are stored in `module.examples`, in the order of the rows.
        """
        module.model.eval()
        module.begin_validation(keep_examples=True)
        batches, device, ranks = self.collator(split), next(module.model.parameters()).device, Ranks.present()
        parts = TokenBatches(split.lengths, self.cfg.data.batch_tokens, weights=split.weights, shuffle=False)
        samples: dict[int, list[dict[str, str]]] = {}
        for number, part in tracked(ranks.share(list(parts)), split.name):
            module.samples = samples[number] = []
            module.validation_step({name: tensor.to(device) for name, tensor in batches[part].items()}, number)
            samples[number] = module.samples
        module.samples = [sample for of_batch in ranks.gather_items(samples) for sample in of_batch]
        module.gather(ranks)
        return module.metrics()

    def score(self, module: ModuleT, split: Split) -> Results:
        """The results that `eval.py` and the end of training report: the validation metrics of the whole split."""
        return Results(split.name, self.unit, len(split.texts), self.evaluate(module, split), samples=module.samples)


def selection_half(groups: Iterable[str]) -> set[str]:
    """A fixed half of the groups: those with the smaller hashes, one more than half if their number is odd.

    The hash depends on nothing but the name of the group, so all runs on the same data have the same half. The score
    of the selected checkpoint on this half is too good, because it was selected for it; the other half is unaffected.
    """
    ranked = sorted(set(groups), key=lambda group: hashlib.sha256(group.encode()).digest())
    return set(ranked[: (len(ranked) + 1) // 2])


def task_of(cfg: Settings, run: Path | None = None) -> Task:
    """Returns the configured task. If `run` is given, what its folder contains about the training data is restored."""
    task: Task = cfg.task_class(cfg)
    if run is not None:
        task.load(run)
    return task
