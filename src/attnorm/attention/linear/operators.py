"""The operations of linear-memory attention as operators of torch, which `torch.compile` takes as they are.

    attnorm::attention    attnorm::attention_backward
    attnorm::logsumexp    attnorm::logsumexp_backward

A compiled graph contains one node for each. Their fake implementations tell the compiler shapes, dtypes and strides,
which do not depend on the kernel: outputs with one vector per position are (B, N, H, D) in memory. A gradient of the
bias that is not needed is an empty tensor.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnorm.attention.linear import flash, tiles
from attnorm.attention.linear.flash import Call, empty_like, heads_inside


@torch.library.custom_op("attnorm::attention", mutates_args=())
def attention_operator(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, causal: bool, total_needs_grad: bool
) -> tuple[Tensor, Tensor]:
    """`tiles.tiled_forward`: o (B, H, N, D) and l (B, H, N), which is differentiable if `total_needs_grad`."""
    out, logsumexp = tiles.tiled_forward(q, k, v, bias, scale, causal)
    return heads_inside(out), logsumexp


@torch.library.custom_op("attnorm::attention_backward", mutates_args=())
def attention_backward(
    grad_out: Tensor,
    grad_logsumexp: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    scale: float,
    causal: bool,
    bias_needs_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`tiles.tiled_backward`."""
    call = Call(q, k, v, bias, out, logsumexp, scale, causal)
    *grads, grad_bias = tiles.tiled_backward(grad_out, grad_logsumexp, call, bias_needs_grad)
    grad_q, grad_k, grad_v = map(heads_inside, grads)
    return grad_q, grad_k, grad_v, logsumexp.new_empty(0) if grad_bias is None else grad_bias


@torch.library.custom_op("attnorm::logsumexp", mutates_args=())
def logsumexp_operator(q: Tensor, k: Tensor, bias: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """l (B, H, N), and sum_j p_ij k_j (B, H, N, D), which comes for free."""
    mean_key, total = tiles.tiled_forward(q, k, k, bias, scale, causal=False)
    return total, heads_inside(mean_key)


@torch.library.custom_op("attnorm::logsumexp_backward", mutates_args=())
def logsumexp_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    bias: Tensor | None,
    mean_key: Tensor,
    logsumexp: Tensor,
    scale: float,
    bias_needs_grad: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the logsumexp l with respect to q, k and, if requested, the bias, from grad g (B, H, N).

    dl_i / ds_ij = p_ij: dq_i = scale g_i sum_j p_ij k_j, dk_j = scale sum_i g_i p_ij q_i, db_j = sum_i g_i p_ij.

    As a function of i, p_ij = exp(b_j) exp(s_ij - l_i) is e^(b_j + L_j) times the attention of the keys to the
    queries with the bias -l_i, where L_j is the logsumexp of that attention. This takes one more forward call.

    mean_key: sum_j p_ij k_j, (B, H, N, D).
    """
    grad_q, grad_k = empty_like(q), empty_like(k)
    grad_bias = logsumexp.new_empty(*k.shape[:2], 1, k.shape[-2]) if bias_needs_grad else None
    for heads in flash.head_slices(q, k):
        g = grad[:, heads].unsqueeze(-1)  # (B, h, N, 1)
        grad_q[:, heads] = scale * g * mean_key[:, heads]
        queries, keys = k[:, heads], q[:, heads]  # they swap roles
        values = keys
        if bias_needs_grad:  # in a channel more
            queries, keys, values = (F.pad(x, (0, 1), value=c) for x, c in ((queries, 0.0), (keys, 0.0), (keys, 1.0)))
        values = (g * values).to(q.dtype)
        potentials = -logsumexp[:, heads].unsqueeze(-2)
        sums, transposed = tiles.tiled_forward(queries, keys, values, potentials, scale, causal=False)
        mass = transposed if bias is None else transposed + bias[:, heads, 0]
        sums = mass.exp().unsqueeze(-1) * sums  # (B, h, M, D + 1)
        grad_k[:, heads] = scale * sums[..., : k.shape[-1]]
        if grad_bias is not None:
            grad_bias[:, heads, 0] = sums[..., -1]
        del values, keys, queries, sums  # before those of the next heads are made
    return grad_q, grad_k, logsumexp.new_empty(0) if grad_bias is None else grad_bias


def _empty_total(q: Tensor, bias: Tensor | None) -> Tensor:
    dtype = torch.promote_types(q.dtype, torch.float32) if bias is None else bias.dtype
    return q.new_empty(q.shape[:-1], dtype=dtype)


def _empty_bias(logsumexp: Tensor, k: Tensor, needed: bool) -> Tensor:
    return logsumexp.new_empty((*k.shape[:2], 1, k.shape[-2]) if needed else (0,))


@attention_operator.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *_: Any) -> tuple[Tensor, Tensor]:
    return empty_like(q), _empty_total(q, bias)


@attention_backward.register_fake
def _(grad_out: Tensor, grad_logsumexp: Tensor | None, *call: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v, _, _, logsumexp, _, _, bias_needs_grad = call
    return empty_like(q), empty_like(k), empty_like(v), _empty_bias(logsumexp, k, bias_needs_grad)


@logsumexp_operator.register_fake
def _(q: Tensor, k: Tensor, bias: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    return _empty_total(q, bias), empty_like(q)


@logsumexp_backward.register_fake
def _(grad: Tensor, *call: Any) -> tuple[Tensor, Tensor, Tensor]:
    q, k, _, _, logsumexp, _, bias_needs_grad = call
    return empty_like(q), empty_like(k), _empty_bias(logsumexp, k, bias_needs_grad)


def _save_attention(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale, ctx.causal, ctx.total_needs_grad = inputs
    ctx.save_for_backward(*tensors, *output)
    if not ctx.total_needs_grad:
        ctx.mark_non_differentiable(output[1])


def _attention_gradients(ctx: Any, grad_out: Tensor, grad_total: Tensor) -> tuple[Tensor | None, ...]:
    needed = ctx.needs_input_grad[3]
    of_total = grad_total if ctx.total_needs_grad else None
    *grads, grad_bias = attention_backward(grad_out, of_total, *ctx.saved_tensors, ctx.scale, ctx.causal, needed)
    return *grads, grad_bias if needed else None, None, None, None


def _save_logsumexp(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale = inputs
    total, mean_key = output
    ctx.save_for_backward(*tensors, mean_key, total)
    ctx.mark_non_differentiable(mean_key)
    ctx.set_materialize_grads(False)  # no zeros for that of `mean_key`


def _logsumexp_gradients(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None, None
    needed = ctx.needs_input_grad[2]
    *grads, grad_bias = logsumexp_backward(grad, *ctx.saved_tensors, ctx.scale, needed)
    return *grads, grad_bias if needed else None, None


attention_operator.register_autograd(_attention_gradients, setup_context=_save_attention)
logsumexp_operator.register_autograd(_logsumexp_gradients, setup_context=_save_logsumexp)
