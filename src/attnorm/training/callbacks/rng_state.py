"""Random streams: one per rank, kept in checkpoints."""

from typing import Any

import pytorch_lightning as pl
import torch


class RandomStreams(pl.Callback):
    """Gives every rank its own dropout stream, keeps the streams in checkpoints, puts them back on resume."""

    def __init__(self, seed: int):
        self.seed = seed
        self.saved: dict | None = None

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        torch.manual_seed(self.seed + trainer.global_rank)

    def on_save_checkpoint(self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict) -> None:
        own = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            own["cuda"] = torch.cuda.get_rng_state()
        streams: list[Any] = [own]
        if torch.distributed.is_initialized():
            streams = [None] * trainer.world_size
            torch.distributed.all_gather_object(streams, own)
        checkpoint["random_streams"] = streams

    def on_load_checkpoint(self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict) -> None:
        streams = checkpoint.get("random_streams", [])
        self.saved = streams[trainer.global_rank] if trainer.global_rank < len(streams) else None

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: dict, index: int) -> None:
        if self.saved is not None:
            torch.set_rng_state(self.saved["cpu"].cpu())
            if "cuda" in self.saved and torch.cuda.is_available():
                torch.cuda.set_rng_state(self.saved["cuda"].cpu())
            self.saved = None
