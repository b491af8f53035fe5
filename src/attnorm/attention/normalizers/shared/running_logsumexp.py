"""The running logsumexp of each key over the queries, which is the column step of the prefix normalizers."""

from typing import Any

import torch
from torch import Tensor

from attnorm.attention.normalizers.base import being_transformed
from attnorm.attention.normalizers.shared.derivatives import stable_logaddexp, twice_differentiable


def running_logsumexp(s: Tensor) -> Tensor:
    """c_ij = log sum_{i' <= i} exp(s_i'j) for finite scores (B, H, N, M), of the same shape.

    It equals `torch.logcumsumexp`, which is used where this has no rules, and which is several times slower on a CPU.
    """
    if torch.compiler.is_compiling() or being_transformed():
        return s.logcumsumexp(-2)
    if s.device.type != "cpu":
        return twice_differentiable(s.logcumsumexp(-2), row_by_row, s)
    return RunningLogsumexp.apply(s)


def row_by_row(s: Tensor) -> Tensor:
    """The same by functions with second derivatives. Those of `torch.logcumsumexp` are NaN where a gradient is 0."""
    c = [s[..., :1, :]]
    for row in s[..., 1:, :].split(1, -2):
        c.append(stable_logaddexp(c[-1], row))
    return torch.cat(c, -2)


class RunningLogsumexp(torch.autograd.Function):
    """Computes c_i = logaddexp(c_{i-1}, s_i) row by row. The gradient with respect to s_i is

    exp(s_i - c_i) r_i,   r_i = g_i + exp(c_i - c_{i+1}) r_{i+1},

    where g_i is that with respect to c_i. No exponent is positive, so nothing overflows.
    """

    @staticmethod
    def forward(ctx: Any, s: Tensor) -> Tensor:
        c = torch.empty_like(s)
        c[..., :1, :] = s[..., :1, :]
        rows, sums = s.unbind(-2), c.unbind(-2)
        for i in range(1, len(rows)):
            torch.logaddexp(sums[i - 1], rows[i], out=sums[i])
        ctx.save_for_backward(s, c)
        return c

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        s, c = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives
            with torch.enable_grad():
                return torch.autograd.grad(row_by_row(s), s, g, create_graph=True)[0]
        r = g.clone()
        decays, sums = (c[..., :-1, :] - c[..., 1:, :]).exp_().unbind(-2), r.unbind(-2)
        for i in reversed(range(len(decays))):
            sums[i].addcmul_(decays[i], sums[i + 1])
        return r.mul_((s - c).exp_())
