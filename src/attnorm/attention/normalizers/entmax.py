"""Sparse softmaxes: sparsemax (Martins and Astudillo 2016) and alpha-entmax (Peters, Niculae and Martins 2019);
"Neural Attention Mechanisms"."""

import torch
from entmax import entmax15, entmax_bisect, sparsemax
from torch import Tensor

from attnorm.attention.normalizers._row_map import RowMap, finite_number


class Sparsemax(RowMap):
    """w_i = argmin_{p in simplex} |p - s_i|^2, so w_ij = max(s_ij - tau_i, 0) with s = scores + log u.

    tau_i makes the row sum to 1: scores more than 1 below the largest always get weight exactly 0.
    """

    def row_weights(self, scores: Tensor) -> Tensor:
        return sparsemax(scores)


class Entmax(RowMap):
    """w_i = argmax_{p in simplex} p's_i + (1 - sum_j p_j^alpha) / (alpha (alpha - 1)), with s = scores + log u:

    w_ij = max((alpha - 1) s_ij - tau_i, 0)^(1 / (alpha - 1)).

    alpha: the sparsity, a number > 1: towards 1 it is softmax, 2 is sparsemax. 1.5 and 2 are exact, by sorting; the
           others find tau_i by bisection, to the precision of the dtype.
    """

    def __init__(self, alpha: float = 1.5):
        super().__init__()
        if not finite_number(alpha) or alpha <= 1:
            raise ValueError(f"alpha={alpha!r}: allowed are numbers > 1 (towards 1 it becomes softmax, 2 is sparsemax)")
        self.alpha = float(alpha)

    def row_weights(self, scores: Tensor) -> Tensor:
        if self.alpha == 2:
            return sparsemax(scores)
        if self.alpha == 1.5:
            return entmax15(scores)
        # the bisection does not take out the largest score itself, and at 1e4 float32 has only three digits left
        scores = scores - scores.detach().amax(-1, keepdim=True)
        halvings = 56 if scores.dtype == torch.float64 else 28  # of an interval of length <= 1, past the last digit
        return entmax_bisect(scores, self.alpha, n_iter=halvings)
