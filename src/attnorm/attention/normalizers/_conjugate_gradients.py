"""The method of conjugate gradients (Hestenes and Stiefel 1952), preconditioned, for many linear systems at once."""

from collections.abc import Callable

import torch
from torch import Tensor


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
