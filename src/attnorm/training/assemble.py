"""From configuration to parts: the only place that knows data and models both."""

from pathlib import Path

import pytorch_lightning as pl

from attnorm.attention.build import attention_label, own_sites
from attnorm.data.batching import PairBatches, ResumableLoader, TokenBatches
from attnorm.data.corpus import Split, prepare
from attnorm.data.sources import build_source
from attnorm.models import MODELS
from attnorm.models.decoding import Decoding
from attnorm.models.shape import Shape
from attnorm.registry import find
from attnorm.tasks import TASKS
from attnorm.tasks.optim import Optim
from attnorm.training.config import model_sites, source_settings


def run_label(cfg: dict) -> str:
    """The attention label that a run is filed under."""
    return attention_label(cfg["attention"], model_sites(cfg))


def record_of(cfg: dict) -> dict:
    """The configuration that a run keeps: only the attention sites that its model has."""
    return {**cfg, "attention": own_sites(cfg["attention"], model_sites(cfg))}


def build_splits(cfg: dict, tokenizer=None, splits: tuple[str, ...] = ("train", "validation")) -> dict[str, Split]:
    """The tokenized splits; without a tokenizer the configured one is trained or loaded."""
    data, model = cfg["data"], cfg["model"]
    return prepare(
        build_source(data["name"], **source_settings(cfg)),
        tokenizer or cfg["tokenizer"],
        lowercase=data["lowercase"],
        digits=data["digits"],
        max_source=model["max_source"],
        max_target=model["max_target"],
        max_rows={"train": data["max_train"], "validation": data["max_valid"], "test": data["max_test"]},
        cache_dir=Path(cfg["paths"]["cache_dir"]),
        splits=splits,
    )


def build_model(cfg: dict, tokenizer):
    """The configured model with its initial parameters."""
    model = cfg["model"]
    shape = Shape(**{name: value for name, value in model.items() if name != "name"})
    cls = find("model", model["name"], MODELS)
    return cls(shape, cfg["attention"], tokenizer.vocab_size, tokenizer.pad_id, seed=cfg["seed"])


def build_task(cfg: dict, tokenizer, validation) -> pl.LightningModule:
    """The task around a new model."""
    task = cfg["task"]
    return find("task", task["name"], TASKS)(
        build_model(cfg, tokenizer),
        tokenizer,
        Optim(**cfg["optim"]),
        validation,
        label_smoothing=task["label_smoothing"],
        rouge_pairs=task["rouge_pairs"],
        stemmer=task["stemmer"],
        max_length=cfg["decoding"]["max_length"],
    )


def max_steps(cfg: dict) -> int | None:
    """The limit of updates: trainer.max_steps, or task.max_steps when the trainer has no limit at all."""
    trainer = cfg["trainer"]
    return trainer["max_steps"] or (None if trainer["max_epochs"] else cfg["task"]["max_steps"])


def build_decoding(cfg: dict) -> Decoding:
    """How final headlines are generated."""
    return Decoding(**cfg["decoding"])


class PairData(pl.LightningDataModule):
    """Loaders over the tokenized splits; ranks and accumulation are known when Lightning asks for them."""

    def __init__(self, cfg: dict, splits: dict[str, Split], tokenizer):
        super().__init__()
        self.cfg, self.splits = cfg, splits
        self.special = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)

    def planned_updates(self) -> int:
        """How many updates the run will make, as max_steps, max_epochs and limit_train_batches have it."""
        trainer = self.cfg["trainer"]
        pieces = trainer["accumulate_grad_batches"]
        sampler = TokenBatches(self.splits["train"].lengths, self.cfg["data"]["batch_tokens"], pieces=pieces)
        batches, limit = len(sampler), trainer["limit_train_batches"]
        if limit is not None:
            batches = min(batches, limit) if isinstance(limit, int) else int(batches * limit)
        self.padding_share, self.updates_an_epoch = sampler.padding(), -(-batches // pieces)
        if trainer["fast_dev_run"]:
            return int(trainer["fast_dev_run"])
        ends = [max_steps(self.cfg), trainer["max_epochs"] and trainer["max_epochs"] * self.updates_an_epoch]
        return max(1, min(end for end in ends if end))

    def train_dataloader(self) -> ResumableLoader:
        trainer = self.trainer
        return self._loader("train", seed=self.cfg["seed"], pieces=trainer.accumulate_grad_batches)

    def val_dataloader(self) -> ResumableLoader:
        return self._loader("validation", shuffle=False)

    def _loader(self, name: str, **order) -> ResumableLoader:
        split, data = self.splits[name], self.cfg["data"]
        ranks = {"rank": self.trainer.global_rank, "ranks": self.trainer.world_size}
        sampler = TokenBatches(split.lengths, data["batch_tokens"], **ranks, **order)
        return ResumableLoader(PairBatches(split.rows, *self.special), sampler, data["num_workers"])
