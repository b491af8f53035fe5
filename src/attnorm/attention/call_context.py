"""What surrounds a call: a layer, autocast, compilation, and the transforms of `torch.func`."""

from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

M = TypeVar("M", bound=nn.Module)


def in_layer(normalizer: M) -> M:
    """Marks a normalizer as one that only a layer calls, which knows its masks: it looks for none. Returns it."""
    for part in normalizer.modules():
        vars(part)["_in_layer"] = True
    return normalizer


def being_transformed() -> bool:
    """Whether `torch.func` or forward-mode differentiation is at work, for which the fused kernels have no rules."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def may_look(x: Tensor) -> bool:
    """Whether the values of a tensor can be looked at: it would divide a compiled graph, and `meta` has no values."""
    return not (torch.compiler.is_compiling() or being_transformed() or x.device.type == "meta")


def without_autocast(x: Tensor) -> AbstractContextManager:
    """Turns autocast off for the device of a tensor. Some devices, such as `meta`, have none."""
    kind = x.device.type
    available = kind in ("cpu", "cuda") or torch.amp.is_autocast_available(kind)  # which torch 2.7 does not compile
    return torch.autocast(kind, enabled=False) if available else nullcontext()
