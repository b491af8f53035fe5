"""What the tasks that predict one label per example share: features, loss, accuracy, predictions and the baseline."""

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from attnorm.attention.transfer import on_cpu
from attnorm.data import validation as checks
from attnorm.data.featurizer import Encoded, Featurizer, Table
from attnorm.data.preprocess import Split
from attnorm.data.readers.text import read_json
from attnorm.data.sampler import TokenBatches
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import DataError, Problem, RunError
from attnorm.models.interfaces import LabelModel
from attnorm.schema import Positive
from attnorm.settings import TaskConfig
from attnorm.tasks.macro_f1 import MacroF1, macro_f1
from attnorm.tasks.module import Loss, ModelT, TaskModule
from attnorm.tasks.results import Predictions, Results
from attnorm.tasks.task import Task

SHOWN = 5  # samples
FILE = "labels.json"


class LabelFeaturizer(Featurizer):
    """One row per example, with the number of its label in the column `label`.

    A subclass implements `settings`, `columns`, `inputs` and `describe`.

    labels:  the names of the labels, whose order defines their numbers.
    unknown: the message about another label.
    """

    unknown = "data: label {!r} is not one that the model was trained on"

    def __init__(self, labels: Sequence[str]):
        self.labels = list(labels)

    @abstractmethod
    def inputs(self, texts: dict[str, list[str]], tokenizer: Tokenizer) -> tuple[dict[str, list], dict[str, int]]:
        """The other columns of the rows, and counts that are summed over the split."""

    def encode(self, texts: dict[str, list[str]], first: int, tokenizer: Tokenizer) -> Encoded:
        numbers = {name: number for number, name in enumerate(self.labels)}
        if unknown := sorted(set(texts["label"]) - numbers.keys()):
            raise DataError(checks.unknown_name(self.unknown.format(unknown[0]), unknown[0], self.labels))
        columns, counts = self.inputs(texts, tokenizer)
        examples = Counter(texts["label"])
        counts |= {f"label {name}": examples[name] for name in self.labels}
        return {**columns, "label": [numbers[name] for name in texts["label"]]}, counts

    def shares(self, counts: dict[str, int]) -> str:
        """The share of each label in a split: "yes 50.0%, no 50.0%"."""
        return ", ".join(f"{name} {counts[f'label {name}'] / counts['kept']:.1%}" for name in self.labels)


