"""What every task shares: the divisor of the loss, the guard against one that left the numbers, validation totals."""

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from attnorm.errors import UserError
from attnorm.optim import Optimization

REMEDY = "stopped before the update. Try a smaller optimizer.lr, or trainer.detect_anomaly=true to find the cause."


class NonFiniteLoss(UserError, RuntimeError):
    """The loss is not a number or infinite; the update did not happen."""


class Task(pl.LightningModule):
    """A model, how it is trained and how it is judged; a subclass writes `forward`, `loss`, `judge` and `results`.

    A batch is a dict of tensors with, besides what the task reads, `rows` (row numbers of the split) and `divisor`
    (what the whole update's loss is divided by, over ranks and accumulation steps).

    monitor, better: the validation metric that decides which checkpoint is best, and whether "min" or "max" of it is.
    counted:         names of the totals of a validation, which `judge` adds to.
    found:           what `judge` keeps of a validation besides, gathered from all ranks before `results`.
    samples:         of the last validation, dicts of texts by label, to be shown.
    """

    monitor, better = "val/loss", "min"
    counted: tuple[str, ...]

    def __init__(self, model: nn.Module, tokenizer: Any, optim: Optimization):
        super().__init__()
        self.model, self.tokenizer, self.optim = model, tokenizer, optim
        self.totals: dict[str, float] = {}
        self.found: list = []
        self.samples: list[dict[str, str]] = []

    def begin_validation(self) -> None:
        """Forgets what an earlier validation counted."""
        self.totals, self.found, self.samples = dict.fromkeys(self.counted, 0.0), [], []

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """The model's output for a batch."""
        raise NotImplementedError

    def loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
        """The loss summed over what it is counted in (tokens, examples), and how many of them there are."""
        raise NotImplementedError

    def tokens(self, batch: dict[str, Tensor]) -> Tensor:
        """How many real tokens (no padding) the batch has."""
        raise NotImplementedError

    def judge(self, batch: dict[str, Tensor]) -> dict[str, float]:
        """What a validation batch adds to the totals; may add to `found` and `samples`."""
        raise NotImplementedError

    def results(self) -> dict[str, float]:
        """Metrics (without "val/") from `totals` and `found` over the whole split."""
        raise NotImplementedError

    def line(self, metrics: dict[str, float]) -> str:
        """The metrics of a validation as a person wants to read them, after "step 100  val loss 3.210"."""
        raise NotImplementedError

    def training_step(self, batch: dict[str, Tensor], batch_index: int) -> Tensor:
        """The summed loss of this part / the divisor of the whole update."""
        summed, size = self.loss(batch)
        if not torch.isfinite(summed):
            rows = batch["rows"].tolist()
            raise NonFiniteLoss(
                f"the loss is {summed.item()} at step {self.trainer.global_step}, batch {batch_index} of epoch "
                f"{self.current_epoch} (training rows {', '.join(map(str, rows[:8]))}{', ...' * (len(rows) > 8)}); "
                + REMEDY
            )
        self.log("train/loss", summed.detach() / max(1, size), prog_bar=True)
        self.log("step", self.trainer.global_step + 1.0)  # loggers then count updates, as checkpoints do
        # Lightning divides by the accumulation steps and DDP by the ranks; the update's own divisor is its size
        return summed / batch["divisor"] * self.trainer.accumulate_grad_batches * self.trainer.world_size

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """A finite loss can have infinite gradients: clipping would turn them into NaN parameters."""
        if self.trainer.precision == "16-mixed":
            return  # its scaler skips such an update
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        if not torch.isfinite(torch.nn.utils.get_total_norm(gradients)):
            raise NonFiniteLoss(f"a gradient is not finite at step {self.trainer.global_step}; {REMEDY}")

    def on_validation_epoch_start(self) -> None:
        self.begin_validation()

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        self.count(batch)

    def count(self, batch: dict[str, Tensor]) -> None:
        """Adds a validation batch to the totals."""
        for name, value in self.judge(batch).items():
            self.totals[name] += value

    def on_validation_epoch_end(self) -> None:
        totals = torch.tensor(list(self.totals.values()), dtype=torch.float64, device=self.device)
        reduced = self.trainer.strategy.reduce(totals, reduce_op="sum").tolist()
        self.totals = dict(zip(self.totals, reduced, strict=True))
        if self.trainer.world_size > 1:
            ranks = [None] * self.trainer.world_size
            torch.distributed.all_gather_object(ranks, self.found)
            self.found = [item for found in ranks for item in found]
        for name, value in self.results().items():
            self.log(f"val/{name}", torch.tensor(value, dtype=torch.float64), prog_bar=name == "loss")
        self.log("step", float(self.trainer.global_step))

    def configure_optimizers(self) -> dict:
        # Reading trainer.estimated_stepping_batches here would make Lightning build the loaders before it restores a
        # checkpoint, and the position in the epoch would be lost.
        steps = self.trainer.datamodule.planned_updates()
        fused = "mixed" not in str(self.trainer.precision)  # Lightning cannot clip for a fused optimizer under AMP
        return self.optim.build(self.model, steps, fused)
