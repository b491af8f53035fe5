"""The base class of all LightningModules: the training step, the check for non-finite losses, and validation sums."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from attnorm.errors import UserError
from attnorm.optim import Optimization

REMEDY = "stopped before the update. Try a smaller optimizer.lr, or trainer.detect_anomaly=true to find the cause."


class NonFiniteLoss(UserError, RuntimeError):
    """The loss or a gradient is NaN or infinite. The update has not been made."""


class Loss(NamedTuple):
    """The loss of a batch, summed over its units (tokens or examples).

    objective: the quantity that training minimizes. size: the number of tokens or examples in the batch. plain: the
               loss
    that validation reports, if it differs from the objective (for example because of label smoothing).
    """

    objective: Tensor
    size: int
    plain: Tensor | None = None


class TaskModule(pl.LightningModule):
    """A model with its training and validation steps.

    Subclasses implement `forward`, `loss`, `validation_step`, `metrics` and `format_line`.

    A batch is a dict of tensors. In addition to the task's tensors, it contains `rows` (row numbers in the split) and
    `divisor` (the divisor of the loss of the whole update, over all ranks and accumulation steps).

    monitor, mode: the validation metric that selects the best checkpoint, and whether "min" or "max" is best.
    counters:      names of the sums that a validation accumulates.
    sums:          the values of these sums. `validation_step` adds to them with `add`.
    outputs:       other results of a validation that `metrics` needs. They are gathered from all ranks.
    examples:      values of single examples by column, collected with `record` in the final evaluation only.
    samples:       a few examples of the last validation for display, as dicts of texts by label.
    """

    monitor, mode = "val/loss", "min"
    counters: tuple[str, ...]

    def __init__(self, model: nn.Module, tokenizer: Any):
        super().__init__()
        self.model, self.tokenizer = model, tokenizer
        self.optimization: Optimization | None = None  # set before training; not needed for evaluation
        self.sums: dict[str, float] = {}
        self.outputs: list = []
        self.samples: list[dict[str, str]] = []
        self.examples: dict[str, list] = {}
        self.keep_examples = False

    def begin_validation(self, keep_examples: bool = False) -> None:
        """Discards the results of the previous validation. keep_examples: whether to collect `examples`."""
        self.sums, self.outputs, self.samples = dict.fromkeys(self.counters, 0.0), [], []
        self.examples, self.keep_examples = {}, keep_examples

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """The model's output for a batch."""
        raise NotImplementedError

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        """The loss of a training batch."""
        raise NotImplementedError

    def tokens(self, batch: dict[str, Tensor]) -> Tensor:
        """The number of real tokens (no padding) in the batch."""
        raise NotImplementedError

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        """Evaluates a batch: adds to `sums` and, if needed, to `outputs`, `examples` and `samples`."""
        raise NotImplementedError

    def add(self, **values: float) -> None:
        """Adds to the sums of the validation."""
        for name, value in values.items():
            self.sums[name] += value

    def record(self, rows: Tensor, **columns: Iterable) -> None:
        """Appends to `examples`: one value per row of the batch in each column."""
        for name, values in (("rows", rows), *columns.items()):
            self.examples.setdefault(name, []).extend(values.tolist() if isinstance(values, Tensor) else values)

    def sort_examples(self) -> None:
        """Sorts `examples` by row, regardless of the order of the batches."""
        rows = self.examples.pop("rows", [])
        order = sorted(range(len(rows)), key=rows.__getitem__)
        self.examples = {name: [values[place] for place in order] for name, values in self.examples.items()}

    def metrics(self) -> dict[str, float]:
        """The metrics of the whole split (without the prefix "val/"), computed from `sums` and `outputs`."""
        raise NotImplementedError

    def format_line(self, metrics: dict[str, float]) -> str:
        """The metrics of a validation as text, printed after "step 100  val loss 3.210"."""
        raise NotImplementedError

    def training_step(self, batch: dict[str, Tensor], batch_index: int) -> Tensor:
        """The summed objective of this microbatch, divided by the divisor of the whole update."""
        summed, size, plain = self.loss(batch)
        if not torch.isfinite(summed):
            rows = batch["rows"].tolist()
            raise NonFiniteLoss(
                f"the loss is {summed.item()} at step {self.trainer.global_step}, batch {batch_index} of epoch "
                f"{self.current_epoch} (training rows {', '.join(map(str, rows[:8]))}{', ...' * (len(rows) > 8)}); "
                + REMEDY
            )
        shown = summed if plain is None else plain
        self.log("train/loss", shown.detach() / max(1, size), prog_bar=True)
        if plain is not None:
            self.log("train/objective", summed.detach() / max(1, size))
        self.log("step", self.trainer.global_step + 1.0)  # loggers then count updates, like checkpoints
        # Lightning divides by the accumulation steps and DDP by the ranks. Both are undone here, because `divisor`
        # already counts the whole update.
        return summed / batch["divisor"] * self.trainer.accumulate_grad_batches * self.trainer.world_size

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Logs the learning rate and the norm of the gradient before clipping.

        Raises NonFiniteLoss for an infinite gradient, because a finite loss can have one and clipping would turn it
        into NaN parameters.
        """
        self.log("train/lr", optimizer.param_groups[0]["lr"])
        if self.trainer.precision == "16-mixed":
            return  # gradients are still scaled here, and the scaler skips updates with infinite gradients
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        self.log("train/gradient_norm", norm)
        if not torch.isfinite(norm):
            raise NonFiniteLoss(f"a gradient is not finite at step {self.trainer.global_step}; {REMEDY}")

    def on_validation_epoch_start(self) -> None:
        self.begin_validation()

    def on_validation_epoch_end(self) -> None:
        sums = torch.tensor(list(self.sums.values()), dtype=torch.float64, device=self.device)
        reduced = self.trainer.strategy.reduce(sums, reduce_op="sum").tolist()
        self.sums = dict(zip(self.sums, reduced, strict=True))
        if self.trainer.world_size > 1:
            ranks: list[Any] = [None] * self.trainer.world_size
            torch.distributed.all_gather_object(ranks, self.outputs)
            self.outputs = [output for outputs in ranks for output in outputs]
        for name, value in self.metrics().items():
            self.log(f"val/{name}", torch.tensor(value, dtype=torch.float64), prog_bar=name == "loss")
        self.log("step", float(self.trainer.global_step))

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        # Reading trainer.estimated_stepping_batches here would make Lightning build the loaders before it restores a
        # checkpoint, and the position in the epoch would be lost.
        steps = self.trainer.datamodule.num_training_steps()  # type: ignore[attr-defined]  # set by Lightning
        fused = "mixed" not in str(self.trainer.precision)  # Lightning cannot clip for a fused optimizer under AMP
        assert self.optimization is not None  # set before training
        return self.optimization.build(self.model, steps, fused)

    def lr_scheduler_step(self, scheduler: Any, metric: Any | None) -> None:
        """Lets a scheduler step, except one that watches a metric: the callback `PlateauSteps` does that."""
        if metric is None:
            super().lr_scheduler_step(scheduler, metric)


def sums_per_row(values: Tensor, mask: Tensor) -> Tensor:
    """The sum of each row's values, float64 (B,) on the CPU.

    mask: bool (B, N), the positions that have a value. values: (K,), one per True in the mask, row by row.
    """
    mask = mask.cpu()
    return torch.zeros(mask.shape, dtype=torch.float64).masked_scatter_(mask, values.cpu().double()).sum(1)
