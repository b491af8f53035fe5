"""Whether the parameters of a checkpoint are those of a model, and finite."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from attnorm.errors import CheckpointError


def nonfinite_tensors(tensors: Mapping[str, Tensor]) -> list[str]:
    """The tensors with a value that is NaN or infinite, and how many of them."""
    broken = []
    for name, tensor in tensors.items():
        # a finite sum is enough, and several times faster to find out
        if not torch.isfinite(tensor.sum()) and not torch.isfinite(tensor).all():
            count = int((~torch.isfinite(tensor)).sum())
            broken.append(f"{name} ({count:,} of {tensor.numel():,} values)")
    return broken


def parameters_of(content: dict[str, Any]) -> dict[str, Tensor]:
    """The parameters in a checkpoint by their names in the model; there they are those of the LightningModule."""
    return {name.removeprefix("model."): tensor for name, tensor in content["state_dict"].items()}


@contextmanager
def not_much_larger(content: dict[str, Any], path: Path) -> Iterator[None]:
    """Raises CheckpointError when the model that is built in this context has far more parameters than a checkpoint,
    read from `path`: the settings of someone else's run may ask for a million layers."""
    tensors, numbers = len(content["state_dict"]), count(1)
    most = 1000 + 10 * tensors  # parameters that are shared are registered several times

    def check(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        if next(numbers) > most:
            much = f"has {tensors:,} tensors, and the model over {most:,} parameters"
            raise CheckpointError(f"{path}: does not fit the model and the tokenizer: it {much}")

    hook = register_module_parameter_registration_hook(check)
    try:
        yield
    finally:
        hook.remove()


def check_fit(model: nn.Module, content: dict[str, Any], path: Path) -> None:
    """Raises CheckpointError if the parameters of a checkpoint, read from `path`, have other names, shapes or kinds of
    numbers than those of the model, or are not finite."""
    tensors, parameters = parameters_of(content), model.state_dict()
    problems = [f"{name} is missing" for name in parameters if name not in tensors]
    problems += [f"{name} is not part of the model" for name in tensors if name not in parameters]
    for name in parameters.keys() & tensors.keys():
        tensor, parameter = tensors[name], parameters[name]
        if tensor.shape != parameter.shape:
            problems.append(f"{name} has the shape {tuple(tensor.shape)}, the model's has {tuple(parameter.shape)}")
        elif tensor.is_floating_point() != parameter.is_floating_point() or tensor.is_complex():
            problems.append(f"{name} is of {tensor.dtype}, the model's is of {parameter.dtype}")
        elif tensor.is_meta or tensor.layout is not torch.strided:
            problems.append(f"{name} is not a plain tensor")
    if problems:
        raise CheckpointError(f"{path}: does not fit the model and the tokenizer: {first_problems(sorted(problems))}")
    if broken := nonfinite_tensors(tensors):
        raise CheckpointError(f"{path}: the parameters are not finite: {first_problems(broken)}")


def first_problems(problems: list[str]) -> str:
    """The first problems in one line, and how many more there are."""
    return "; ".join(problems[:3]) + f"; and {len(problems) - 3} more" * (len(problems) > 3)
