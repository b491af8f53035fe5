"""Sparse alternatives to softmax, from "Neural Attention Mechanisms": sparsemax (Martins and Astudillo 2016) and
alpha-entmax (Peters, Niculae and Martins 2019).
"""

import torch
from entmax import entmax15, entmax_bisect, sparsemax
from torch import Tensor

from attnorm.attention.normalizers._row_map import RowMap
from attnorm.attention.option_checks import finite_number


class Sparsemax(RowMap):
    """w_i = argmin_{p in simplex} |p - s_i|^2, so w_ij = max(s_ij - tau_i, 0) with s = scores + log u.

    The threshold tau_i makes the row sum to 1. A score that is more than 1 below the largest always gets weight 0.
    """

    def row_weights(self, scores: Tensor) -> Tensor:
        return sparsemax(scores)

    def regularizer(self, p: Tensor, allowed: Tensor) -> Tensor:
        """1/2 |p|^2."""
        return p.square().sum(-1) / 2


class Entmax(RowMap):
    """w_i = argmax_{p in simplex} p's_i + (1 - sum_j p_j^alpha) / (alpha (alpha - 1)), with s = scores + log u:

    w_ij = max((alpha - 1) s_ij - tau_i, 0)^(1 / (alpha - 1)).

    alpha: controls the sparsity; a number > 1. The limit alpha -> 1 is softmax, and 2 is sparsemax. 1.5 and 2 are
           computed exactly by sorting. For other values, tau_i is found by bisection to the precision of the dtype.
    """

    def __init__(self, alpha: float = 1.5):
        super().__init__()
        if not finite_number(alpha) or alpha <= 1:
            raise ValueError(f"alpha={alpha!r}: allowed: numbers > 1 (2 is sparsemax, and the limit 1 is softmax)")
        self.alpha = float(alpha)

    def row_weights(self, scores: Tensor) -> Tensor:
        if self.alpha == 2:
            return sparsemax(scores)
        if self.alpha == 1.5:
            return entmax15(scores)
        # entmax_bisect does not subtract the largest score, and at 1e4 float32 has only three decimals left
        scores = scores - scores.detach().amax(-1, keepdim=True)
        halvings = 56 if scores.dtype == torch.float64 else 28  # of an interval of length <= 1, beyond the last digit
        return entmax_bisect(scores, self.alpha, n_iter=halvings)

    def regularizer(self, p: Tensor, allowed: Tensor) -> Tensor:
        """(sum_j p_j^alpha - 1) / (alpha (alpha - 1))."""
        return (p.pow(self.alpha).sum(-1) - 1) / (self.alpha * (self.alpha - 1))
