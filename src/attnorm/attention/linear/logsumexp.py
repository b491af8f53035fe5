"""The two differentiable operations of linear-memory attention. The (N, M) weights are never stored.

In compiled code they are operators (`attnorm.attention.linear.operators`). Elsewhere they are autograd functions around
the same kernels, because those cost less per call: 150 us against 255 us forward and backward at 16 positions.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnorm.attention.linear import kernels, operators


def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """sum_j p_ij v_j with p = softmax over j of scale q_i k_j + b_j, differentiable in q, k, v and the bias.

    q (B, H, N, D); k and v (B, H, M, D); bias broadcastable to (B, H, 1, M), -inf at masked keys. Returns (B, H, N, D)
    in the dtype of q. The output is 0 if all keys are masked.
    """
    if torch.compiler.is_compiling():
        return operators.attention(q, k, v, _spread(bias, k), scale)[0]
    return _Attention.apply(q, k, v, _spread(bias, k), scale)


def logsumexp(q: Tensor, k: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """l_i = log sum_j exp(scale q_i k_j + b_j), differentiable in q, k and the bias.

    The shapes are those of `attention`. Returns (B, H, 1, N) in float32 or wider, which can be used as a bias of the
    transposed problem. If all keys are masked, the result is finite and has no gradient.
    """
    if torch.compiler.is_compiling():
        return operators.logsumexp(q, k, _spread(bias, k), scale)[0].unsqueeze(-2)
    return _LogSumExp.apply(q, k, _spread(bias, k), scale).unsqueeze(-2)


def _spread(bias: Tensor | None, k: Tensor) -> Tensor | None:
    if bias is None:
        return None
    return bias.to(torch.promote_types(k.dtype, torch.float32)).expand(*k.shape[:2], 1, k.shape[-2])


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        out, logsumexp = kernels.forward(q, k, v, bias, scale)
        ctx.save_for_backward(q, k, v, bias, out, logsumexp)
        ctx.scale = scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, out, logsumexp = ctx.saved_tensors
        bias_needs_grad = ctx.needs_input_grad[3]
        return *kernels.backward(grad_out, q, k, v, bias, out, logsumexp, ctx.scale, bias_needs_grad), None


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        mean_key, logsumexp = kernels.forward(q, k, k, bias, scale)  # sum_j p_ij k_j comes for free
        ctx.save_for_backward(q, k, bias, mean_key, logsumexp)
        ctx.scale = scale
        return logsumexp

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, bias, mean_key, logsumexp = ctx.saved_tensors
        bias_needs_grad = ctx.needs_input_grad[2]
        return *operators.logsumexp_backward(grad, q, k, bias, mean_key, logsumexp, ctx.scale, bias_needs_grad), None
