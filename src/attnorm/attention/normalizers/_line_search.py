"""The line search of Newton's method, in every row at once."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

ENOUGH, HALVINGS = 1e-4, 40  # the required share of the predicted gain, and the maximum of halvings
Rest = TypeVar("Rest")


def climb(
    objective: Callable[[Tensor], tuple[Tensor, Rest]], r: Tensor, value: Tensor, direction: Tensor, gain: Tensor
) -> tuple[Tensor, Tensor, Rest]:
    """Moves r along a direction by the longest of 1, 1/2, 1/4, ... that gains enough (Armijo), and evaluates it there.

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
