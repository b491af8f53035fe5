"""A DataLoader that knows how many batches it has handed out."""

import signal
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from attnorm.data.sampler import TokenBatches
from attnorm.errors import DataError


def _ignore_signals(worker: int) -> None:
    """A signal to the whole process group is for the main process to handle: its update still needs these batches."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


class ResumableLoader(DataLoader):
    """A DataLoader that knows how many batches it has handed out.

    A run that was stopped in the middle of an epoch resumes with the next batch instead of the first one of the epoch.
    """

    sampler: TokenBatches

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

    def __iter__(self) -> Iterator[dict[str, Tensor]]:  # type: ignore[override]  # torch names its own iterator
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
            raise DataError(
                f"trainer.accumulate_grad_batches={self.sampler.pieces}: the checkpoint's epoch was begun with "
                f"{state['pieces']}; resume with that value"
            )
        self.resume = dict(state)
