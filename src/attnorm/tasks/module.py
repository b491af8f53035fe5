"""What a task defines about its model, without Lightning: its batches, their loss, and how a validation is scored."""

from collections.abc import Iterable
from contextlib import suppress
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from attnorm.data.featurizer import Table
from attnorm.data.sampler import MicroBatch
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.tasks.ranks import Ranks

ModelT = TypeVar("ModelT")  # what the task calls on its model, see `attnorm.models.interfaces`


class Loss(NamedTuple):
    """The loss of a batch, summed over its units (tokens or examples).

    objective: the quantity that training minimizes.
    size:      the number of tokens or examples in the batch.
    plain:     the loss that validation reports, if it differs from the objective (for example by label smoothing).
    """

    objective: Tensor
    size: int
    plain: Tensor | None = None


class TaskModule(Generic[ModelT]):
    """A model with the loss and the validation of a task. Calling it with a batch calls `forward`.

    Subclasses implement `forward`, `validation_step`, `metrics` and `line` (or `format_line`), and also `loss` and
    `tokens` where these differ from the cross-entropy of `labels` and from the tokens in `ids`.

    A batch is a dict of tensors. In addition to the task's tensors, it contains `rows` (row numbers in the split) and
    `divisor` (the divisor of the loss of the whole update, over all ranks and accumulation steps).

    monitor, mode: the validation metric that selects the best checkpoint, and whether "min" or "max" is best.
    counters:      names of the sums that a validation accumulates.
    sums:          the values of these sums. `validation_step` adds to them with `add`.
    outputs:       other results of a validation that `metrics` needs. They are gathered from all ranks.
    examples:      values of single examples by column, collected with `record` in the final evaluation only.
    samples:       a few examples of the last validation for display, as dicts of texts by label.
    line:          the metrics of a validation as text, in the notation of `str.format`.
    sampled_line:  what follows if the validation has these metrics, too, as those of greedy texts.
    """

    monitor, mode = "val/loss", "min"
    counters: tuple[str, ...]
    line: str
    sampled_line = ""

    def __init__(self, model: ModelT, tokenizer: Tokenizer):
        self.model, self.tokenizer = model, tokenizer
        self.sums: dict[str, float] = {}
        self.outputs: list = []
        self.samples: list[dict[str, str]] = []
        self.examples: dict[str, list] = {}
        self.keep_examples = False

    def __call__(self, batch: dict[str, Tensor]) -> Tensor:
        return self.forward(batch)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """The model's output for a batch."""
        raise NotImplementedError

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        """The loss of a training batch: by default, the cross-entropy of `labels`, given the scores of `forward`."""
        return Loss(F.cross_entropy(self(batch).float(), batch["labels"], reduction="sum"), len(batch["labels"]))

    def tokens(self, batch: dict[str, Tensor]) -> Tensor:
        """The number of real tokens (no padding) in the batch: by default, of those in `ids`."""
        return (batch["ids"] != self.tokenizer.pad_id).sum()

    def begin_validation(self, keep_examples: bool = False) -> None:
        """Discards the results of the previous validation. keep_examples: whether to collect `examples`."""
        self.sums, self.outputs, self.samples = dict.fromkeys(self.counters, 0.0), [], []
        self.examples, self.keep_examples = {}, keep_examples

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        """Evaluates a batch: adds to `sums` and, if needed, to `outputs`, `examples` and `samples`."""
        raise NotImplementedError

    def gather(self, ranks: Ranks) -> None:
        """Adds up the sums of all ranks, and joins their outputs and their examples, in the order of the rows."""
        sums, outputs, examples = zip(*ranks.gather((self.sums, self.outputs, self.examples)), strict=True)
        self.sums = {name: sum(of_rank[name] for of_rank in sums) for name in self.sums}
        self.outputs = list(chain.from_iterable(outputs))
        columns = {name for of_rank in examples for name in of_rank}
        joined = {name: list(chain(*(of_rank.get(name, []) for of_rank in examples))) for name in columns}
        rows = joined.pop("rows", [])
        order = sorted(range(len(rows)), key=rows.__getitem__)
        self.examples = {name: [values[index] for index in order] for name, values in joined.items()}

    def add(self, **values: float) -> None:
        """Adds to the sums of the validation."""
        for name, value in values.items():
            self.sums[name] += value

    def record(self, rows: Tensor, **columns: Iterable) -> None:
        """Appends to `examples`: one value per row of the batch in each column."""
        for name, values in (("rows", rows), *columns.items()):
            self.examples.setdefault(name, []).extend(values.tolist() if isinstance(values, Tensor) else values)

    def metrics(self) -> dict[str, float]:
        """The metrics of the whole split (without the prefix "val/"), computed from `sums` and `outputs`."""
        raise NotImplementedError

    def format_line(self, metrics: dict[str, float]) -> str:
        """The metrics of a validation as text, printed after "step 100  val loss 3.210"."""
        with suppress(KeyError):
            return f"{self.line}{self.sampled_line}".format(**metrics)
        return self.line.format(**metrics)


def sums_per_row(values: Tensor, mask: Tensor) -> Tensor:
    """The sum of each row's values, float64 (B,) on the CPU.

    mask: bool (B, N), the positions that have a value. values: (K,), one per True in the mask, row by row.
    """
    mask = mask.cpu()
    return torch.zeros(mask.shape, dtype=torch.float64).masked_scatter_(mask, values.cpu().double()).sum(1)


class Collator(Dataset):
    """`MicroBatch` -> tensors. A subclass implements `tensors`.

    rows:   a table of the featurizer of the task.
    pad_id: the id with which it pads sequences.
    """

    def __init__(self, rows: Table, pad_id: int = 0):
        self.rows, self.pad_id = rows, pad_id

    def tensors(self, table: dict[str, list], part: MicroBatch) -> dict[str, Tensor]:
        """The tensors of a batch, besides `rows` and `divisor`. table: the rows of the batch, columns by name."""
        raise NotImplementedError

    def __getitem__(self, part: MicroBatch) -> dict[str, Tensor]:
        """Returns the tensors of the task, and:

        rows:    int64 (B,), row numbers.
        divisor: int64 (), the divisor of the loss of the whole update, over all ranks and accumulation steps.
        """
        numbers = {"rows": torch.tensor(part.rows), "divisor": torch.tensor(part.divisor)}
        return self.tensors(self.rows[part.rows], part) | numbers
