"""Where a value that is not finite comes from: the passes of an update are repeated, and the output of every module and
every gradient is checked."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnorm.attention.normalizers.base import Normalizer
from attnorm.errors import RunError
from attnorm.tasks.module import TaskModule
from attnorm.training.module import Microbatch


class Finding(NamedTuple):
    """What the repeated passes of a microbatch show.

    objective: the summed loss of the microbatch, as a Python float.
    output:    the first module, in the order of computation, whose output is not finite; None if all of them are.
    gradient:  the first gradient, starting from the loss, that is not finite: "the output of <module>" or "the
               parameter <name>"; None if all are finite, or if only the forward pass was repeated.
    """

    objective: float
    output: str | None = None
    gradient: str | None = None


def examine(
    task: TaskModule, part: Microbatch, backward: bool, precision: AbstractContextManager | None = None
) -> Finding:
    """Repeats the forward pass of a microbatch with the same random state and, if wanted, the backward pass.

    precision: the context in which the passes are made, if it is not the present one.

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
        precision or nullcontext(),
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
    return Finding(objective.item(), seen.get("output"), seen.get("gradient"))


def not_finite(tensors: Iterable[tuple[str, Tensor | None]]) -> list[str]:
    """The names of the tensors that hold a NaN or an infinite value; None counts as finite."""
    return [name for name, tensor in tensors if tensor is not None and not _local(tensor).isfinite().all()]


def replay(file: Path | str, task: TaskModule) -> list[Finding]:
    """Repeats a failed update from a file `failures/step_<n>.pt` of a run folder, one finding per microbatch.

    task: the module of the run. Its parameters are replaced by those in the file if it has them, which is the case for
    the failure that ended the run.
    Raises RunError for a file of another kind.
    """
    device = next(task.model.parameters()).device
    content = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(content, dict) or "microbatches" not in content:
        raise RunError(f"{file}: not a file of a failed update")
    if content.get("parameters") is not None:
        task.model.load_state_dict(content["parameters"])
    task.model.train()
    autocast: Any = nullcontext()
    if content["precision"].endswith("-mixed"):
        dtype = torch.bfloat16 if content["precision"].startswith("bf16") else torch.float16
        autocast = torch.autocast(device.type, dtype)
    findings = []
    with autocast:
        for part in content["microbatches"]:
            batch = {name: tensor.to(device) for name, tensor in part["batch"].items()}
            unknown = torch.zeros(())
            again = Microbatch(part["number"], batch, part["random_state"], unknown, unknown, 1)
            findings.append(examine(task, again, backward=True))
    return findings


def saved(part: Microbatch) -> dict[str, Any]:
    """What a file holds of a microbatch, on the CPU."""
    batch = {name: tensor.cpu() for name, tensor in part.batch.items()}
    return {"number": part.number, "batch": batch, "random_state": part.random_state, "objective": part.objective.cpu()}


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
