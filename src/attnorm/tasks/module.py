"""The base class of all LightningModules: the training step, the check for non-finite losses, and validation sums."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from attnorm.errors import UserError
from attnorm.optim import Optimization
from attnorm.tasks.ranks import Ranks, gathered, is_sharded, whole

REMEDY = "The update was not made. Try a smaller optimizer.lr."


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


class Microbatch(NamedTuple):
    """What is kept of a microbatch until the next update begins, so that a failure can be traced back to its examples.

    number:       of the batch in its epoch. batch: its tensors, on the device.
    random_state: the states of the random generators before the forward pass, see `random_state`.
    objective, plain: the summed loss that was minimized, and the summed loss that is reported, detached.
    size:         the number of tokens or examples over which the losses were summed.
    """

    number: int
    batch: dict[str, Tensor]
    random_state: dict[str, Tensor]
    objective: Tensor
    plain: Tensor
    size: int


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The states of the generators that a forward pass on `device` draws from: "cpu", and "cuda" on a GPU."""
    state = {"cpu": torch.get_rng_state()}
    return state | {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else state


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
    update:        the microbatches of the update that is being made, or was made last.
    on_non_finite: called with the optimizer, before the update, if the loss or a gradient is not finite. It raises
                   NonFiniteLoss, or deletes the gradients so that the update changes nothing.
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
        self.update: list[Microbatch] = []
        self.on_non_finite: Callable[[torch.optim.Optimizer], None] = self._stop
        self.is_loss_logged = False  # whether the loss of the latest update was due to be logged
        self.validating = ExitStack()  # what lasts as long as a validation

    def begin_validation(self, keep_examples: bool = False) -> None:
        """Discards the results of the previous validation. keep_examples: whether to collect `examples`."""
        self.sums, self.outputs, self.samples = dict.fromkeys(self.counters, 0.0), [], []
        self.examples, self.keep_examples = {}, keep_examples

    def configure_model(self) -> None:
        """Shards the model, if the strategy of the trainer does that. Called by Lightning."""
        shard = getattr(self.trainer.strategy, "shard", None)
        if shard is not None:
            shard(self.model)

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

    def gather(self, ranks: Ranks) -> None:
        """Adds up the sums of all ranks, and joins their outputs and examples."""
        found = ranks.gather((self.sums, self.outputs, self.examples))
        self.sums = {name: sum(sums[name] for sums, _, _ in found) for name in self.sums}
        self.outputs = [output for _, outputs, _ in found for output in outputs]
        columns = {name for _, _, examples in found for name in examples}
        self.examples = {name: [it for *_, examples in found for it in examples.get(name, [])] for name in columns}

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
        if batch_index % self.trainer.accumulate_grad_batches == 0:
            self.update = []
        before = random_state(batch["rows"].device)
        summed, size, plain = self.loss(batch)
        objective = summed.detach()
        shown = objective if plain is None else plain.detach()
        self.update.append(Microbatch(batch_index, batch, before, objective, shown, size))
        self.log("step", self.trainer.global_step + 1.0)  # loggers then count updates, like checkpoints
        # Lightning divides by the accumulation steps and DDP by the ranks. Both are undone here, because `divisor`
        # already counts the whole update.
        share = spread_non_finite(summed) / batch["divisor"]
        return share * self.trainer.accumulate_grad_batches * self.trainer.world_size

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Logs the loss of the update, the learning rate and the norm of the gradient before clipping.

        Calls `on_non_finite` if the norm is not finite. This covers the losses of all microbatches and ranks, because
        a loss that is not finite makes the gradient NaN, and the gradients of all of them have been summed here. So
        all ranks decide alike. Clipping would turn an infinite gradient into NaN parameters.
        """
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by Lightning
        self.is_loss_logged = bool(every) and (self.trainer.global_step + 1) % every == 0
        if self.is_loss_logged or self.trainer.world_size == 1:  # otherwise the ranks would wait for each other
            self.log_loss()
        self.log("train/lr", optimizer.param_groups[0]["lr"])
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        norm = whole(torch.nn.utils.get_total_norm(gradients))
        if not scales_gradients(optimizer, self.trainer):
            self.log("train/gradient_norm", norm)
        if not torch.isfinite(norm):
            self.on_non_finite(optimizer)

    def on_train_batch_end(self, *_: Any) -> None:
        """Logs the loss of the update after which training stops: Lightning sends it to the loggers in any case."""
        if self.trainer.should_stop and not self.is_loss_logged and self.trainer.world_size > 1:
            self.log_loss()

    def log_loss(self) -> None:
        """Logs the loss of the update over the microbatches of all ranks, and the objective if it differs.

        All ranks must call it.
        """
        sums = {"train/loss": [part.plain for part in self.update]}
        if self.update[0].plain is not self.update[0].objective:
            sums["train/objective"] = [part.objective for part in self.update]
        totals = [torch.stack(parts).sum() for parts in sums.values()]
        size: Any = sum(part.size for part in self.update)
        if self.trainer.world_size > 1:
            here = torch.stack(totals).double()
            whole_update = self.trainer.strategy.reduce(torch.cat([here, here.new_tensor([size])]), reduce_op="sum")
            *totals, size = whole_update.unbind()
        for name, total in zip(sums, totals, strict=True):
            self.log(name, total / max(1, size), prog_bar=name == "train/loss")

    def _stop(self, optimizer: torch.optim.Optimizer) -> None:
        raise NonFiniteLoss(f"the loss or a gradient is not finite at step {self.trainer.global_step + 1}. {REMEDY}")

    def on_validation_epoch_start(self) -> None:
        self.begin_validation()
        self.validating.enter_context(gathered(self.model))  # the processes have different numbers of batches

    def on_validation_epoch_end(self) -> None:
        self.validating.close()
        self.gather(Ranks.present())
        for name, value in self.metrics().items():
            self.log(f"val/{name}", torch.tensor(value, dtype=torch.float64), prog_bar=name == "loss")
        self.log("step", float(self.trainer.global_step))

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        # Reading trainer.estimated_stepping_batches here would make Lightning build the loaders before it restores a
        # checkpoint, and the position in the epoch would be lost.
        steps = self.trainer.datamodule.num_training_steps()  # type: ignore[attr-defined]  # set by Lightning
        assert self.optimization is not None  # set before training
        return self.optimization.build(self.model, steps, self.may_be_fused())

    def may_be_fused(self) -> bool:
        """Whether the optimizer may use a fused kernel."""
        # Lightning cannot clip for a fused optimizer under AMP, and most fused kernels do not know sharded parameters.
        return "mixed" not in str(self.trainer.precision) and not is_sharded(self.model)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps the choice of the kernel, which may differ from that of the run being resumed."""
        for state in checkpoint.get("optimizer_states", []):
            for group in state["param_groups"]:
                if group.get("fused") is not None:
                    group["fused"] = self.may_be_fused()

    def lr_scheduler_step(self, scheduler: Any, metric: Any | None) -> None:
        """Lets a scheduler step, except one that watches a metric: the callback `PlateauSteps` does that."""
        if metric is None:
            super().lr_scheduler_step(scheduler, metric)


def spread_non_finite(loss: Tensor) -> Tensor:
    """The same loss. If it is NaN or infinite, all gradients become NaN; otherwise they are unchanged, bit for bit.

    An infinite loss can have finite gradients: those of -log 0 are. With this, checking the gradients is enough, and
    the loss need not be read, for which the processor would have to wait for the GPU.
    """
    if torch.is_anomaly_enabled():  # it would name this multiplication
        return loss
    return loss * (1.0 + 0.0 * loss.detach())


def scales_gradients(optimizer: torch.optim.Optimizer, trainer: pl.Trainer) -> bool:
    """Whether the gradients are still multiplied by the factor of the gradient scaler (of `trainer.precision=16-mixed`)
    before the update, because the optimizer itself divides by it."""
    has_scaler = getattr(trainer.precision_plugin, "scaler", None) is not None
    return has_scaler and getattr(optimizer, "_step_supports_amp_scaling", False)


def sums_per_row(values: Tensor, mask: Tensor) -> Tensor:
    """The sum of each row's values, float64 (B,) on the CPU.

    mask: bool (B, N), the positions that have a value. values: (K,), one per True in the mask, row by row.
    """
    mask = mask.cpu()
    return torch.zeros(mask.shape, dtype=torch.float64).masked_scatter_(mask, values.cpu().double()).sum(1)
