"""Numbers per head and position that are computed from the hidden states."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PerPosition(nn.Linear):
    """Linear maps W x + b of the states, `count` for each head: (B, L, W) -> (B, H, L, count). b is 0 at first."""

    def __init__(self, heads: int, state_width: int, count: int):
        super().__init__(state_width, heads * count)
        self.count = count
        nn.init.zeros_(self.bias)

    def forward(self, states: Tensor) -> Tensor:
        weight, bias = (parameter.to(states.dtype) for parameter in (self.weight, self.bias))  # those of a 16-bit model
        return F.linear(states, weight, bias).unflatten(-1, (-1, self.count)).transpose(1, 2)


def sum_over_later_keys(x: Tensor, segments: Tensor | None = None) -> Tensor:
    """y_j = sum_{k > j} x_k over the last axis. It is summed from the end, where the sums are smallest.

    segments: int, broadcastable to x. Only the keys of the same segment are summed.
    """
    if segments is not None:
        ids, order = segments.long().sort(stable=True)
        later = sum_over_later_keys(x.gather(-1, order.expand_as(x)))
        last = torch.searchsorted(ids.contiguous(), ids.contiguous(), right=True) - 1  # of each segment
        later = later - later.gather(-1, last.expand_as(x))
        return torch.empty_like(x).scatter(-1, order.expand_as(x), later)
    return x.flip(-1).cumsum(-1).roll(1, -1).index_fill(-1, x.new_zeros(1).long(), 0.0).flip(-1)
