"""Batches of rows: grouped by length, cut by a token budget, in an order that only (seed, epoch) decides."""

import signal
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler


@dataclass(frozen=True)
class Part:
    """One device's share of one update: row numbers, what the whole update's loss is divided by, and the epoch."""

    rows: list[int]
    divisor: int
    epoch: int = 0


class TokenBatches(Sampler[Part]):
    """The parts of one device, in order.

    An update's batch holds rows of like lengths, as many as fit `batch_tokens` = rows * (the longest of each sequence,
    added up: source and target of a pair), padding included. It is cut into `pieces * ranks` equal parts: gradient
    accumulation and devices share an update's batch, they do not change it (one with fewer rows than parts is filled up
    to one row each). Rows of equal lengths are shuffled among each other, then the batches are shuffled, by (seed,
    epoch) alone; the number of batches is the same in every epoch.

    lengths: int (rows, k), tokens of each of a row's k sequences. weights: int (rows,), what each row adds to an
    update's divisor; without them the tokens of its last sequence. shuffle=False keeps one order, for validation, and
    deals whole batches to the ranks, each of which gets one or more. Raises ValueError when there are fewer rows than
    parts.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        batch_tokens: int,
        *,
        weights: np.ndarray | None = None,
        seed: int = 0,
        shuffle: bool = True,
        pieces: int = 1,
        rank: int = 0,
        ranks: int = 1,
    ):
        self.lengths, self.seed, self.shuffle = lengths, seed, shuffle
        self.weights = lengths[:, -1] if weights is None else weights
        self.pieces, self.rank, self.ranks = pieces, rank, ranks
        self.epoch, self.start = 0, 0
        parts = pieces * ranks if shuffle else ranks
        if len(lengths) < parts:
            raise ValueError(
                f"{len(lengths)} rows cannot be shared by {parts} parts (trainer.devices times "
                f"trainer.accumulate_grad_batches={pieces}): every part of an update needs at least one row"
            )
        self.order = np.lexsort(lengths.T[::-1])
        self.cuts = cut_by_tokens(lengths[self.order], batch_tokens, at_least=parts if shuffle else 1)
        if len(self.cuts) <= ranks and not shuffle:  # a device without any would stop the others
            self.cuts = [len(lengths) * rank // ranks for rank in range(ranks + 1)]

    def set_epoch(self, epoch: int) -> None:
        """The epoch whose order the next iteration gives; Lightning calls it."""
        self.epoch = epoch

    def __len__(self) -> int:
        batches = len(self.cuts) - 1
        return batches * self.pieces if self.shuffle else len(range(self.rank, batches, self.ranks))

    def __iter__(self) -> Iterator[Part]:
        start, self.start = self.start, 0
        for number, part in enumerate(self._parts()):
            if number >= start:
                yield part

    def _parts(self) -> Iterator[Part]:
        batches = len(self.cuts) - 1
        if not self.shuffle:
            for batch in range(self.rank, batches, self.ranks):
                yield self._part(self.order[self.cuts[batch] : self.cuts[batch + 1]], 0, 1)
            return
        random = np.random.Generator(np.random.PCG64([self.seed, self.epoch]))
        order = np.lexsort((random.random(len(self.lengths)), *self.lengths.T[::-1]))
        for batch in random.permutation(batches):
            update = order[self.cuts[batch] : self.cuts[batch + 1]]
            for piece in range(self.pieces):
                yield self._part(update, piece * self.ranks + self.rank, self.pieces * self.ranks)

    def _part(self, update: np.ndarray, number: int, parts: int) -> Part:
        epoch = self.epoch if self.shuffle else 0
        return Part(update[number::parts].tolist(), int(self.weights[update].sum()), epoch)

    def padding(self) -> float:
        """The share of padding among the tokens of one epoch's batches, in [0, 1)."""
        lengths = self.lengths[self.order]
        bounds = zip(self.cuts[:-1], self.cuts[1:], strict=True)
        padded = sum((stop - start) * int(lengths[start:stop].max(0).sum()) for start, stop in bounds)
        return 1.0 - int(lengths.sum()) / padded