class LabelModule(TaskModule[LabelModel]):
    """Cross-entropy over the labels; accuracy and macro F1. A batch contains `labels`, int (B,).

    inputs: the names of the tensors of a batch that the model reads.
    texts:  the validation split, row by row. labels: the names of the labels, by number.
    weights: what the loss of an example of each label is multiplied by in training; None: it is the plain loss.
    """

    inputs: tuple[str, ...]

    monitor, mode = "val/accuracy", "max"
    counters = ("loss", "rows", "correct")
    line, sampled_line = "accuracy {accuracy:.1f}", "  macro F1 {macro_f1:.1f}"

    def __init__(
        self,
        model: LabelModel,
        tokenizer: Tokenizer,
        texts: Table,
        labels: Sequence[str],
        weights: Sequence[float] | None = None,
    ):
        super().__init__(model, tokenizer)
        self.texts, self.labels = texts, list(labels)
        self.weights = None if weights is None else torch.tensor(weights)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Scores (B, labels)."""
        return self.model(*[batch[name] for name in self.inputs]).float()

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        if self.weights is None:
            return super().loss(batch)
        scores, labels = self(batch), batch["labels"]
        weighted = F.cross_entropy(scores, labels, self.weights.to(scores, non_blocking=True), reduction="sum")
        return Loss(weighted, len(labels), F.cross_entropy(scores, labels, reduction="sum"))

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        scores, labels = self(batch), batch["labels"]
        guesses = scores.argmax(-1)
        loss, correct = F.cross_entropy(scores, labels, reduction="sum"), (guesses == labels).sum()
        rows, guesses, loss, correct = on_cpu(batch["rows"], guesses, loss, correct)
        self.outputs += zip(rows.tolist(), guesses.tolist(), strict=True)
        self.add(loss=loss.item(), rows=len(guesses), correct=correct.item())
        if self.keep_examples:
            self.record(batch["rows"], loss_sum=F.cross_entropy(scores, labels, reduction="none"))

    def predictions(self) -> dict[int, str]:
        """The predicted label of each evaluated row, in the order of the rows."""
        return {row: self.labels[number] for row, number in sorted(self.outputs)}

    def metrics(self) -> dict[str, float]:
        """loss (nats per row), and accuracy and macro F1 in percent."""
        predicted, references = self.predictions(), list(self.texts["label"])
        for row, label in list(predicted.items())[:SHOWN]:
            texts = {name: text for name, text in self.texts[row].items() if text}
            self.samples.append({**texts, "predicted": label})
        accuracy = 100.0 * self.sums["correct"] / self.sums["rows"]
        found = macro_f1([references[row] for row in predicted], list(predicted.values()))
        return {"loss": self.sums["loss"] / self.sums["rows"], "accuracy": accuracy, "macro_f1": found}


@dataclass(frozen=True, kw_only=True)
class LabelConfig(TaskConfig):
    """Options of the tasks that predict a label.

    class_weights: what the loss of an example of each label is multiplied by in training: numbers, in the order of the
                   labels; "balanced": the number of training examples divided by those of this label and by the number
                   of labels, so that all labels count alike; None: 1. The loss of a validation has no weights.
    """

    class_weights: Literal["balanced"] | tuple[Positive, ...] | None = None


LabelModuleT = TypeVar("LabelModuleT", bound=LabelModule)


class LabelTask(Task[ModelT, LabelModuleT]):
    """A task that predicts one label per example. `labels` are the names of the labels, by number."""

    Config = LabelConfig
    primary = "accuracy"
    measured: ClassVar[dict[str, str]] = {"macro_f1": "max"}
    labels: Any
    train_counts: Mapping[str, int] | None = None  # of the training split, once it has been read

    def splits(self, *arguments: Any, **options: Any) -> dict[str, Split]:
        splits = super().splits(*arguments, **options)
        if "train" in splits:
            self.train_counts = splits["train"].counts
        return splits

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        weights = self.config.class_weights if self.cfg.optimization else None  # training plays no part in scoring
        if isinstance(weights, tuple) and len(weights) != len(self.labels):
            allowed = f"allowed: balanced, or a number for each of the labels {', '.join(self.labels)}"
            yield Problem("task.class_weights", allowed, list(weights))

    def class_weights(self) -> Sequence[float] | None:
        """`task.class_weights` as numbers; None for 1, and for a task that has not read its training split."""
        if self.config.class_weights != "balanced":
            return self.config.class_weights
        if self.train_counts is None:
            return None
        counts = [self.train_counts[f"label {name}"] for name in self.labels]
        each = sum(counts) / sum(count > 0 for count in counts)
        return [each / count if count else 1.0 for count in counts]

    def input_texts(self, split: Split) -> list[str] | None:
        """What the model reads, row by row, if it is text."""
        return None

    def score(self, module: LabelModuleT, split: Split) -> Results:
        """Loss, accuracy and macro F1, and the predicted label of each row."""
        scores = super().score(module, split)
        labels, predicted = list(split.texts["label"]), module.predictions()
        label, count = Counter(labels).most_common(1)[0]
        constant = {"accuracy": 100.0 * count / scores.size, "macro_f1": macro_f1(labels, [label] * len(labels))}
        scores.baselines = {f"always {label}": constant}
        scores.predictions = Predictions(
            ids=self.example_ids(split, list(predicted)),
            groups=self.row_groups(split),
            inputs=self.input_texts(split),
            references=labels,
            outputs=list(predicted.values()),
            scores={"accuracy": [100.0 * (labels[row] == guess) for row, guess in predicted.items()]},
            loss_sum=module.examples["loss_sum"],
            n_tokens=[1] * len(predicted),
            corpus_metrics={"macro_f1": MacroF1},
        )
        lines = [json.dumps({"row": row, "label": guess}) for row, guess in predicted.items()]
        scores.files = {".labels.jsonl": "\n".join(lines) + "\n"}
        return scores


class SourceLabelTask(LabelTask[LabelModel, LabelModuleT]):
    """A task whose data source has `labels`, the names of the labels, and rows with a column `label`.

    The labels, and what else a subclass adds to `data_properties`, are kept in the run folder in labels.json.
    """

    @cached_property
    def data_properties(self) -> dict[str, Any]:
        """What the model must know about the data that it was, or will be, trained on, as values of a JSON file."""
        source: Any = self.source()
        return {"labels": list(source.labels)}

    @property
    def labels(self) -> list[str]:
        """The names of the labels, by number."""
        return self.data_properties["labels"]

    def save(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(self.data_properties, ensure_ascii=False) + "\n", encoding="utf-8")

    def load(self, folder: Path) -> None:
        path = folder / FILE
        try:
            self.data_properties = dict(read_json(path))
            if not all(isinstance(name, str) for name in self.data_properties["labels"]):
                raise DataError(f"{path}: expected labels, a list of names")
        except (KeyError, TypeError) as error:
            raise RunError(f"{path}: expected an object with labels") from error
        except (ValueError, OSError, RecursionError) as error:
            raise RunError(str(error)) from error


@torch.no_grad()
def classified(
    task: Task,
    model: LabelModel,
    tokenizer: Tokenizer,
    texts: dict[str, list[str]],
    collator: Callable[[Split], Dataset] | None = None,
    *,
    labels: Sequence[str],
    independent: bool = False,
    most: int | None = None,
    split_name: str = "input",
) -> list[str]:
    """For each example the predicted label and the probabilities of the labels, the largest first, as JSON.

    texts:    the columns of the rows, as from a source; any label stands for the unknown ones.
    collator: that of the rows, by default `task.collator`.
    labels:   their names, by number. independent: whether each has a probability by itself.
    most:     the number of labels whose probabilities are given; None for all.
    """
    from datasets import Dataset as Rows

    layout = task.featurizer()
    columns, counts = layout.encode(texts, 0, tokenizer)
    rows = Rows.from_dict(dict(columns))
    sizes = layout.lengths(rows), layout.weights(rows)
    split = Split(split_name, "", Rows.from_dict(texts), rows, counts, *sizes, tokenizer)
    module = task.module(model, tokenizer, split)
    batches, device, written = (collator or task.collator)(split), next(model.eval().parameters()).device, {}
    for part in TokenBatches(split.lengths, task.cfg.data.batch_tokens, weights=split.weights, shuffle=False):
        scores = module({name: tensor.to(device) for name, tensor in batches[part].items()})
        probabilities = scores.sigmoid() if independent else scores.softmax(-1)
        for row, shares in zip(part.rows, probabilities.tolist(), strict=True):
            ranked = sorted(zip(labels, shares, strict=True), key=lambda pair: -pair[1])
            named = {label: round(share, 6) for label, share in ranked[:most]}
            written[row] = json.dumps({"label": ranked[0][0], "probabilities": named}, ensure_ascii=False)
    return [written[row] for row in sorted(written)]
