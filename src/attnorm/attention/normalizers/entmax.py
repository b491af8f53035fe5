"""Sparse alternatives to softmax, from "Neural Attention Mechanisms": sparsemax (Martins and Astudillo 2016) and
alpha-entmax (Peters, Niculae and Martins 2019).
"""

import math
from typing import Any

import torch
from entmax import entmax15, entmax_bisect, sparsemax
from torch import Tensor, nn

from attnorm.attention.call_context import being_transformed
from attnorm.attention.normalizers.shared.row_map import RowMap
from attnorm.attention.option_checks import finite_number


class Sparsemax(RowMap):
    """w_i = argmin_{p in simplex} |p - s_i|^2, so w_ij = max(s_ij - tau_i, 0) with s = scores + log u.

    The threshold tau_i makes the row sum to 1. A score that is more than 1 below the largest always gets weight 0.
    """

    def row_weights(self, scores: Tensor) -> Tensor:
        return transformable_entmax(scores, 2) if being_transformed() else EntmaxOfLibrary.apply(scores, 2.0)

    def regularizer(self, p: Tensor, allowed: Tensor) -> Tensor:
        """1/2 |p|^2."""
        return p.square().sum(-1) / 2


def transformable_entmax(s: Tensor, alpha: float | Tensor) -> Tensor:
    """alpha-entmax of each row of s (B, H, N, M) by functions that `torch.func` and forward-mode differentiation know.

    The functions of the library `entmax` have no rules for these. alpha: a number, or a tensor broadcastable to s.

    tau is found by bisection, without a gradient. Two steps of Newton's method from there give its first and second
    derivatives.
    """
    least = -1e6  # in place of -inf, whose products with 0 are NaN
    s = (s - s.detach().amax(-1, keepdim=True)).clamp(min=least)

    def powers(s: Tensor, alpha: float | Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
        above, power = (alpha - 1) * s - tau, 1 / (alpha - 1)
        support = above > 0
        above = torch.where(support, above, 1.0)  # 0 has no derivative
        return support * above**power, support * power * above ** (power - 1)

    fixed = alpha.detach() if isinstance(alpha, Tensor) else alpha
    tau, width = torch.full_like(s[..., :1], -1.0).detach(), 1.0
    for _ in range(56 if s.dtype == torch.float64 else 28):
        width /= 2
        enough = powers(s.detach(), fixed, tau + width)[0].sum(-1, keepdim=True) >= 1
        tau = torch.where(enough, tau + width, tau)
    for _ in range(2):
        p, slope = (terms.sum(-1, keepdim=True) for terms in powers(s, alpha, tau))
        tau = tau + (p - 1) / slope
    return powers(s, alpha, tau)[0]


LEAST = 1.01  # the smallest alpha that is learned


class Entmax(RowMap):
    """w_i = argmax_{p in simplex} p's_i + (1 - sum_j p_j^alpha) / (alpha (alpha - 1)), with s = scores + log u:

    w_ij = max((alpha - 1) s_ij - tau_i, 0)^(1 / (alpha - 1)).

    alpha: controls the sparsity; a number > 1. The limit alpha -> 1 is softmax, and 2 is sparsemax. 1.5 and 2 are
           computed exactly by sorting. For other values, tau_i is found by bisection to the precision of the dtype.
    learn: None, "layer" or "head": whether alpha is learned from the initial value `alpha`, one for the layer or one
           for each of the `heads` heads (Correia, Niculae and Martins 2019). It is LEAST + (2 - LEAST) sigmoid(a)
           instead of 1 + sigmoid(a), because near 1 the numbers and gradients of float32 are too coarse.
    """

    def __init__(self, alpha: float = 1.5, learn: str | None = None, heads: int | None = None):
        super().__init__()
        if not finite_number(alpha) or alpha <= 1:
            raise ValueError(f"alpha={alpha!r}: allowed: numbers > 1 (2 is sparsemax, and the limit 1 is softmax)")
        if learn not in (None, "layer", "head"):
            raise ValueError(f"learn={learn!r}: allowed: null, layer, head")
        if learn is not None and not LEAST < alpha < 2:
            raise ValueError(f"alpha={alpha!r}: with learn={learn!r}, allowed: numbers between {LEAST} and 2")
        if learn == "head" and heads is None:
            raise ValueError("learn='head': needs heads=<number of heads>")
        self.initial, self.a = float(alpha), None
        if learn is not None:
            count = heads if learn == "head" and heads else 1
            self.a = nn.Parameter(torch.full((count,), math.log((alpha - LEAST) / (2 - alpha))))

    @property
    def alpha(self) -> float | Tensor:
        """alpha, a number; or, if it is learned, (1 or H, 1, 1)."""
        return self.initial if self.a is None else LEAST + (2 - LEAST) * self.a.sigmoid()[:, None, None]

    def learned_scalars(self) -> dict[str, Tensor]:
        """alpha, (1,) or (heads,), if it is learned."""
        return {"alpha": self.alpha.flatten()} if isinstance(self.alpha, Tensor) else {}

    def fast_parameters(self) -> list[nn.Parameter]:
        """The parameter behind alpha."""
        return [] if self.a is None else [self.a]

    def row_weights(self, scores: Tensor) -> Tensor:
        alpha = self.alpha
        if isinstance(alpha, Tensor):
            alpha = alpha.to(scores.dtype)
        if being_transformed():
            return transformable_entmax(scores, alpha)
        return EntmaxOfLibrary.apply(scores, alpha)

    def regularizer(self, p: Tensor, allowed: Tensor) -> Tensor:
        """(sum_j p_j^alpha - 1) / (alpha (alpha - 1))."""
        alpha = self.alpha
        of_rows = alpha.squeeze(-1) if isinstance(alpha, Tensor) else alpha
        return (p.pow(alpha).sum(-1) - 1) / (of_rows * (of_rows - 1))


class EntmaxOfLibrary(torch.autograd.Function):
    """alpha-entmax of each row by the library `entmax`, with its gradient, in a form whose own gradient is not NaN at
    weights of 0. alpha: a number, or a tensor broadcastable to the scores."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, alpha: float | Tensor) -> Tensor:
        if isinstance(alpha, float) and alpha in (1.5, 2):
            p = entmax15(s) if alpha == 1.5 else sparsemax(s)
        else:
            # entmax_bisect does not subtract the largest score, and at 1e4 float32 has only three decimals left
            s = s - s.amax(-1, keepdim=True)
            halvings = 56 if s.dtype == torch.float64 else 28  # of an interval of length <= 1, beyond the last digit
            p = entmax_bisect(s, alpha, n_iter=halvings)
        ctx.alpha = alpha if isinstance(alpha, float) else None
        ctx.save_for_backward(p, *([] if isinstance(alpha, float) else [alpha]))
        return p

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor | None]:
        p, *learned = ctx.saved_tensors
        alpha = learned[0] if learned else ctx.alpha
        support = p > 0
        positive = torch.where(support, p, 1.0)
        slope = torch.where(support, positive.sqrt() if ctx.alpha == 1.5 else positive ** (2 - alpha), 0.0)
        of_s = g * slope
        of_s = of_s - of_s.sum(-1, keepdim=True) / slope.sum(-1, keepdim=True) * slope
        if not learned:
            return of_s, None
        shares, log_p = slope / slope.sum(-1, keepdim=True), p * positive.log()
        of_alpha = g * (p - shares) / (alpha - 1) ** 2
        of_alpha = of_alpha - g * (log_p - shares * log_p.sum(-1, keepdim=True)) / (alpha - 1)
        return of_s, of_alpha.sum(-1, keepdim=True).sum_to_size(alpha.shape)
