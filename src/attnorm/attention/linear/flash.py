"""torch's fused attention kernels, extended by what DNAS needs: a bias per key, its gradient, and the logsumexp.

All of them take O(N M) time and O(N + M) memory. On the CPU, the bias is passed as a mask with one row. The CUDA
kernels do not accept a bias without an (N, M) table, so the bias is carried by extra channels of the head: they are 1
in q and bias / scale in k. Each channel holds as much of the bias as 16 bits can represent. Three channels represent
a float32 completely.

The operators behind these kernels are private to torch and may change. `attnorm.attention.linear.kernels` checks each
of them before it is used.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

QueryKeyValue = tuple[Tensor, Tensor, Tensor]  # or the gradients of the three
Gradients = tuple[Tensor, Tensor, Tensor, Tensor | None]  # of q, k, v and, if requested, the bias

aten = torch.ops.aten
BIAS_PARTS = 3
CHUNK = {"cpu": 2**19, "cuda": 2**26}  # elements of a padded copy, so that copies of all heads never exist at once
SIXTEEN_BITS = (torch.bfloat16, torch.float16)


class Call(NamedTuple):
    """A call of `Kernel.forward` and its results: the arguments of `Kernel.backward`."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    out: Tensor
    logsumexp: Tensor
    scale: float
    causal: bool


class Kernel(Protocol):
    """An implementation of attention with a bias per key that needs no (N, M) table.

    name: names the kernel in warnings and in run.json.
    """

    name: str

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, causal: bool
    ) -> tuple[Tensor, Tensor]:
        """o_i = sum_j p_ij v_j and l_i = log sum_j exp(s_ij), where s_ij = scale q_i k_j + b_j, p_ij = exp(s_ij - l_i).

        The sums are over all keys, or, if causal, over the keys j <= i of as many as there are queries.

        q (B, H, N, D); k and v (B, H, M, D); bias (B, H, 1, M) in float32 or wider, -inf at masked keys. Returns o (B,
        H, N, D) in the dtype of q and l (B, H, N) in float32 or wider. Where all keys are masked, o is 0 and l finite.
        """
        ...

    def backward(self, grad_out: Tensor, grad_logsumexp: Tensor | None, call: Call, bias_needs_grad: bool) -> Gradients:
        """Gradients with respect to q, k, v and, if requested, the bias (B, H, 1, M), from those of o and l.

        The o and l of the call may be those of a larger problem, of which its keys are a part: the gradients are then
        the terms of these keys.
        """
        ...


class FlashOnCPU:
    """The kernel of `F.scaled_dot_product_attention` on the CPU. It accepts the bias as a mask with one row."""

    name = "flash_attention_for_cpu"

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, causal: bool
    ) -> tuple[Tensor, Tensor]:
        out, logsumexp = aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, causal, attn_mask=bias, scale=scale
        )
        return out, logsumexp.contiguous()

    def backward(self, grad_out: Tensor, grad_logsumexp: Tensor | None, call: Call, bias_needs_grad: bool) -> Gradients:
        if not bias_needs_grad and grad_logsumexp is None:
            return *self.plain_backward(grad_out, call), None
        q, k, v, bias, *_ = call
        extra = BIAS_PARTS if grad_logsumexp is not None and q.dtype in SIXTEEN_BITS else 1

        def widened(heads: slice) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
            padded = [F.pad(x[:, heads], (0, extra), value=value) for x, value in ((q, 1.0), (k, 0.0), (v, 0.0))]
            return padded[0], padded[1], padded[2], None if bias is None else bias[:, heads]

        return wide_backward(widened, self.plain_backward, grad_out, grad_logsumexp, call, bias_needs_grad)

    def plain_backward(self, grad_out: Tensor, call: Call) -> QueryKeyValue:
        """`backward` without the gradient of the bias and from that of o alone."""
        q, k, v, bias, out, logsumexp, scale, causal = call
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad_out, q, k, v, out, logsumexp, 0.0, causal, attn_mask=bias, scale=scale
        )


