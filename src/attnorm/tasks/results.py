"""The results of an evaluation: metrics, baselines and predictions, for the screen and for files."""

import hashlib
import json
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from attnorm.errors import DataError
from attnorm.files import replacing
from attnorm.wording import counted, listed

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from torch import Tensor

NAMES = {"f1": "F1", "macro_f1": "macro F1", "exact": "exact match"} | {
    f"rouge{kind}{ending}": f"ROUGE-{kind} {part}"
    for ending, part in (("", "F1"), ("_recall", "recall"), ("_precision", "precision"))
    for kind in ("1", "2", "L", "Lsum")
}
NAMES |= {
    "bits_per_byte": "bits per byte",
    "loss_1x": "loss at [0, L)",
    "loss_2x": "loss at [L, 2L)",
    "loss_4x": "loss at [2L, 4L)",
    "loss_8x": "loss at [4L, 8L)",
}
NATS_OR_BITS = {"loss", "bits_per_byte", "loss_1x", "loss_2x", "loss_4x", "loss_8x"}  # written with more digits
LOWER_IS_BETTER = {*NATS_OR_BITS, "perplexity"}
HIGHER_IS_BETTER = {*NAMES.keys() - LOWER_IS_BETTER, "score", "accuracy", "BLEU", "BLEU-4", "chrF", "CIDEr-D"}
UNDEFINED = 0.01  # the share of references from which a metric that is not defined for them says nothing
CORPUS_METRICS = b"attnorm.corpus_metrics"  # in the metadata of a table: JSON {metric: dotted path of its class}
CHECKPOINT = b"attnorm.checkpoint"  # in the metadata of a table: JSON of `Predictions.checkpoint`
LONGEST_INPUT = 1_000  # characters; if an input of the split is longer, the table has no column for inputs


class CorpusMetric(ABC):
    """A metric of a whole split that is no mean over its examples, such as BLEU.

    It is a function of sums over examples. The table of predictions stores what is summed, so that runs can be compared
    (`analysis.scores`) on any part of the split.

    columns: the names of the statistics whose sums determine the metric, or of what `sums` computes them from.
    """

    columns: ClassVar[tuple[str, ...]]

    @classmethod
    def sums(cls, rows: Any) -> "np.ndarray":
        """The statistics of each example, float64 (n, s), from the table of predictions, a DataFrame."""
        import numpy as np

        return rows[list(cls.columns)].to_numpy(np.float64)

    @staticmethod
    @abstractmethod
    def of(totals: "np.ndarray") -> "np.ndarray":
        """The metric from sums, (..., number of columns) -> (...), in the units of the results."""


@dataclass
class Predictions:
    """The examples of a split, with one entry per example in every field.

    ids: from the source, or row numbers. groups: what examples have in common, such as an image; None: the ids.
    inputs: what the model reads. They are omitted from the table if one has more than LONGEST_INPUT characters.
    references, outputs: a text or a list of texts for each example.
    scores: per-example values of the metrics, in percent; None if a metric is not defined for an example.
    loss_sum: the loss in nats. n_tokens: the number of tokens (or rows) of the example over which the loss is summed.
    statistics: further values from which metrics of the whole split can be computed.
    corpus_metrics: the metrics of the whole split that are computed from the statistics, by name.
    selecting: the groups on which the best checkpoint was selected; None for a split on which none was.
    input_hashes: a hash of what the model is given of each example, see `Task.input_hashes`; None if not known.
    checkpoint: the update of the checkpoint that was scored, and its SHA-256; None if not known.
    """

    ids: Sequence[object]
    references: Sequence[str] | Sequence[list[str]]
    outputs: Sequence[str] | Sequence[list[str]]
    scores: Mapping[str, Sequence[float | None]]
    loss_sum: Sequence[float | None]
    n_tokens: Sequence[int]
    statistics: Mapping[str, Sequence] = field(default_factory=dict)
    corpus_metrics: Mapping[str, type[CorpusMetric]] = field(default_factory=dict)
    groups: Sequence[object] | None = None
    inputs: Sequence[str] | None = None
    selecting: Container[str] | None = None
    input_hashes: Sequence[str] | None = None
    checkpoint: Mapping[str, object] | None = None

    def table(self) -> "pa.Table":
        """The columns id, group, input (if short), input_hash, reference, output, the scores, loss_sum, n_tokens,
        statistics, and selecting (whether the checkpoint was selected on the example)."""
        import pyarrow as pa

        groups = self.ids if self.groups is None else self.groups
        columns = {name: pa.array(map(str, of), pa.string()) for name, of in (("id", self.ids), ("group", groups))}
        if self.inputs is not None and max(map(len, self.inputs), default=0) <= LONGEST_INPUT:
            columns["input"] = pa.array(self.inputs, pa.string())
        if self.input_hashes is not None and len(self.input_hashes) == len(self.ids):
            columns["input_hash"] = pa.array(self.input_hashes, pa.string())
        columns |= {"reference": _texts(self.references), "output": _texts(self.outputs)}
        columns |= {name: pa.array(values, pa.float64()) for name, values in self.scores.items()}
        columns |= {"loss_sum": pa.array(self.loss_sum, pa.float64()), "n_tokens": pa.array(self.n_tokens, pa.int64())}
        columns |= {name: pa.array(values) for name, values in self.statistics.items()}
        if self.selecting is not None:
            columns["selecting"] = pa.array([group in self.selecting for group in columns["group"].to_pylist()])
        paths = {name: f"{metric.__module__}.{metric.__name__}" for name, metric in self.corpus_metrics.items()}
        metadata = {CORPUS_METRICS: json.dumps(paths)} if paths else {}
        if self.checkpoint is not None:
            metadata[CHECKPOINT] = json.dumps(dict(self.checkpoint))
        return pa.table(columns, metadata=metadata or None)

    def write(self, path: Path) -> None:
        """Writes the table atomically as a parquet file. Creates its folder."""
        import pyarrow.parquet as parquet

        with replacing(path) as unfinished, open(unfinished, "wb") as file:  # a folder whose name is no UTF-8 is fine
            parquet.write_table(self.table(), file)


