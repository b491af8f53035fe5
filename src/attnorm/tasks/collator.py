"""The base class of the datasets that turn rows of ids into the tensors of a batch."""

import torch
from torch import Tensor
from torch.utils.data import Dataset

from attnorm.data.featurizer import Table
from attnorm.data.sampler import MicroBatch


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
