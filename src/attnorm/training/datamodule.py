"""The loaders of a run, and how many updates they give."""

import signal
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np
import pytorch_lightning as pl

from attnorm.data.loader import ResumableLoader
from attnorm.data.preprocess import Split
from attnorm.data.sampler import TokenBatches
from attnorm.errors import ConfigError
from attnorm.run.folder import drop_inherited_locks
from attnorm.tasks.task import Task
from attnorm.training.processes import end_with_parent


class TaskDataModule(pl.LightningDataModule):
    """Loaders over the tokenized splits; ranks and accumulation are known when Lightning asks for them."""

    trainer: pl.Trainer  # Lightning attaches it before it asks for loaders

    def __init__(self, task: Task, splits: dict[str, Split]):
        super().__init__()
        self.task, self.cfg, self.splits = task, task.cfg, splits

    def num_training_steps(self) -> int:
        """The number of updates that max_steps, max_epochs and limit_train_batches ask for.

        It depends on the number of devices, so a trainer must be attached.
        """
        if self.cfg.trainer.fast_dev_run:
            return int(self.cfg.trainer.fast_dev_run)
        steps, epochs = self.cfg.max_steps, self.cfg.trainer.max_epochs
        return min(end for end in (steps, epochs and epochs * self.updates_per_epoch()) if end)

    def updates_per_epoch(self) -> int:
        """Updates in one pass over the training data, or over the part of it that limit_train_batches leaves.

        Raises ConfigError if that part is smaller than one update.
        """
        sampler, limit = self.train_sampler, self.cfg.trainer.limit_train_batches
        updates = len(sampler) // sampler.accumulation
        if limit is None:
            return updates
        limited = limit // sampler.accumulation if isinstance(limit, int) else int(updates * limit)
        if limited == 0:
            size = f"an epoch has {updates:,} updates, and an update takes {sampler.accumulation} of these batches"
            raise ConfigError([f"trainer.limit_train_batches={limit}: less than one update; {size}"])
        return min(updates, limited)

    @cached_property
    def train_sampler(self) -> TokenBatches:
        """The batches of rank 0; there are as many on every rank."""
        accumulation, ranks = self.trainer.accumulate_grad_batches, self.trainer.world_size
        return self._sampler("train", seed=self.cfg.seed, accumulation=accumulation, ranks=ranks)

    def train_dataloader(self) -> ResumableLoader:
        sampler = copy(self.train_sampler)
        sampler.rank = self.trainer.global_rank  # known only here: forked processes inherit the sampler of their parent
        if self.cfg.trainer.limit_train_batches is not None:
            sampler.limit = self.updates_per_epoch()
        return self._loader("train", sampler)

    def val_dataloader(self) -> ResumableLoader:
        ranks = {"rank": self.trainer.global_rank, "ranks": self.trainer.world_size}
        return self._loader("validation", self._sampler("validation", shuffle=False, rows=self._selecting(), **ranks))

    def _selecting(self) -> np.ndarray:
        """The validation rows on which the best checkpoint is selected: with limit_val_batches, evenly spaced ones that
        fill about so many batches."""
        split, limit = self.splits["validation"], self.cfg.trainer.limit_val_batches
        selecting = self.task.selecting(split)
        rows = np.flatnonzero([str(group) in selecting for group in self.task.row_groups(split)])
        if limit is None:
            return rows
        share = limit / len(self._sampler("validation", shuffle=False, rows=rows)) if isinstance(limit, int) else limit
        kept = min(len(rows), max(self.trainer.world_size, round(share * len(rows))))
        return rows[np.arange(kept) * len(rows) // kept]

    def probe_batch(self) -> dict:
        """The first validation batch, the same whenever it is asked for."""
        sampler = self._sampler("validation", shuffle=False)
        return self.task.collator(self.splits["validation"])[next(iter(sampler))]

    def _sampler(self, name: str, **order: Any) -> TokenBatches:
        split = self.splits[name]
        return TokenBatches(split.lengths, self.cfg.data.batch_tokens, weights=split.weights, **order)

    def _loader(self, name: str, sampler: TokenBatches) -> ResumableLoader:
        data = self.cfg.data
        collator = self.task.collator(self.splits[name])
        workers = (data.num_workers, data.prefetch_factor, start_worker)
        return ResumableLoader(collator, sampler, *workers)


def start_worker() -> None:
    """A data worker must neither keep the locks of its run nor live on without it."""
    end_with_parent(signal.SIGKILL)
    drop_inherited_locks()