def direction(metric: str, declared: Mapping[str, str] | None = None) -> int:
    """1 if a higher value of the metric is better, -1 if a lower one is.

    declared: what a task says of its own metrics ("min" or "max"). A higher value of others is better, except of a loss
    or a perplexity.
    """
    return -1 if (declared or {}).get(metric, "min" if metric in LOWER_IS_BETTER else "max") == "min" else 1


def monitor_directions(monitors: Mapping[str, str]) -> dict[str, str]:
    """What schedulers and callbacks may watch, each with whether "min" or "max" of it is best: the metrics of every
    validation (`Task.monitors`), and for callbacks also those of the latest update."""
    of_updates = {"train/loss": "min", "train/gradient_norm": "min", "train/lr": "min", "step": "max"}
    return {f"val/{name}": mode for name, mode in monitors.items()} | of_updates


def _texts(values: Sequence) -> "pa.Array":
    """An array of strings or of lists of strings, with an explicit type because empty lists do not define one."""
    import pyarrow as pa

    several = any(isinstance(value, list) for value in values)
    return pa.array(values, pa.list_(pa.string()) if several else pa.string())


@dataclass
class Results:
    """Metrics of a model on a split, and of the baselines that it should beat.

    unit, size:  what the split consists of (for example "pairs"), and how many of them there are.
    metrics:     metrics by name. Losses are in nats; accuracies, ROUGE, F1 and exact match are in percent.
    baselines:   metrics of simple methods on the same split, by method name, with the task's main metric first.
    note:        what a reader of the numbers needs to know. settings: the settings of the evaluation.
    files:       the outputs of the model, by file ending: {".txt": headlines}.
    predictions: the examples of the split, if they were kept.
    samples:     a few examples for display, as dicts of texts by label.
    extra:       further entries of the JSON file.
    """

    split: str
    unit: str
    size: int
    metrics: dict[str, float]
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    note: str = ""
    settings: dict = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    predictions: Predictions | None = None
    samples: list[dict[str, str]] = field(default_factory=list)
    extra: dict = field(default_factory=dict)

    def record(self) -> dict:
        """Plain values for a JSON file, without the outputs of the model."""
        kept = ("split", "unit", "size", "metrics", "baselines", "note", "settings")
        return {name: getattr(self, name) for name in kept} | self.extra

    def write(self, folder: Path, stem: str) -> list[str]:
        """Writes the outputs of the model into `folder` and returns the names of the files."""
        folder.mkdir(parents=True, exist_ok=True)
        for ending, content in self.files.items():
            (folder / f"{stem}{ending}").write_text(content, encoding="utf-8")
        return [f"{stem}{ending}" for ending in self.files]


def hash_of(row: Mapping[str, Any]) -> str:
    """The first 16 digits of the SHA-256 of a row of texts or numbers."""
    return hashlib.sha256(json.dumps(row, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]


def hash_of_image(*arrays: "Tensor") -> str:
    """The first 16 digits of the SHA-256 of the pixels or features of an image, with their shapes and dtypes."""
    hashed = hashlib.sha256()
    for array in arrays:
        hashed.update(repr((tuple(array.shape), str(array.dtype))).encode())
        hashed.update(array.contiguous().numpy().tobytes())
    return hashed.hexdigest()[:16]


log = logging.getLogger(__name__)


def matched(predictions: Mapping[str, str], questions: Sequence[str]) -> tuple[dict[str, str], dict[str, int]]:
    """Returns the predictions for the questions, and the numbers of `missing` and `extra` predictions.

    `missing` counts questions without a prediction, and `extra` counts predictions for other questions. Both are logged
    as warnings with a few ids.

    Raises ValueError if there are no questions, if some are repeated, and if there are predictions, but none of them is
    for any of the questions.
    """
    if not questions:
        raise DataError("there are no questions to score")
    if twice := [name for name, count in Counter(questions).items() if count > 1]:
        raise DataError(f"the references repeat questions: {listed(twice)}")
    gold = dict.fromkeys(questions)
    extra = [name for name in predictions if name not in gold]
    if extra and len(extra) == len(predictions):
        raise DataError(
            f"no prediction is for a question of the references, which have {listed(questions)}; "
            f"the predictions are for {listed(extra)}"
        )
    if extra:
        log.warning("%s not in the references, ignored: %s", counted(len(extra), "prediction"), listed(extra))
    if missing := [name for name in gold if name not in predictions]:
        log.warning("%s without a prediction, scored 0: %s", counted(len(missing), "question"), listed(missing))
    kept = {name: value for name, value in predictions.items() if name in gold}
    return kept, {"missing": len(missing), "extra": len(extra)}
