"""The LightningModule of a run: the training step, the check for non-finite losses, and validation."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor

from attnorm.attention.transfer import on_cpu, remember
from attnorm.errors import UserError
from attnorm.optim import Optimization
from attnorm.tasks.module import TaskModule
from attnorm.tasks.ranks import Ranks, gathered, is_sharded, whole_tensor


class NonFiniteLoss(UserError, RuntimeError):
    """The loss or a gradient is NaN or infinite. The update has not been made."""


class Microbatch(NamedTuple):
    """What is kept of a microbatch until the next update begins, so that a failure can be traced back to its examples.

    number:       number of the batch in its epoch.
    batch:        its tensors, on the device.
    random_state: the states of the random generators before the forward pass, see `random_state`.
    objective:    the summed loss that was minimized, detached.
    plain:        the summed loss that is reported, detached.
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


class TrainingModule(pl.LightningModule):
    """Trains and validates the model of a task.

    task_module:   defines the loss and the metrics.
    model:         its model, so that the names of parameters in checkpoints start with "model.".
    update:        the microbatches of the update that is being made, or was made last.
    on_non_finite: called with the trainer and this module, before the update, if the loss or a gradient is not finite;
                   it raises NonFiniteLoss, see `refuse_non_finite`.
    """

    def __init__(
        self,
        task_module: TaskModule,
        optimization: Optimization,
        on_non_finite: Callable[[pl.Trainer, "TrainingModule"], None],
    ):
        super().__init__()
        self.task_module, self.model, self.optimization = task_module, task_module.model, optimization
        self.on_non_finite = on_non_finite
        self.update: list[Microbatch] = []
        self.totals: list[Tensor] = []  # the `sums` of the latest update, on the CPU
        self.is_loss_logged = False  # whether the loss of the latest update was due to be logged
        self.validating = ExitStack()  # what lasts as long as a validation

    def configure_model(self) -> None:
        """Shards the model, if the strategy of the trainer does that. Called by Lightning."""
        shard = getattr(self.trainer.strategy, "shard", None)
        if shard is not None:
            shard(self.model)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Moves a batch. Its values remain known on the host, where reading them does not wait for the device."""
        moved = super().transfer_batch_to_device(batch, device, dataloader_idx)
        for name, x in batch.items():
            if isinstance(x, Tensor):
                remember(moved[name], x)
        return moved

    def training_step(self, batch: dict[str, Tensor], batch_index: int) -> Tensor:
        """The summed objective of this microbatch, divided by the divisor of the whole update."""
        if batch_index % self.trainer.accumulate_grad_batches == 0:
            self.update = []
        before = random_state(batch["rows"].device)
        summed, size, plain = self.task_module.loss(batch)
        objective = summed.detach()
        shown = objective if plain is None else plain.detach()
        self.update.append(Microbatch(batch_index, batch, before, objective, shown, size))
        # Loggers then count updates, like checkpoints. Of a number, Lightning would make a tensor on the device.
        self.log("step", torch.tensor(self.trainer.global_step + 1.0))
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
        self.log("train/lr", torch.as_tensor(optimizer.param_groups[0]["lr"]))
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        norm = whole_tensor(torch.nn.utils.get_total_norm(gradients))
        # All that is read from the device in an update; loggers and the progress bar get tensors on the CPU.
        sums = self.sums()
        norm, *self.totals = on_cpu(norm, *sums.values())
        if self.trainer.world_size == 1:
            self.log_loss(dict(zip(sums, self.totals, strict=True)))
        elif self.is_loss_logged:  # otherwise the ranks would wait for each other
            self.log_loss(sums)
        # With trainer.precision=16-mixed, an optimizer that divides by the scaler's factor itself has not yet done so.
        divides_itself = getattr(optimizer, "_step_supports_amp_scaling", False)
        if getattr(self.trainer.precision_plugin, "scaler", None) is None or not divides_itself:
            self.log("train/gradient_norm", norm)
        if not torch.isfinite(norm):
            self.on_non_finite(self.trainer, self)

    def on_train_batch_end(self, *_: Any) -> None:
        """Logs the loss of the update after which training stops: Lightning sends it to the loggers in any case."""
        if self.trainer.should_stop and not self.is_loss_logged and self.trainer.world_size > 1:
            self.log_loss(self.sums())

    def sums(self) -> dict[str, Tensor]:
        """The loss of the update, summed over its microbatches on this rank, and the objective if it differs."""
        sums = {"train/loss": [part.plain for part in self.update]}
        if self.update[0].plain is not self.update[0].objective:
            sums["train/objective"] = [part.objective for part in self.update]
        return {name: torch.stack(parts).sum() for name, parts in sums.items()}

    def log_loss(self, sums: dict[str, Tensor]) -> None:
        """Logs the loss of the update over the microbatches of all ranks, and the objective if it differs.

        All ranks must call it.
        """
        totals = list(sums.values())
        size: Any = sum(part.size for part in self.update)
        if self.trainer.world_size > 1:
            here = torch.stack(totals).double()
            whole_update = self.trainer.strategy.reduce(torch.cat([here, here.new_tensor([size])]), reduce_op="sum")
            *totals, size = whole_update.cpu().unbind()
        for name, total in zip(sums, totals, strict=True):
            self.log(name, total / max(1, size), prog_bar=name == "train/loss")

    def on_validation_epoch_start(self) -> None:
        self.task_module.begin_validation()
        self.validating.enter_context(gathered(self.model))  # the processes have different numbers of batches

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        self.task_module.validation_step(batch, batch_index)

    def on_validation_epoch_end(self) -> None:
        self.validating.close()
        self.task_module.gather(Ranks.present())
        metrics, monitor = self.task_module.metrics(), self.task_module.monitor
        if monitor.removeprefix("val/") not in metrics:
            owner = type(self.task_module).__name__
            raise UserError(f"{owner}.monitor={monitor}: no such metric; `metrics` returns {', '.join(metrics)}")
        for name, value in metrics.items():
            self.log(f"val/{name}", torch.tensor(value, dtype=torch.float64), prog_bar=name == "loss")
        self.log("step", torch.tensor(float(self.trainer.global_step)))

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        # Reading trainer.estimated_stepping_batches here would make Lightning build the loaders before it restores a
        # checkpoint, and the position in the epoch would be lost.
        steps = self.trainer.datamodule.num_training_steps()  # type: ignore[attr-defined]  # set by Lightning
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
        """Lets a scheduler step, except one that watches a metric: the callback `ResumeState` does that."""
        if self.optimization.timing.monitor is None:
            super().lr_scheduler_step(scheduler, metric)


def spread_non_finite(loss: Tensor) -> Tensor:
    """The same loss. If it is NaN or infinite, all gradients become NaN; otherwise they are unchanged, bit for bit.

    An infinite loss can have finite gradients: those of -log 0 are. With this, checking the gradients is enough, and
    the loss need not be read, for which the processor would have to wait for the GPU.
    """
    if torch.is_anomaly_enabled():  # it would name this multiplication
        return loss
    return loss * (1.0 + 0.0 * loss.detach())
