"""Gradients of solutions by the implicit function theorem, which have no gradient of their own."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

Gradients = tuple[Tensor | None, ...]


def once_differentiable(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """Decorates the `backward` of a `torch.autograd.Function` whose gradients must not be differentiated again.

    The decorator of the same name in torch attaches its error to new leaves. `torch.autograd.grad` with respect to
    other tensors passes by it, and returns a second derivative in which the gradients count as constants. Here the
    error is attached to all that they depend on: the gradients of the outputs and `ctx.saved_tensors`, among which
    must be an input that requires a gradient.
    """

    @wraps(backward)
    def once(ctx: Any, *grads: Tensor) -> Gradients:
        read = ReadOnce(ctx)
        with torch.no_grad():
            gradients = backward(read, *grads)
        behind = [x for x in (*grads, *read.saved_tensors) if x.requires_grad]
        if not torch.is_grad_enabled() or not behind:
            return gradients
        return tuple(x if x is None else NotTwice.apply(x, *behind) for x in gradients)

    return once


class ReadOnce:
    """A context whose saved tensors are unpacked only once, as checkpointing (`torch.utils.checkpoint`) requires."""

    def __init__(self, ctx: Any):
        self.ctx, self.saved_tensors = ctx, ctx.saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ctx, name)


class NotTwice(torch.autograd.Function):
    """Returns x, which was computed from the tensors `behind`. Its gradient raises RuntimeError."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *behind: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        raise RuntimeError("the gradient of a solution was differentiated; only first derivatives are implemented")


class ThroughGradient(torch.autograd.Function):
    """Returns x unchanged. Its gradient g becomes function(g)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.function = function
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return ctx.function(g), None
