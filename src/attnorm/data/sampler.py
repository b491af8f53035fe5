"""Batches of rows of similar length, limited by a token budget, in an order that depends only on (seed, epoch)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from torch.utils.data import Sampler

from attnorm.errors import DataError


@dataclass(frozen=True)
class MicroBatch:
    """One device's share of an update: the row numbers, the divisor of the loss of the whole update, and the epoch."""

    rows: list[int]
    divisor: int
    epoch: int = 0


class TokenBatches(Sampler[MicroBatch]):
    """The microbatches of one device, in order.

    The batch of an update contains rows of similar length, as many as fit into `batch_tokens` = rows * (the longest of
    each sequence, summed over the sequences, such as source and target of a pair), including padding. It is split into
    `accumulation * ranks` equal parts. So gradient accumulation and devices share the batch of an update and do not
    change it. (A batch with fewer rows than parts is enlarged to one row per part.) Rows of equal length are shuffled
    among each other, and then the batches are shuffled, both depending only on (seed, epoch). The number of batches is
    the same in every epoch.

    lengths: int (rows, k), the number of tokens of each of a row's k sequences.
    weights: int (rows,), the contribution of each row to the divisor of an update; by default the number of tokens of
             its last sequence.
    rows:    int, the numbers of the rows that are used; by default all of them.
    shuffle: False keeps a fixed order, for validation, and distributes whole batches over the ranks, at least one each.
    limit:   the largest number of updates in an epoch of training; None: all.

    Raises ValueError if there are fewer rows than parts.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        batch_tokens: int,
        *,
        weights: np.ndarray | None = None,
        rows: np.ndarray | None = None,
        seed: int = 0,
        shuffle: bool = True,
        accumulation: int = 1,
        rank: int = 0,
        ranks: int = 1,
        limit: int | None = None,
    ):
        self.lengths, self.seed, self.shuffle, self.limit = lengths, seed, shuffle, limit
        self.weights = lengths[:, -1] if weights is None else weights
        self.rows = np.arange(len(lengths)) if rows is None else rows
        self.accumulation, self.rank, self.ranks = accumulation, rank, ranks
        self.epoch, self.start = 0, 0
        parts = accumulation * ranks if shuffle else ranks
        if len(self.rows) < parts:
            raise DataError(
                f"{len(self.rows)} rows cannot be split into {parts} parts (trainer.devices times "
                f"trainer.accumulate_grad_batches={accumulation}): every part of an update needs at least one row"
            )
        self.order = self.rows[np.lexsort(lengths[self.rows].T[::-1])]
        self.cuts = cut_by_tokens(lengths[self.order], batch_tokens, at_least=parts if shuffle else 1)
        if len(self.cuts) <= ranks and not shuffle:  # a device without batches would block the others
            self.cuts = [len(self.rows) * rank // ranks for rank in range(ranks + 1)]

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration. Called by Lightning."""
        self.epoch = epoch

    def __len__(self) -> int:
        batches = len(self.cuts) - 1
        if not self.shuffle:
            return len(range(self.rank, batches, self.ranks))
        return self.accumulation * (batches if self.limit is None else min(batches, self.limit))

    def __iter__(self) -> Iterator[MicroBatch]:
        start, self.start = self.start, 0
        yield from islice(self._parts(), start, None)

    def _parts(self) -> Iterator[MicroBatch]:
        batches, order, epoch, parts, numbers = len(self.cuts) - 1, self.order, 0, 1, range(1)
        chosen: Iterable[int] = range(self.rank, batches, self.ranks)  # whole batches
        if self.shuffle:
            epoch, parts = self.epoch, self.accumulation * self.ranks
            random = np.random.Generator(np.random.PCG64([self.seed, epoch]))
            order = self.rows[np.lexsort((random.random(len(self.rows)), *self.lengths[self.rows].T[::-1]))]
            chosen, numbers = random.permutation(batches)[: self.limit].tolist(), range(self.rank, parts, self.ranks)
        for batch in chosen:
            update = order[self.cuts[batch] : self.cuts[batch + 1]]
            for number in numbers:
                yield MicroBatch(update[number::parts].tolist(), int(self.weights[update].sum()), epoch)

    def positions(self, rows: np.ndarray) -> int:
        """The number of tokens in a batch of these rows, padding included."""
        return len(rows) * int(self.lengths[rows].max(0).sum())

    def padding(self) -> float:
        """The share of padding tokens in the batches of one epoch, in [0, 1)."""
        lengths = self.lengths[self.order]
        bounds = zip(self.cuts[:-1], self.cuts[1:], strict=True)
        padded = sum((stop - start) * int(lengths[start:stop].max(0).sum()) for start, stop in bounds)
        return 1.0 - int(lengths.sum()) / padded


def cut_by_tokens(lengths: np.ndarray, batch_tokens: int, at_least: int = 1) -> list[int]:
    """Bounds [0, ..., rows] of consecutive batches with rows * (sum of the longest of each sequence) <= batch_tokens.

    lengths: int (rows, k), in the order of the rows. A batch has at least `at_least` rows, even above the budget. A
             last batch with fewer rows gets some of the previous one, so that the number of batches stays the same, or
             is merged with it if it has too few.
    """
    cuts, total = [0], len(lengths)
    window = max(at_least, batch_tokens // max(1, int(lengths.sum(1).min()))) + 1  # no batch can hold more rows
    while cuts[-1] < total:
        ahead = lengths[cuts[-1] : cuts[-1] + window]
        longest = np.maximum.accumulate(ahead, axis=0).sum(1)  # for the first 1, 2, ... rows
        fit = int((np.arange(1, len(ahead) + 1) * longest <= batch_tokens).sum())
        cuts.append(min(total, cuts[-1] + max(fit, at_least)))
    if len(cuts) > 2 and cuts[-1] - cuts[-2] < at_least:
        if cuts[-1] - cuts[-3] >= 2 * at_least:
            cuts[-2] = cuts[-1] - at_least
        else:
            del cuts[-2]
    return cuts
