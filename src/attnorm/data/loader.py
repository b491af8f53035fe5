"""A DataLoader that counts the batches that it has returned."""

import signal
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from attnorm.data.sampler import TokenBatches
from attnorm.errors import SIGNALS, DataError


def _start_worker(in_worker: Callable[[], None] | None, number: int) -> None:
    """Ignores signals in a worker. The main process handles them, and its update still needs these batches."""
    for ignored in SIGNALS:
        signal.signal(ignored, signal.SIG_IGN)
    if in_worker is not None:
        in_worker()


class ResumableLoader(DataLoader):
    """A DataLoader that counts the batches that it has returned.

    A run that was stopped in the middle of an epoch resumes with the next batch instead of the first one of the epoch.
    Batches are in pinned memory if there is a GPU, so that they are copied to it while it computes.

    prefetch_factor: number of batches that each worker loads ahead; None: 2. Only with workers.
    in_worker:       called at the start of each worker.

    waited:    the time in seconds that batches were waited for.
    positions: the number of tokens in all batches, padding included, as `data.batch_tokens` counts them.
    """

    sampler: TokenBatches

    def __init__(
        self,
        batches: Dataset,
        sampler: TokenBatches,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        in_worker: Callable[[], None] | None = None,
    ):
        super().__init__(
            batches,
            sampler=sampler,
            batch_size=None,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            persistent_workers=num_workers > 0,
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=partial(_start_worker, in_worker),
            generator=torch.Generator(),  # creating an iterator must not affect the model's random stream
        )
        self.handed_out = 0
        self.waited = 0.0
        self.positions = 0
        self.resume: dict[str, int] | None = None

    def __iter__(self) -> Iterator[dict[str, Tensor]]:  # type: ignore[override]  # torch names its own iterator
        resume, self.resume = self.resume, None
        if resume is not None and resume["epoch"] == self.sampler.epoch:
            self.sampler.start = resume["handed_out"]
        self.handed_out = self.sampler.start
        batches = super().__iter__()
        while True:
            started = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                return
            self.waited += time.perf_counter() - started
            self.positions += self.sampler.positions(batch["rows"].numpy())
            self.handed_out += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """The epoch, and the number of batches returned in it."""
        if self.resume is not None:  # the state was loaded, and no batch has been returned since
            return dict(self.resume)
        return {"epoch": self.sampler.epoch, "handed_out": self.handed_out, "accumulation": self.sampler.accumulation}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Makes the next iteration start after the batches already returned, if it is in the same epoch.

        Raises ValueError if updates were divided into another number of accumulation steps.
        """
        if state["accumulation"] != self.sampler.accumulation:
            raise DataError(
                f"trainer.accumulate_grad_batches={self.sampler.accumulation}: the epoch of the checkpoint was started "
                f"with {state['accumulation']}; resume with that value"
            )
        self.resume = dict(state)
