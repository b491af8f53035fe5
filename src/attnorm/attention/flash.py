"""torch's fused attention kernels with what DNAS needs of them: a bias on each key, its gradient, and the logsumexp.

Both kernels take time N x M and memory N + M. On the CPU the bias goes in as a mask with one row. On CUDA the kernels
know no bias without an (N, M) table behind it, so it rides in extra channels of the head: q gets 1, k gets bias / scale.
Each channel holds what 16 bits can hold of the bias, three of them all of a float32.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten
BIAS_PARTS = 3
CHUNK = {"cpu": 2**21, "cuda": 2**26}  # elements of a widened copy; so that copies of all heads are never alive at once
SIXTEEN_BITS = (torch.bfloat16, torch.float16)


def supports(q: Tensor) -> bool:
    """Whether there is a fused kernel for the device, dtype and head width of `q` (B, H, N, D)."""
    if q.device.type == "cpu":
        return True
    return q.device.type == "cuda" and q.dtype != torch.float64 and q.shape[-1] + BIAS_PARTS <= 256


def forward(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """o_i = sum_j p_ij v_j and l_i = log sum_j exp(scale q_i k_j + b_j), where p_ij = exp(scale q_i k_j + b_j - l_i).

    q (B, H, N, D), k and v (B, H, M, D); bias (B, H, 1, M) in float32 or wider, -inf at keys that are out. Returns
    o (B, H, N, D) in the dtype of q and l (B, H, N) in float32 or wider; where all keys are out o is 0 and l finite.
    """
    if q.device.type == "cpu":
        out, logsumexp = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=bias, scale=scale)
        return out, logsumexp.contiguous()
    if bias is None and q.shape[-1] % 8 == 0:
        return _cuda_forward(q, k, v, scale)
    out, logsumexp = torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)
    for heads in head_slices(q, k):
        wide_q, wide_k, wide_v = _carry_bias(q[:, heads], k[:, heads], v[:, heads], bias, heads, scale)
        wide_out, logsumexp[:, heads] = _cuda_forward(wide_q, wide_k, wide_v, scale)
        out[:, heads] = wide_out[..., : q.shape[-1]]
    if bias is not None:
        out.masked_fill_((bias == -torch.inf).all(-1, keepdim=True), 0.0)
    return out, logsumexp


def backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    scale: float,
    bias_needs_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of the o of `forward` to q, k, v and, if asked for, the bias (B, H, 1, M).

    The score s_ij has the gradient dS_ij. A channel that is 1 in q and 0 in k leaves the scores alone, and its
    gradient in k is scale * sum_i dS_ij: the gradient of the bias.
    """
    on_cpu = q.device.type == "cpu"
    if not bias_needs_grad and (on_cpu or (bias is None and q.shape[-1] % 8 == 0)):
        run = _cpu_backward if on_cpu else _cuda_backward
        return *run(grad_out, q, k, v, bias, out, logsumexp, scale), None
    width = q.shape[-1]
    grads = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    grad_bias = logsumexp.new_empty(*k.shape[:2], 1, k.shape[-2]) if bias_needs_grad else None
    for heads in head_slices(q, k):
        parts = [x[:, heads] for x in (q, k, v)]
        if on_cpu:
            ones = F.pad(parts[0], (0, 1), value=1.0)
            wide = (ones, *(F.pad(x, (0, 1)) for x in parts[1:]))
            head_bias = None if bias is None else bias[:, heads]
        else:
            wide, head_bias = _carry_bias(*parts, bias, heads, scale), None
        extra = wide[0].shape[-1] - width
        wide_grad, wide_out = F.pad(grad_out[:, heads], (0, extra)), F.pad(out[:, heads], (0, extra))
        run = _cpu_backward if on_cpu else _cuda_backward
        found = run(wide_grad, *wide, head_bias, wide_out, logsumexp[:, heads].contiguous(), scale)
        for grad, part in zip(grads, found, strict=True):
            grad[:, heads] = part[..., :width]
        if grad_bias is not None:
            grad_bias[:, heads, 0] = found[1][..., width] / scale
    return *grads, grad_bias


def head_slices(q: Tensor, k: Tensor) -> Iterator[slice]:
    """The heads, so many at a time that a widened copy stays below CHUNK elements."""
    batch, heads, _, width = q.shape
    at_once = max(1, CHUNK[q.device.type] // (batch * max(q.shape[-2], k.shape[-2]) * width))
    return (slice(start, min(start + at_once, heads)) for start in range(0, heads, at_once))


def _carry_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, heads: slice, scale: float) -> list[Tensor]:
    """q, k, v with zero channels up to a multiple of 8, the first of which add bias / scale to q k'."""
    width = q.shape[-1]
    extra = -(width + BIAS_PARTS) % 8 + BIAS_PARTS
    wide = [F.pad(x, (0, extra)) for x in (q, k, v)]
    wide[0][..., width : width + BIAS_PARTS] = 1.0
    if bias is None:
        return wide
    narrow = q.dtype if q.dtype in SIXTEEN_BITS else torch.bfloat16
    least = -6e4 if narrow == torch.float16 else -1e30  # underflows to weight 0, and sums without overflow
    rest = (bias[:, heads, 0].float() / scale).clamp(min=least)
    for channel in range(width, width + BIAS_PARTS):
        wide[1][..., channel] = rest.to(narrow).to(k.dtype)
        rest = rest - wide[1][..., channel].float()
    return wide


def _cpu_backward(grad_out, q, k, v, bias, out, logsumexp, scale) -> tuple[Tensor, Tensor, Tensor]:
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_out, q, k, v, out, logsumexp, 0.0, False, attn_mask=bias, scale=scale
    )


def _cuda_forward(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    if q.dtype in SIXTEEN_BITS:
        return aten._scaled_dot_product_flash_attention(q, k, v, scale=scale)[:2]
    out, logsumexp, *_ = aten._scaled_dot_product_efficient_attention(q, k, v, None, True, scale=scale)
    return out, logsumexp[..., : q.shape[-2]].contiguous()  # the kernel rounds the length up to a multiple of 32


def _cuda_backward(grad_out, q, k, v, bias, out, logsumexp, scale) -> tuple[Tensor, Tensor, Tensor]:
    assert bias is None, "on CUDA the bias is in the channels"
    unused = [torch.zeros(shape, dtype=torch.int64, device=q.device) for shape in ((2,), ())]  # dropout's random state
    if q.dtype in SIXTEEN_BITS:
        unused = [state.to(torch.uint64) for state in unused]
        lengths = (None, None, q.shape[-2], k.shape[-2])
        return aten._scaled_dot_product_flash_attention_backward(
            grad_out.contiguous(), q, k, v, out, logsumexp, *lengths, 0.0, False, *unused, scale=scale
        )
    logsumexp = F.pad(logsumexp, (0, -q.shape[-2] % 32), value=torch.inf)
    unused[0] = unused[0][0]
    return aten._scaled_dot_product_efficient_attention_backward(
        grad_out, q, k, v, None, out, logsumexp, *unused, 0.0, [True, True, True, False], scale=scale
    )[:3]