def cut_by_tokens(lengths: np.ndarray, batch_tokens: int, at_least: int = 1) -> list[int]:
    """Bounds [0, ..., rows] of consecutive batches with rows * (sum of the longest of each sequence) <= batch_tokens.

    lengths: int (rows, k) in the order to be cut. A batch has `at_least` rows even above the budget, and a last one
    with fewer joins the one before.
    """
    cuts, total = [0], len(lengths)
    window = max(at_least, batch_tokens // max(1, int(lengths.sum(1).min()))) + 1  # no batch can hold more rows
    while cuts[-1] < total:
        ahead = lengths[cuts[-1] : cuts[-1] + window]
        longest = np.maximum.accumulate(ahead, axis=0).sum(1)  # of the first 1, 2, ... rows
        fit = int((np.arange(1, len(ahead) + 1) * longest <= batch_tokens).sum())
        cuts.append(min(total, cuts[-1] + max(fit, at_least)))
    if len(cuts) > 2 and cuts[-1] - cuts[-2] < at_least:
        del cuts[-2]
    return cuts


class PairBatches(Dataset):
    """`Part` -> tensors, padded to the longest of the part.

    rows: a table with columns source and target, lists of token ids without special tokens.
    """

    def __init__(self, rows, pad_id: int, bos_id: int, eos_id: int):
        self.rows, self.pad_id, self.bos_id, self.eos_id = rows, pad_id, bos_id, eos_id

    def __getitem__(self, part: Part) -> dict[str, Tensor]:
        """source, int64 (B, N), ends with the end token; target (B, T + 1) begins and ends; rows (B,) row numbers;
        divisor () target tokens of the whole update."""
        table = self.rows[part.rows]
        return {
            "source": pad([[*ids, self.eos_id] for ids in table["source"]], self.pad_id),
            "target": pad([[self.bos_id, *ids, self.eos_id] for ids in table["target"]], self.pad_id),
            "rows": torch.tensor(part.rows),
            "divisor": torch.tensor(part.divisor),
        }


def pad(sequences: list[list[int]], pad_id: int) -> Tensor:
    """Lists of ids as one int64 tensor (B, longest)."""
    table = np.full((len(sequences), max(map(len, sequences))), pad_id, dtype=np.int64)
    for row, ids in zip(table, sequences, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(table)


def _ignore_signals(worker: int) -> None:
    """A signal to the whole process group is for the main process to handle: its update still needs these batches."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


class ResumableLoader(DataLoader):
    """A DataLoader over parts that knows how many it has handed out, so that a run stopped in mid-epoch goes on with
    the next batch instead of the epoch's first."""

    def __init__(self, batches: Dataset, sampler: TokenBatches, num_workers: int = 0):
        super().__init__(
            batches,
            sampler=sampler,
            batch_size=None,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=_ignore_signals,
            generator=torch.Generator(),  # of its own: making an iterator must not draw from the model's random stream
        )
        self.handed_out = 0
        self.resume: dict[str, int] | None = None

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        resume, self.resume = self.resume, None
        if resume is not None and resume["epoch"] == self.sampler.epoch:
            self.sampler.start = resume["handed_out"]
        self.handed_out = self.sampler.start
        for batch in super().__iter__():
            self.handed_out += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """The epoch and the batches handed out in it."""
        if self.resume is not None:  # loaded, and nothing handed out since
            return dict(self.resume)
        return {"epoch": self.sampler.epoch, "handed_out": self.handed_out, "pieces": self.sampler.pieces}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """The next iteration, if it is of the same epoch, starts behind the batches handed out.

        Raises ValueError when an update was cut into another number of pieces.
        """
        if state["pieces"] != self.sampler.pieces:
            raise ValueError(
                f"trainer.accumulate_grad_batches={self.sampler.pieces}: the checkpoint's epoch was begun with "
                f"{state['pieces']}; go on with that"
            )
        self.resume = dict(state)
