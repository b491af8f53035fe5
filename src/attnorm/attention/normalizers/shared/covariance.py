"""Solves (I + alpha Cov_w(T)) y = x, the linear system at the core of `fenchel`.

The distribution w over the templates T is either shared by all queries or different for each query.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnorm.attention.normalizers.shared.derivatives import once_differentiable
from attnorm.attention.normalizers.shared.solvers import conjugate_gradients


def covariance_solve(T: Tensor, w: Tensor, alpha: float | Tensor, x: Tensor) -> Tensor:
    """Computes (I + alpha Cov_w(T))^-1 x for each row of x, with Cov_w(T) = T'(diag w - w w')T.

    If all queries share one w, this takes one Cholesky factorization per head. Otherwise it uses conjugate gradients,
    because forming N matrices of size D x D takes far longer than a few products with T.

    Shapes: x (B, H, N, D), T (B, H, M, D), w broadcastable to (B, H, N, M) -> (B, H, N, D).
    """
    if w.shape[-2] == 1:
        w = w.expand(*x.shape[:2], 1, -1)
        T = T - w @ T
        identity = torch.eye(T.shape[-1], dtype=T.dtype, device=T.device)
        factor = torch.linalg.cholesky(identity + alpha * (T * w.mT).mT @ T)
        return torch.cholesky_solve(x.mT, factor).mT
    return RowSolve.apply(T, w.expand(*x.shape[:-1], -1), alpha, x)


@torch.no_grad()
def row_solve(T: Tensor, w: Tensor, alpha: float | Tensor, x: Tensor, tolerance: float | Tensor) -> Tensor:
    """Computes (I + alpha Cov_w(T))^-1 x for w (B, H, N, M) by conjugate gradients, without a gradient.

    See `solve_iteratively`. Along the many directions in which the templates hardly vary, the matrix is close to I, so
    a few steps suffice.
    """
    mean = w @ T

    def multiply(p: Tensor) -> Tensor:
        projected = w * (p @ T.mT)
        return p + alpha * (projected @ T - projected.sum(-1, keepdim=True) * mean)

    return solve_iteratively(multiply, x, tolerance)


def solve_iteratively(multiply: Callable[[Tensor], Tensor], x: Tensor, tolerance: float | Tensor) -> Tensor:
    """Solves multiply(y) = x for y (B, H, N, D) by conjugate gradients, without a gradient.

    `multiply` multiplies each row by a matrix that is I plus a positive semidefinite matrix, so the error is at most
    the residual. The iteration stops when the norm of the residual is at most `tolerance` |x|.
    """
    return conjugate_gradients(multiply, x, x.square().sum(-1, keepdim=True) * tolerance**2)


class RowSolve(torch.autograd.Function):
    """Computes y = A^-1 x with A = I + alpha Cov_w(T), one A per row. With a = A^-1 g, the gradient of A is -a y'."""

    @staticmethod
    def forward(ctx: Any, T: Tensor, w: Tensor, alpha: float | Tensor, x: Tensor) -> Tensor:
        y = row_solve(T, w, alpha, x, roundoff(x))
        ctx.alpha = alpha
        ctx.save_for_backward(T, w, x, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (T, w, x, y), alpha = ctx.saved_tensors, ctx.alpha
        a = row_solve(T, w, alpha, g, roundoff(g))
        mean = w @ T
        aT, yT = a @ T.mT, y @ T.mT  # (B, H, N, M)
        aT_mean, yT_mean = ((z * mean).sum(-1, keepdim=True) for z in (a, y))
        grad_w = -alpha * (aT * yT - aT * yT_mean - aT_mean * yT)
        grad_T = -alpha * ((w * (yT - yT_mean)).mT @ a + (w * (aT - aT_mean)).mT @ y)
        grad_alpha = -(a * (x - y)).sum() / alpha if ctx.needs_input_grad[2] else None  # alpha Cov y = x - y
        return grad_T, grad_w, grad_alpha, a


def roundoff(x: Tensor) -> float:
    return 10 * torch.finfo(x.dtype).eps
