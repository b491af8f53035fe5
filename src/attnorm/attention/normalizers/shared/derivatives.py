"""Gradients of solutions by the implicit function theorem, which have no gradient of their own, and second derivatives
of functions whose own are NaN."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from attnorm.attention.call_context import being_transformed

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


def twice_differentiable(y: Tensor, again: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Returns y, whose gradient stays the same. A gradient that is differentiated itself, as with create_graph=True, is
    that of again(*inputs), which is another form of y."""
    differentiable = torch.is_grad_enabled() and y.requires_grad and not being_transformed()
    return Twice.apply(y, again, *inputs) if differentiable and not torch.compiler.is_compiling() else y


class Twice(torch.autograd.Function):
    """See `twice_differentiable`."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, again: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs)
        ctx.again = again
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Gradients:
        inputs = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return (g, None, *[None] * len(inputs))
        with torch.enable_grad():
            learned = [x for x in inputs if x.requires_grad]
            gradients = iter(torch.autograd.grad(ctx.again(*inputs), learned, g, create_graph=True))
        return (None, None, *(next(gradients) if x.requires_grad else None for x in inputs))


def logaddexp(a: Tensor, b: Tensor) -> Tensor:
    """`torch.logaddexp`, of which the second derivatives are NaN if a and b are far apart."""
    return twice_differentiable(torch.logaddexp(a, b), stable_logaddexp, a, b)


def stable_logaddexp(a: Tensor, b: Tensor) -> Tensor:
    top = torch.maximum(a, b).detach()
    return top + ((a - top).exp() + (b - top).exp()).log()
