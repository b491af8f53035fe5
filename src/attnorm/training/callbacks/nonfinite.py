"""An update whose loss or gradient is NaN or infinite: it is reported, and then skipped, or the run ends."""

import logging
import math
from collections.abc import MutableMapping
from itertools import chain
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from attnorm.files import write_json
from attnorm.tasks.ranks import Ranks, whole
from attnorm.training.callbacks.attention_stats import log_now
from attnorm.training.diagnosis import Finding, examine, not_finite, saved
from attnorm.training.module import Microbatch, NonFiniteLoss, TrainingModule, scales_gradients
from attnorm.wording import listed

log = logging.getLogger(__name__)

FOLDER = "failures"
SHOWN = 8  # examples and parameters that a message names; the report has all of them
METRIC = "train/skipped_updates"
REMEDY = "The update was not made. Try a smaller optimizer.lr."


class NonFiniteUpdates(pl.Callback):
    """Skips up to `limit` updates whose loss or gradient is not finite. The next one ends the run with NonFiniteLoss.

    For each of them, the run folder gets ``failures/step_<n>.json``, which says where the value comes from, and
    ``failures/step_<n>.pt`` with the batch and the random state, so that `diagnosis.replay` can repeat the update.
    Further ranks write ``failures/step_<n>_rank_<r>.pt``.

    A skipped update changes neither parameters nor the state of the optimizer. It still counts as an update: the step
    number, the position in the data and the learning-rate schedule advance. The number of skipped updates is part of
    the checkpoint. With trainer.precision=16-mixed, the gradient scaler itself skips an update whose loss is finite and
    lowers its factor; this is not counted unless the factor is already down to 1.

    run_folder: the folder of the run. limit: the number of updates that may be skipped. summary: gets the entry
    "skipped_updates".
    """

    def __init__(self, run_folder: Path, limit: int, summary: MutableMapping[str, Any]):
        self.folder, self.limit, self.summary = run_folder / FOLDER, limit, summary
        self.skipped = summary["skipped_updates"] = 0
        self.logged = 0

    def state_dict(self) -> dict[str, Any]:
        return {"skipped": self.skipped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.skipped = self.logged = self.summary["skipped_updates"] = int(state_dict["skipped"])

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, TrainingModule)
        module.on_non_finite = lambda optimizer: self.handle(trainer, module, optimizer)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if self.skipped > self.logged:  # not earlier, so that the row has the number of this update
            self.logged = self.skipped
            log_now(trainer, {METRIC: float(self.skipped)})

    def handle(self, trainer: pl.Trainer, module: TrainingModule, optimizer: torch.optim.Optimizer) -> None:
        """Reports the update that is being made, and then deletes its gradients or raises NonFiniteLoss.

        All ranks call this together, because they have the same gradients.
        """
        bad = torch.stack([~part.objective.isfinite() for part in module.update]).sum().float()
        bad_losses = int(trainer.strategy.reduce(bad, reduce_op="sum"))
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None and bad_losses == 0 and scaler.get_scale() > 1.0:
            return  # the scaler skips this update and lowers its factor
        buffers = not_finite(module.model.named_buffers())  # a forward pass may have changed them
        skips = self.skipped < self.limit and not buffers
        message = self.report(trainer, module, bad_losses > 0, skips)
        if not skips:
            full = f" run.skip_updates={self.limit} updates have been skipped." if self.skipped else ""
            changed = f" The buffer {buffers[0]} is no longer finite." if buffers else ""
            advice = "" if self.limit else " To skip such updates instead, use run.skip_updates=<number>."
            raise NonFiniteLoss(f"{message} {REMEDY}{full}{changed}{advice}")
        if not scales_gradients(optimizer, trainer):  # otherwise the scaler needs the gradients to skip the update
            for parameter in module.parameters():
                parameter.grad = None  # optimizers leave such parameters and their state alone
        self.skipped += 1
        self.summary["skipped_updates"] = self.skipped
        if trainer.is_global_zero:
            log.warning("%s Skipped this update, %d of at most %d.", message, self.skipped, self.limit)

    def report(self, trainer: pl.Trainer, module: TrainingModule, bad_loss: bool, skips: bool) -> str:
        """Writes the two files and returns the message."""
        step, name = trainer.global_step + 1, f"step_{trainer.global_step + 1:06d}"
        names = {id(parameter): name for name, parameter in module.model.named_parameters()}
        gradients = not_finite((names[id(parameter)], parameter.grad) for parameter in module.model.parameters())
        parameters = not_finite(module.model.named_parameters())
        precision = trainer.precision_plugin.train_step_context
        findings = [examine(module.task_module, part, not bad_loss, precision()) for part in module.update]
        parts = [self.describe(trainer, part, finding) for part, finding in zip(module.update, findings, strict=True)]
        state = {} if skips else module.model.state_dict()  # which may be sharded, so every rank gathers it
        state = {name: whole(tensor.detach()).cpu() for name, tensor in state.items()}
        content = {
            "step": step,
            "epoch": trainer.current_epoch,
            "precision": str(trainer.precision),
            "microbatches": [saved(part) for part in module.update],
            "parameters": state if trainer.is_global_zero and not skips else None,
        }
        self.folder.mkdir(exist_ok=True)
        of_rank = f"_rank_{trainer.global_rank}" if trainer.global_rank else ""
        torch.save(content, self.folder / f"{name}{of_rank}.pt")
        every = zip(*Ranks.present().gather((parts, gradients, parameters)), strict=True)
        parts, gradients, parameters = (list(chain.from_iterable(of_ranks)) for of_ranks in every)
        guilty = [part for part in parts if part["objective"] in ("nan", "inf", "-inf")] or parts
        first = guilty[0]
        record = {
            "step": step,
            "epoch": trainer.current_epoch,
            "what": f"the loss is {first['objective']}" if bad_loss else "a gradient is not finite",
            "output": next((part["output"] for part in guilty if part["output"]), None),
            "gradient": next((part["gradient"] for part in guilty if part["gradient"]), None),
            "parameters": list(dict.fromkeys(parameters)),
            "gradients": list(dict.fromkeys(gradients)),
            "skipped": skips,
            "microbatches": parts,
        }
        path = self.folder / f"{name}.json"
        if trainer.is_global_zero:
            write_json(path, record)
        examples = [example for part in guilty for example in part["examples"]]
        where = f"at step {step} (batch {first['batch']} of epoch {trainer.current_epoch})"
        return f"{record['what']} {where}; {cause(record)}examples {listed(examples, SHOWN)}. See {path}."

    def describe(self, trainer: pl.Trainer, part: Microbatch, finding: Finding) -> dict[str, Any]:
        """The entry of the report about a microbatch."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]  # set by Lightning
        rows = part.batch["rows"].tolist()
        return {
            "rank": trainer.global_rank,
            "batch": part.number,
            "objective": as_json(part.objective),
            "repeated": as_json(finding.objective),
            "output": finding.output,
            "gradient": finding.gradient,
            "shapes": {name: list(tensor.shape) for name, tensor in part.batch.items() if tensor.ndim > 1},
            "rows": rows,
            "examples": data.task.example_ids(data.splits["train"], rows),
        }


def cause(record: dict[str, Any]) -> str:
    """The clause of the message about where the value comes from."""
    if record["parameters"]:
        return f"parameters are not finite: {listed(record['parameters'], SHOWN)}; "
    if record["output"]:
        return f"the first output that is not finite is that of {record['output']}; "
    if record["gradient"]:
        return f"the first gradient that is not finite is that of {record['gradient']}; "
    if record["what"].startswith("the loss"):
        return "the outputs of all modules are finite; "
    if record["gradients"]:
        return f"gradients that are not finite: {listed(record['gradients'], SHOWN)}; "
    return "all gradients are finite, but not their norm; "


def as_json(value: Tensor | float) -> float | str:
    """A number, or a string if it is not finite, for which JSON has no number."""
    number = float(value)
    return number if math.isfinite(number) else str(number)
