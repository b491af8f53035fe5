"""Softpick, "Softpick: No Attention Sink, No Massive Activations with Rectified Softmax" (arXiv 2504.20966)."""

import torch
from torch import Tensor

from attnorm.attention.normalizers._row_map import RowMap
from attnorm.attention.normalizers.base import AT_MOST_ONE
from attnorm.attention.option_checks import above_zero


class Softpick(RowMap):
    """w_ij = relu(exp(s_ij) - 1) / (sum_k |exp(s_ik) - 1| + eps), with s = scores + log u, over the allowed keys.

    A key with a negative score has weight 0, but remains in the denominator. A query whose scores are all at most 0 is
    dead: its weights are 0, and so are their gradients.

    eps: keeps a row of zeros from being 0 / 0.
    """

    total = AT_MOST_ONE
    prior_scale_invariant = False

    def __init__(self, eps: float = 1e-8):
        super().__init__()
        self.eps = above_zero("eps", eps)

    def row_weights(self, scores: Tensor) -> Tensor:
        # |exp(s) - 1| = exp(max(s, 0)) (1 - exp(-|s|)), in which nothing overflows once the maximum is subtracted. The
        # maximum is at least 0, because exp(-maximum) would overflow for scores far below 0.
        positive = scores.relu()
        top = positive.detach().amax(-1, keepdim=True)
        size = (positive - top).exp() * -torch.expm1(-scores.abs())
        size = size.masked_fill(scores == -torch.inf, 0.0)  # a masked key would count |exp(-inf) - 1| = 1
        return size * (scores > 0) / (size.sum(-1, keepdim=True) + self.eps * (-top).exp())
