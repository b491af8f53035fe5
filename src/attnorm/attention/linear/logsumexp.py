"""The differentiable operations of linear-memory attention. The (N, M) weights are never stored."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attnorm.attention.linear import operators
from attnorm.attention.linear.flash import consecutive


def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, causal: bool = False) -> Tensor:
    """sum_j p_ij v_j with p = softmax over j of scale q_i k_j + b_j, differentiable in q, k, v and the bias.

    If causal, query i sees the keys j <= i + M - N only: the diagonal is aligned to the end.

    q (B, H, N, D); k (B, H, M, D); v (B, H, M, V); bias broadcastable to (B, H, 1, M), -inf at masked keys. Returns
    (B, H, N, V) in the dtype of q. The output is 0 where all keys are masked. A bias in float64 is used at its full
    precision, whatever the dtype of q. Use it for a bias that grows along the sequence to more than about 100.
    """
    return attention_and_logsumexp(q, k, v, bias, scale, causal, total_needs_grad=False)[0]


def attention_and_logsumexp(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    scale: float,
    causal: bool = False,
    total_needs_grad: bool = True,
) -> tuple[Tensor, Tensor]:
    """The result of `attention`, and l_i = log sum_j exp(scale q_i k_j + b_j) over the keys that query i sees.

    Both are differentiable in q, k, v and the bias, in one pass; l only if `total_needs_grad`. The shapes are those of
    `attention`. Returns (B, H, N, V) and l (B, H, N) in float32 or wider. Where all keys are masked, l is finite and
    has no gradient.
    """
    q, k, v = map(consecutive, (q, k, v))  # which kernels take for granted
    width = v.shape[-1]
    missing = width - k.shape[-1]  # kernels take values as wide as the keys: zeros widen the narrower ones
    if missing > 0:
        q, k = F.pad(q, (0, missing)), F.pad(k, (0, missing))
    elif missing < 0:
        v = F.pad(v, (0, -missing))
    output, total = operators.attention_operator(q, k, v, _spread(bias, k), scale, causal, total_needs_grad)
    return output[..., :width], total


def logsumexp(q: Tensor, k: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """l_i = log sum_j exp(scale q_i k_j + b_j), differentiable in q, k and the bias.

    The shapes are those of `attention`. Returns (B, H, 1, N) in float32 or wider, which can be used as a bias of the
    transposed problem. If all keys are masked, the result is finite and has no gradient.
    """
    q, k = map(consecutive, (q, k))
    bias = None if bias is None else bias.to(torch.promote_types(k.dtype, torch.float32))
    return operators.logsumexp_operator(q, k, _spread(bias, k), scale)[0].unsqueeze(-2)


def _spread(bias: Tensor | None, k: Tensor) -> Tensor | None:
    if bias is None:
        return None
    wide = torch.promote_types(k.dtype, torch.float32)
    return bias.to(torch.promote_types(wide, bias.dtype)).expand(*k.shape[:2], 1, k.shape[-2])
