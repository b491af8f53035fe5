"""Reading values from the device, for which the processor waits until the device has computed them.

The tensors of a batch come from the host, so their values are known there. `remember` notes them on the tensor, and
`on_both` on what is computed from it. Without such a note, for example after an operation of PyTorch, `on_host` and
`index_by_mask` read the device.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

NOTE = "values_on_host"  # an attribute of tensors


def remember(x: Tensor, values: Tensor) -> Tensor:
    """Notes the values of `x` on the host. Returns `x`. A change of `x` in place, by a callback say, ends the note."""
    return x if values is x else note(x, NOTE, values)


def noted(x: Tensor) -> Tensor | None:
    """The values of `x` on the host, if they are known."""
    return read_note(x, NOTE)


def note(x: Tensor, name: str, value: Any) -> Tensor:
    """Notes something on a tensor, which a change of `x` in place ends. Returns `x`. Compiled code notes nothing."""
    if not torch.compiler.is_compiling():
        setattr(x, name, (value, None if x.is_inference() else x._version))
    return x


def read_note(x: Tensor, name: str) -> Any:
    """What is noted on a tensor under this name, or None."""
    if torch.compiler.is_compiling():
        return None
    value, at = getattr(x, name, (None, None))
    return value if at is None or at == x._version else None


def on_host(x: Tensor) -> Tensor:
    """The values of `x` on the host, from the note or else from the device."""
    values = noted(x)
    return x.cpu() if values is None else values


def on_both(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """`function(*tensors)`. It has a note if all tensors have one."""
    result, values = function(*tensors), []
    for x in tensors:
        if (on_the_host := noted(x)) is None:
            return result
        values.append(on_the_host)
    return remember(result, function(*values))


def index_by_mask(x: Tensor, mask: Tensor) -> Tensor:
    """`x[mask]`, for which the device is not read if the mask has a note.

    x: (*S, ...). mask: bool (*S). Returns (number of True, ...).
    """
    if (values := noted(mask)) is None:
        return x[mask]
    indices = torch.nonzero_static(mask.flatten(), size=int(values.sum())).squeeze(1)
    return x.flatten(0, mask.dim() - 1).index_select(0, indices)


def on_cpu(*tensors: Tensor) -> list[Tensor]:
    """The tensors on the CPU, detached, in one transfer, whatever their shapes and dtypes."""
    wide_first = sorted(range(len(tensors)), key=lambda number: -tensors[number].itemsize)  # so that all are aligned
    flat = [tensors[number].detach().flatten().view(torch.uint8) for number in wide_first]
    moved = torch.cat(flat).cpu().split([len(part) for part in flat])
    parts = dict(zip(wide_first, moved, strict=True))
    return [parts[number].view(x.dtype).view(x.shape) for number, x in enumerate(tensors)]
