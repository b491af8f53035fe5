"""Numerical solvers for many rows at once: conjugate gradients (Hestenes and Stiefel 1952), and a line search."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

ENOUGH, HALVINGS = 1e-4, 40  # the required share of the predicted gain, and the maximum of halvings

Rest = TypeVar("Rest")


@torch.no_grad()
def conjugate_gradients(
    multiply: Callable[[Tensor], Tensor],
    b: Tensor,
    enough: Tensor,
    precondition: Callable[[Tensor], Tensor] = lambda r: r,
) -> Tensor:
    """Solves A x = b in each row of b (..., M) for a positive semidefinite A, preconditioned by P, without a gradient.

    multiply, precondition: compute A x and P r for rows (..., M).
    enough: (..., 1). A row is finished when <r, P r> of its residual r = b - A x is at most this.
    """
    if b.is_meta:  # it has a shape, but no values that decide when to stop
        return torch.empty_like(b)
    x, r = torch.zeros_like(b), b
    direction = preconditioned = precondition(r)
    size = (r * preconditioned).sum(-1, keepdim=True)
    for _ in range(10 * b.shape[-1]):  # M steps suffice in exact arithmetic
        going = size > enough
        if not going.any():
            break
        product = multiply(direction)
        bend = (direction * product).sum(-1, keepdim=True)
        going = going & (bend > 0)
        length = torch.where(going, size / bend, 0.0)
        x = x + length * direction
        r = r - length * product
        preconditioned = precondition(r)
        size, previous = torch.where(going, (r * preconditioned).sum(-1, keepdim=True), 0.0), size
        direction = preconditioned + torch.where(going, size / previous, 0.0) * direction
    return x


def climb(
    objective: Callable[[Tensor], tuple[Tensor, Rest]], r: Tensor, value: Tensor, direction: Tensor, gain: Tensor
) -> tuple[Tensor, Tensor, Rest]:
    """The line search of Newton's method: moves r along a direction by the longest of 1, 1/2, 1/4, ... that gains
    enough (Armijo), and evaluates it there.

    objective: the value of each row, (..., 1), and whatever else it computes. value: that of r.
    r, direction: (..., D). gain: the derivative of the value along the direction, (..., 1).

    Returns the new r, its value, and the rest. A row for which no length gains enough moves by the last one.
    """
    length, slack = torch.ones_like(gain), 1e-13 * (1 + value.abs())
    for _ in range(HALVINGS):
        new_r = r + length * direction
        new_value, rest = objective(new_r)
        enough = new_value >= value + ENOUGH * length * gain - slack
        if enough.all():
            break
        length = torch.where(enough, length, length / 2)
    return new_r, new_value, rest