class InChannels(ABC):
    """A kernel around one without a bias: channels of the head carry the bias.

    A subclass implements `plain_forward` and `plain_backward` for head widths that are multiples of 8.
    """

    name: str

    @abstractmethod
    def plain_forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
        """`Kernel.forward` without a bias."""

    @abstractmethod
    def plain_backward(self, grad_out: Tensor, call: Call) -> QueryKeyValue:
        """`Kernel.backward` without a bias and from the gradient of o alone."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, causal: bool
    ) -> tuple[Tensor, Tensor]:
        if not needs_channels(q, bias):
            return self.plain_forward(q, k, v, scale, causal)
        out, logsumexp = empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)
        for heads in head_slices(q, k):
            wide = carry_bias(q[:, heads], k[:, heads], v[:, heads], bias, heads, scale)
            wide_out, logsumexp[:, heads] = self.plain_forward(*wide, scale, causal)
            out[:, heads] = wide_out[..., : q.shape[-1]]
        if bias is not None:
            dead = all_out(bias, causal)
            out.masked_fill_(dead.unsqueeze(-1), 0.0)
            logsumexp.masked_fill_(dead, 0.0)
        return out, logsumexp

    def backward(self, grad_out: Tensor, grad_logsumexp: Tensor | None, call: Call, bias_needs_grad: bool) -> Gradients:
        q, k, v, bias, _, _, scale, causal = call
        if not bias_needs_grad and grad_logsumexp is None and not needs_channels(q, bias):
            return *self.plain_backward(grad_out, call), None
        if bias is not None:
            dead = all_out(bias, causal)
            grad_out = grad_out.masked_fill(dead.unsqueeze(-1), 0.0)
            grad_logsumexp = None if grad_logsumexp is None else grad_logsumexp.masked_fill(dead, 0.0)

        def widened(heads: slice) -> tuple[Tensor, Tensor, Tensor, None]:
            return *carry_bias(q[:, heads], k[:, heads], v[:, heads], bias, heads, scale), None

        return wide_backward(widened, self.plain_backward, grad_out, grad_logsumexp, call, bias_needs_grad)


class FlashOnCUDA(InChannels):
    """FlashAttention in torch: 16 bits, and an Ampere GPU or newer."""

    name = "flash_attention"

    def plain_forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
        return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=scale)[:2]

    def plain_backward(self, grad_out: Tensor, call: Call) -> QueryKeyValue:
        q, k, v, _, out, logsumexp, scale, causal = call
        random_state = [torch.zeros(shape, dtype=torch.uint64, device=q.device) for shape in ((2,), ())]  # no dropout
        lengths = (None, None, q.shape[-2], k.shape[-2])
        return aten._scaled_dot_product_flash_attention_backward(
            grad_out.contiguous(), q, k, v, out, logsumexp, *lengths, 0.0, causal, *random_state, scale=scale
        )


class EfficientOnCUDA(InChannels):
    """The memory-efficient attention in torch: float32 and 16 bits, also on GPUs older than Ampere."""

    name = "efficient_attention"

    def plain_forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
        out, logsumexp, *_ = aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal, scale=scale)
        return out, logsumexp[..., : q.shape[-2]].contiguous()  # the kernel rounds the length up to a multiple of 32

    def plain_backward(self, grad_out: Tensor, call: Call) -> QueryKeyValue:
        q, k, v, _, out, logsumexp, scale, causal = call
        random_state = [torch.zeros((), dtype=torch.int64, device=q.device) for _ in range(2)]  # no dropout
        logsumexp = F.pad(logsumexp, (0, -q.shape[-2] % 32), value=torch.inf)
        out = heads_inside(out)  # the kernel takes this layout of `out` for granted, without looking at its strides
        needed = [True, True, True, False]
        return aten._scaled_dot_product_efficient_attention_backward(
            grad_out, q, k, v, None, out, logsumexp, *random_state, 0.0, needed, causal, scale=scale
        )[:3]


def wide_backward(
    widened: Callable[[slice], tuple[Tensor, Tensor, Tensor, Tensor | None]],
    plain_backward: Callable[[Tensor, Call], QueryKeyValue],
    grad_out: Tensor,
    grad_logsumexp: Tensor | None,
    call: Call,
    bias_needs_grad: bool,
) -> Gradients:
    """`Kernel.backward` by q, k and v with extra channels, a slice of the heads at a time.

    widened: q, k and v of a slice of the heads with extra channels, of which the first is 1 in q; and its bias. They
             are 0 in v, and at least BIAS_PARTS in 16 bits with a gradient of the logsumexp.
    plain_backward: returns the gradients of q, k and v for such a slice.

    Let dS_ij be the gradient of the score s_ij. Consider a channel that is 1 in q and independent of i in k. Such a
    channel does not change the weights, or is itself the bias. Its gradient in k is scale * sum_i dS_ij, which is scale
    times the gradient of the bias.

    With dO and dL the gradients of o and l, dS_ij = p_ij (sum_d dO_id v_jd - sum_d dO_id o_id + dL_i). The kernels
    compute the second sum from the o that they are given. A channel that is 0 in v, 1 in dO and -dL in o adds the last
    term.
    """
    q, k, v, _, out, logsumexp, scale, causal = call
    width = q.shape[-1]
    grads = empty_like(q), empty_like(k), empty_like(v)
    grad_bias = logsumexp.new_empty(*k.shape[:2], 1, k.shape[-2]) if bias_needs_grad else None
    for heads in head_slices(q, k):
        wide = widened(heads)
        wide_grad, wide_out = (F.pad(x[:, heads], (0, wide[0].shape[-1] - width)) for x in (grad_out, out))
        if grad_logsumexp is not None:
            extra = slice(width, width + min(BIAS_PARTS, wide_out.shape[-1] - width))
            wide_grad[..., extra] = 1.0
            split_into(wide_out[..., extra], -grad_logsumexp[:, heads])
        part = plain_backward(wide_grad, Call(*wide, wide_out, logsumexp[:, heads].contiguous(), scale, causal))
        for grad, wide_part in zip(grads, part, strict=True):
            grad[:, heads] = wide_part[..., :width]
        if grad_bias is not None:
            grad_bias[:, heads, 0] = part[1][..., width] / scale
        del wide, wide_grad, wide_out, part, wide_part  # before those of the next heads are made
    return *grads, grad_bias


def empty_like(x: Tensor) -> Tensor:
    """An empty tensor with the shape of `x` (B, H, N, D) that is (B, N, H, D) in memory, as all results are."""
    return x.new_empty(x.transpose(1, 2).shape).transpose(1, 2)


def heads_inside(x: Tensor) -> Tensor:
    """`x` (B, H, N, D), copied if it is not (B, N, H, D) in memory, as multi-head attention lays it out."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def consecutive(x: Tensor) -> Tensor:
    """`x` (B, H, N, D), copied if the numbers of a row are not consecutive in memory."""
    return x if x.stride(-1) == 1 else x.contiguous()


def all_out(bias: Tensor, causal: bool) -> Tensor:
    """Whether all keys that a query may see are masked, (B, H, 1), or (B, H, N) if causal.

    In channels, such a bias is a constant, which softmax ignores.
    """
    live = bias.squeeze(-2) != -torch.inf
    return live.cumsum(-1) == 0 if causal else ~live.any(-1, keepdim=True)


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
    split_into(wide[1][..., width : width + BIAS_PARTS], (bias[:, heads, 0].float() / scale).clamp(min=least), narrow)
    return wide


def split_into(channels: Tensor, x: Tensor, narrow: torch.dtype | None = None) -> None:
    """Fills `channels` (..., C) with summands of x (...), each rounded to `narrow` or to the dtype of the channels."""
    for n in range(channels.shape[-1]):
        channels[..., n] = x.to(narrow or channels.dtype)
        x = x - channels[..., n].to(x.dtype)
