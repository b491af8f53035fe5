"""Numbers per head and position that are computed from the hidden states."""

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


def sum_over_later_keys(x: Tensor) -> Tensor:
    """y_j = sum_{k > j} x_k over the last axis. It is summed from the end, where the sums are smallest."""
    return x.flip(-1).cumsum(-1).roll(1, -1).index_fill(-1, x.new_zeros(1).long(), 0.0).flip(-1)
