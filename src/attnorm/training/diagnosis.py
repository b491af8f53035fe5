"""An update whose loss or gradient is NaN or infinite ends the run with an error that says where the value comes from:
the passes of the update are repeated, and the output of every module and every gradient is checked."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from attnorm.attention.normalizers.base import Normalizer
from attnorm.tasks.module import TaskModule
from attnorm.tasks.ranks import Ranks
from attnorm.training.module import Microbatch, NonFiniteLoss, TrainingModule
from attnorm.wording import listed

SHOWN = 8  # examples and parameters that a message names


def refuse_non_finite(trainer: pl.Trainer, module: TrainingModule) -> None:
    """Raises NonFiniteLoss for the update that is being made, whose loss or gradient is not finite.

    With trainer.precision=16-mixed, the gradient scaler skips an update whose loss is finite, and lowers its factor;
    this is an error only if the factor is already down to 1.

    All ranks call this together, because they have the same gradients.
    """
    bad = torch.stack([~part.objective.isfinite() for part in module.update]).sum().float()
    is_loss = bool(trainer.strategy.reduce(bad, reduce_op="sum"))
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    if scaler is not None and not is_loss and scaler.get_scale() > 1.0:
        return
    names = {id(parameter): name for name, parameter in module.model.named_parameters()}
    gradients = not_finite((names[id(parameter)], parameter.grad) for parameter in module.model.parameters())
    parameters = not_finite(module.model.named_parameters())
    data: Any = trainer.datamodule  # type: ignore[attr-defined]  # set by Lightning
    parts = list[tuple[float, int, Finding, list[str]]]()
    for part in module.update:  # also those that are finite: with sharded parameters, all ranks compute together
        finding = examine(module.task_module, part, not is_loss, trainer.precision_plugin.train_step_context())
        examples = data.task.example_ids(data.splits["train"], part.batch["rows"].tolist())
        parts.append((part.objective.item(), part.number, finding, examples))
    every = zip(*Ranks.present().gather((parts, gradients, parameters)), strict=True)
    parts, gradients, parameters = (list(chain.from_iterable(of_ranks)) for of_ranks in every)
    guilty = [part for part in parts if not math.isfinite(part[0])] or parts
    objective, number, *_ = guilty[0]
    if parameters:
        cause = f"parameters are not finite: {listed([*dict.fromkeys(parameters)], SHOWN)}"
    elif output := next((finding.output for _, _, finding, _ in guilty if finding.output), None):
        cause = f"the first output that is not finite is that of {output}"
    elif gradient := next((finding.gradient for _, _, finding, _ in guilty if finding.gradient), None):
        cause = f"the first gradient that is not finite is that of {gradient}"
    elif is_loss:
        cause = "the outputs of all modules are finite"
    elif gradients:
        cause = f"gradients that are not finite: {listed([*dict.fromkeys(gradients)], SHOWN)}"
    else:
        cause = "all gradients are finite, but not their norm"
    what = f"the loss is {objective}" if is_loss else "a gradient is not finite"
    where = f"at step {trainer.global_step + 1} (batch {number} of epoch {trainer.current_epoch})"
    named = listed([example for *_, examples in guilty for example in examples], SHOWN)
    raise NonFiniteLoss(
        f"{what} {where}; {cause}; examples {named}. The update was not made. Try a smaller optimizer.lr."
    )


class Finding(NamedTuple):
    """What the repeated passes of a microbatch show.

    output:   the first module, in the order of computation, whose output is not finite; None if all of them are.
    gradient: the first gradient, starting from the loss, that is not finite: "the output of <module>" or "the
              parameter <name>"; None if all are finite, or if only the forward pass was repeated.
    """

    output: str | None = None
    gradient: str | None = None


def examine(task: TaskModule, part: Microbatch, backward: bool, precision: AbstractContextManager) -> Finding:
    """Repeats the forward pass of a microbatch with the same random state and, if wanted, the backward pass.

    precision: the context in which the passes are made.

    The model, its gradients and the random generators are left as they were. Parameters that are sharded over devices
    take part in the forward pass only.
    """
    sharded = any(hasattr(parameter, "full_tensor") for parameter in task.model.parameters())
    buffers = {name: buffer.clone() for name, buffer in task.model.named_buffers()}
    device = part.batch["rows"].device
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        torch.compiler.set_stance("force_eager"),  # compiled code would not call the hooks
        torch.set_grad_enabled(not sharded),
        precision,
        _watched(task.model) as seen,
    ):
        torch.set_rng_state(part.random_state["cpu"])
        if device.type == "cuda" and "cuda" in part.random_state:
            torch.cuda.set_rng_state(part.random_state["cuda"], device)
        objective = task.loss(part.batch).objective
        if backward and not sharded:
            inputs = [parameter for parameter in task.model.parameters() if parameter.requires_grad]
            torch.autograd.grad(objective / part.batch["divisor"], inputs, allow_unused=True)
    with torch.no_grad():
        for name, buffer in task.model.named_buffers():
            buffer.copy_(buffers[name])
    return Finding(seen.get("output"), seen.get("gradient"))


def not_finite(tensors: Iterable[tuple[str, Tensor | None]]) -> list[str]:
    """The names of the tensors that hold a NaN or an infinite value; None counts as finite."""
    return [name for name, tensor in tensors if tensor is not None and not _local(tensor).isfinite().all()]


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


@contextmanager
def _watched(model: nn.Module) -> Iterator[dict[str, str]]:
    """Notes the first "output" and the first "gradient" that are not finite while a model computes.

    Normalizers are watched as well, although models call their method `attend`.
    """
    seen: dict[str, str] = {}
    handles = []

    def check_gradient(what: str, gradient: Tensor) -> None:
        if "gradient" not in seen and not _local(gradient).isfinite().all():
            seen["gradient"] = what

    def check_output(label: str, output: object) -> None:
        for tensor in _floats_in(output):
            if "output" not in seen and (tensor.isnan() | (tensor == torch.inf)).any():  # -inf marks what is masked
                seen["output"] = label
            if tensor.requires_grad:
                tensor.register_hook(partial(check_gradient, f"the output of {label}"))

    def attend(label: str, original: Callable, *args: Any, **options: Any) -> Tensor:
        output = original(*args, **options)
        check_output(label, output)
        return output

    patched: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for name, module in model.named_modules():
        label = f"{name} ({type(module).__name__})" if name else f"the model ({type(module).__name__})"
        hook = lambda _, __, output, label=label: check_output(label, output)  # noqa: E731 - a hook returns None
        handles.append(module.register_forward_hook(hook))
        if isinstance(module, Normalizer):
            patched.append((module.__dict__, {key: value for key, value in module.__dict__.items() if key == "attend"}))
            module.__dict__["attend"] = partial(attend, label, module.attend)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            handles.append(parameter.register_hook(partial(check_gradient, f"the parameter {name}")))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
        for attributes, before in patched:
            attributes.pop("attend", None)
            attributes |= before


def _floats_in(output: object) -> Iterator[Tensor]:
    """The floating-point tensors in the output of a module: a tensor, or several in tuples, lists and dicts."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, (tuple, list, dict)):
        for part in output.values() if isinstance(output, dict) else output:
            yield from _floats_in(part)
