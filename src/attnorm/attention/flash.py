"""torch's fused attention kernels, extended by what DNAS needs: a bias per key, its gradient, and the logsumexp.

Both kernels take O(N M) time and O(N + M) memory. On the CPU, the bias is passed as a mask with one row. The CUDA
kernels do not accept a bias without an (N, M) table, so the bias is carried by extra channels of the head: they are 1
in q and bias / scale in k. Each channel holds as much of the bias as 16 bits can represent. Three channels represent
a float32 completely.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

QueryKeyValue = tuple[Tensor, Tensor, Tensor]  # or the gradients of the three

aten = torch.ops.aten
BIAS_PARTS = 3
CHUNK = {"cpu": 2**19, "cuda": 2**26}  # elements of a padded copy, so that copies of all heads never exist at once
SIXTEEN_BITS = (torch.bfloat16, torch.float16)


def supports(q: Tensor) -> bool:
    """Whether a fused kernel exists for the device, dtype and head width of `q` (B, H, N, D)."""
    if q.device.type == "cpu":
        return True
    return q.device.type == "cuda" and q.dtype != torch.float64 and q.shape[-1] + BIAS_PARTS <= 256


def forward(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """o_i = sum_j p_ij v_j and l_i = log sum_j exp(scale q_i k_j + b_j), where p_ij = exp(scale q_i k_j + b_j - l_i).

    q (B, H, N, D); k and v (B, H, M, D); bias (B, H, 1, M) in float32 or wider, -inf at masked keys. Returns o (B, H,
    N, D) in the dtype of q and l (B, H, N) in float32 or wider. If all keys are masked, o is 0 and l is finite.
    """
    if takes_bias(q):
        return cpu_forward(q, k, v, bias, scale)
    if not needs_channels(q, bias):
        return cuda_forward(q, k, v, scale)
    out, logsumexp = torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)
    for heads in head_slices(q, k):
        wide = carry_bias(q[:, heads], k[:, heads], v[:, heads], bias, heads, scale)
        wide_out, logsumexp[:, heads] = cuda_forward(*wide, scale)
        out[:, heads] = wide_out[..., : q.shape[-1]]
    if bias is not None:
        dead = all_out(bias)
        out.masked_fill_(dead, 0.0)
        logsumexp.masked_fill_(dead.squeeze(-1), 0.0)
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
    """Gradients of the o of `forward` with respect to q, k, v and, if requested, the bias (B, H, 1, M).

    Let dS_ij be the gradient of the score s_ij. Consider a channel that is 1 in q and independent of i in k. Such a
    channel does not change the weights, or is itself the bias. Its gradient in k is scale * sum_i dS_ij, which is scale
    times the gradient of the bias.
    """
    if not bias_needs_grad and takes_bias(q):
        return *cpu_backward(grad_out, q, k, v, bias, out, logsumexp, scale), None
    if not bias_needs_grad and not needs_channels(q, bias):
        return *cuda_backward(grad_out, q, k, v, out, logsumexp, scale), None
    if bias is not None and not takes_bias(q):
        grad_out = grad_out.masked_fill(all_out(bias), 0.0)
    width = q.shape[-1]
    grads = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    grad_bias = logsumexp.new_empty(*k.shape[:2], 1, k.shape[-2]) if bias_needs_grad else None
    for heads in head_slices(q, k):
        parts = q[:, heads], k[:, heads], v[:, heads]
        if takes_bias(q):
            wide = F.pad(parts[0], (0, 1), value=1.0), F.pad(parts[1], (0, 1)), F.pad(parts[2], (0, 1))
        else:
            wide = carry_bias(*parts, bias, heads, scale)
        wide_grad, wide_out = (F.pad(x[:, heads], (0, wide[0].shape[-1] - width)) for x in (grad_out, out))
        known = wide_out, logsumexp[:, heads].contiguous(), scale
        if takes_bias(q):
            found = cpu_backward(wide_grad, *wide, None if bias is None else bias[:, heads], *known)
        else:
            found = cuda_backward(wide_grad, *wide, *known)
        for grad, part in zip(grads, found, strict=True):
            grad[:, heads] = part[..., :width]
        if grad_bias is not None:
            grad_bias[:, heads, 0] = found[1][..., width] / scale
    return *grads, grad_bias


def takes_bias(q: Tensor) -> bool:
    """Whether the kernel accepts a bias as a mask with one row. Otherwise, extra channels carry the bias."""
    return q.device.type == "cpu"


def all_out(bias: Tensor) -> Tensor:
    """Whether all keys are masked, (B, H, 1, 1). In channels, such a bias is a constant, which softmax ignores."""
    return (bias == -torch.inf).all(-1, keepdim=True)


def needs_channels(q: Tensor, bias: Tensor | None) -> bool:
    return bias is not None or q.shape[-1] % 8 != 0  # CUDA kernels require a multiple of 8


def head_slices(q: Tensor, k: Tensor) -> Iterator[slice]:
    """Slices of the heads, each small enough that a padded copy has at most about CHUNK elements."""
    batch, heads, _, width = q.shape
    at_once = max(1, CHUNK[q.device.type] // (batch * max(q.shape[-2], k.shape[-2]) * width))
    return (slice(start, min(start + at_once, heads)) for start in range(0, heads, at_once))


def carry_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, heads: slice, scale: float) -> QueryKeyValue:
    """Pads q, k and v with channels up to a multiple of 8. The first of them add bias / scale to q k'."""
    width = q.shape[-1]
    extra = -(width + BIAS_PARTS) % 8 + BIAS_PARTS
    wide = F.pad(q, (0, extra)), F.pad(k, (0, extra)), F.pad(v, (0, extra))
    wide[0][..., width : width + BIAS_PARTS] = 1.0
    if bias is None:
        return wide
    narrow = q.dtype if q.dtype in SIXTEEN_BITS else torch.bfloat16
    least = -6e4 if narrow == torch.float16 else -1e30  # the weight underflows to 0, and sums do not overflow
    rest = (bias[:, heads, 0].float() / scale).clamp(min=least)
    for channel in range(width, width + BIAS_PARTS):
        wide[1][..., channel] = rest.to(narrow).to(k.dtype)
        rest = rest - wide[1][..., channel].float()
    return wide


def cpu_forward(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    out, logsumexp = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=bias, scale=scale)
    return out, logsumexp.contiguous()


def cpu_backward(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor, logsumexp: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_out, q, k, v, out, logsumexp, 0.0, False, attn_mask=bias, scale=scale
    )


def cuda_forward(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    if q.dtype in SIXTEEN_BITS:
        return aten._scaled_dot_product_flash_attention(q, k, v, scale=scale)[:2]
    out, logsumexp, *_ = aten._scaled_dot_product_efficient_attention(q, k, v, None, True, scale=scale)
    return out, logsumexp[..., : q.shape[-2]].contiguous()  # the kernel rounds the length up to a multiple of 32


def cuda_backward(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
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
