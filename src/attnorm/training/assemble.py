"""What a run is filed under, what it records, and its loaders."""

import pytorch_lightning as pl

from attnorm.data.batching import ResumableLoader, TokenBatches
from attnorm.data.corpus import Split
from attnorm.training.config import model_attention
from attnorm.training.recipes.base import Recipe


def record_of(cfg: dict) -> dict:
    """The configuration that a run keeps: only the attention sites that its model has."""
    return {**cfg, "attention": model_attention(cfg)}


def max_steps(cfg: dict) -> int | None:
    """The limit of updates: trainer.max_steps, or task.max_steps when the trainer has no limit at all."""
    trainer = cfg["trainer"]
    return trainer["max_steps"] or (None if trainer["max_epochs"] else cfg["task"]["max_steps"])


class RunData(pl.LightningDataModule):
    """Loaders over the tokenized splits; ranks and accumulation are known when Lightning asks for them."""

    def __init__(self, recipe: Recipe, splits: dict[str, Split]):
        super().__init__()
        self.recipe, self.cfg, self.splits = recipe, recipe.cfg, splits

    def planned_updates(self) -> int:
        """How many updates the run will make, as max_steps, max_epochs and limit_train_batches have it."""
        trainer = self.cfg["trainer"]
        pieces = trainer["accumulate_grad_batches"]
        sampler = self._sampler("train", pieces=pieces)
        batches, limit = len(sampler), trainer["limit_train_batches"]
        if limit is not None:
            batches = min(batches, limit) if isinstance(limit, int) else int(batches * limit)
        self.padding_share, self.updates_an_epoch = sampler.padding(), -(-batches // pieces)
        if trainer["fast_dev_run"]:
            return int(trainer["fast_dev_run"])
        ends = [max_steps(self.cfg), trainer["max_epochs"] and trainer["max_epochs"] * self.updates_an_epoch]
        return max(1, min(end for end in ends if end))

    def train_dataloader(self) -> ResumableLoader:
        pieces = self.trainer.accumulate_grad_batches
        return self._loader("train", seed=self.cfg["seed"], pieces=pieces, **self._ranks())

    def val_dataloader(self) -> ResumableLoader:
        return self._loader("validation", shuffle=False, **self._ranks())

    def fixed_batch(self) -> dict:
        """The first validation batch, the same whenever it is asked for."""
        sampler = self._sampler("validation", shuffle=False)
        return self.recipe.batches(self.splits["validation"])[next(iter(sampler))]

    def _ranks(self) -> dict[str, int]:
        return {"rank": self.trainer.global_rank, "ranks": self.trainer.world_size}

    def _sampler(self, name: str, **order) -> TokenBatches:
        split = self.splits[name]
        return TokenBatches(split.lengths, self.cfg["data"]["batch_tokens"], weights=split.weights, **order)

    def _loader(self, name: str, **order) -> ResumableLoader:
        batches = self.recipe.batches(self.splits[name])
        return ResumableLoader(batches, self._sampler(name, **order), self.cfg["data"]["num_workers"])
