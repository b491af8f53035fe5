"""The two differentiable operations of linear-memory attention. The (N, M) weights are never stored."""

import torch
from torch import Tensor

from attnorm.attention.linear import operators


def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """sum_j p_ij v_j with p = softmax over j of scale q_i k_j + b_j, differentiable in q, k, v and the bias.

    q (B, H, N, D); k and v (B, H, M, D); bias broadcastable to (B, H, 1, M), -inf at masked keys. Returns (B, H, N, D)
    in the dtype of q. The output is 0 if all keys are masked.
    """
    return operators.attention(q, k, v, _spread(bias, k), scale)[0]


def logsumexp(q: Tensor, k: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """l_i = log sum_j exp(scale q_i k_j + b_j), differentiable in q, k and the bias.

    The shapes are those of `attention`. Returns (B, H, 1, N) in float32 or wider, which can be used as a bias of the
    transposed problem. If all keys are masked, the result is finite and has no gradient.
    """
    return operators.logsumexp(q, k, _spread(bias, k), scale)[0].unsqueeze(-2)


def _spread(bias: Tensor | None, k: Tensor) -> Tensor | None:
    if bias is None:
        return None
    return bias.to(torch.promote_types(k.dtype, torch.float32)).expand(*k.shape[:2], 1, k.shape[-2])
