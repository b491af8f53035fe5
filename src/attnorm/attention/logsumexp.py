"""The two differentiable operations of memory-linear attention. The (N, M) weights are never stored."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnorm.attention import flash


def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """sum_j p_ij v_j with p = softmax over j of scale q_i k_j + b_j, differentiable in q, k, v and the bias.

    q (B, H, N, D); k and v (B, H, M, D); bias broadcastable to (B, H, 1, M), -inf at masked keys. Returns (B, H, N, D)
    in the dtype of q. The output is 0 if all keys are masked.
    """
    return _Attention.apply(q, k, v, _spread(bias, k), scale)


def logsumexp(q: Tensor, k: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """l_i = log sum_j exp(scale q_i k_j + b_j), differentiable in q, k and the bias.

    The shapes are those of `attention`. Returns (B, H, 1, N) in float32 or wider, which can be used as a bias of the
    transposed problem. If all keys are masked, the result is finite and has no gradient.
    """
    return _LogSumExp.apply(q, k, _spread(bias, k), scale).unsqueeze(-2)


def _spread(bias: Tensor | None, k: Tensor) -> Tensor | None:
    if bias is None:
        return None
    return bias.to(torch.promote_types(k.dtype, torch.float32)).expand(*k.shape[:2], 1, k.shape[-2])


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        out, logsumexp = flash.forward(q, k, v, bias, scale)
        ctx.save_for_backward(q, k, v, bias, out, logsumexp)
        ctx.scale = scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, out, logsumexp = ctx.saved_tensors
        bias_needs_grad = ctx.needs_input_grad[3]
        return *flash.backward(grad_out, q, k, v, bias, out, logsumexp, ctx.scale, bias_needs_grad), None


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        mean_key, logsumexp = flash.forward(q, k, k, bias, scale)  # sum_j p_ij k_j comes for free
        ctx.save_for_backward(q, k, bias, mean_key, logsumexp)
        ctx.scale = scale
        return logsumexp

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """dl_i / ds_ij = p_ij: dq_i = scale g_i sum_j p_ij k_j, dk_j = scale sum_i g_i p_ij q_i, db_j = sum_i g_i p_ij.

        As a function of i, p_ij = exp(b_j) exp(s_ij - l_i) is e^(b_j + L_j) times the attention of the keys to the
        queries with the bias -l_i, where L_j is the logsumexp of that attention. This takes one more forward call.
        """
        q, k, bias, mean_key, logsumexp = ctx.saved_tensors
        grad_q = (ctx.scale * grad.unsqueeze(-1) * mean_key).to(q.dtype)
        grad_k = torch.empty_like(k)
        grad_bias = torch.empty_like(bias, memory_format=torch.contiguous_format) if ctx.needs_input_grad[2] else None
        extra = int(grad_bias is not None)  # one channel for the gradient of the bias
        for heads in flash.head_slices(q, k):
            g = grad[:, heads].unsqueeze(-1)  # (B, h, N, 1)
            values = (g * F.pad(q[:, heads], (0, extra), value=1.0)).to(q.dtype)
            keys, queries = (F.pad(x[:, heads], (0, extra)) for x in (q, k))  # queries and keys swap roles
            sums, transposed = flash.forward(queries, keys, values, -logsumexp[:, heads].unsqueeze(-2), ctx.scale)
            mass = transposed if bias is None else transposed + bias[:, heads, 0]
            sums = mass.exp().unsqueeze(-1) * sums  # (B, h, M, D + 1)
            grad_k[:, heads] = ctx.scale * sums[..., : k.shape[-1]]
            if grad_bias is not None:
                grad_bias[:, heads, 0] = sums[..., -1]
        return grad_q, grad_k, grad_bias, None
