"""A problem of attention as tiles that a kernel takes: all keys of some queries, or a square with its diagonal.

`Kernel` knows a causal mask as a square alone. If there are more keys than queries, the diagonal is aligned to the end:
the queries see all of the first keys, which are a tile of their own, and a square of the last ones. The results of the
tiles are joined by their logsumexp.

A bias in float64 beside q in a narrower dtype keeps its precision. Such a bias may grow along the sequence up to
thousands, as the sum of logarithms of forget gates does, where float32 has an absolute error of 1e-4. Only differences
to the largest bias that a query sees matter, so it is subtracted in float64 first. It depends on the query if the mask
is causal. The queries are therefore taken SPAN at a time: a tile of the keys before them has one largest bias, and for
the square of their own keys the differences are stored, (SPAN, SPAN).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from attnorm.attention.linear import kernels
from attnorm.attention.linear.flash import Call, Gradients, Kernel, all_out

SPAN = 256


class Tile(NamedTuple):
    """Queries and the keys that they see, all of them or, if causal, those up to the diagonal of the square."""

    rows: slice
    keys: slice
    causal: bool


def tiled_forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, causal: bool
) -> tuple[Tensor, Tensor]:
    """As `Kernel.forward`, for a causal mask with any number of keys: query i sees the keys j <= i + M - N.

    l is in float64 if the bias is.
    """
    parts = tiles(q, k, bias, causal)
    if takes_all(parts, q, bias):
        return kernels.kernel_for(q, parts[0].causal).forward(q, k, v, bias, scale, parts[0].causal)
    wide = torch.promote_types(q.dtype, torch.float32)
    out = torch.zeros_like(q)
    logsumexp = q.new_full(q.shape[:-1], -torch.inf, dtype=wide if bias is None else bias.dtype)
    for tile in parts:
        kernel, own_bias, top = of_tile(q, bias, tile)
        rows, keys = tile.rows, tile.keys
        part, total = kernel.forward(q[:, :, rows], k[:, :, keys], v[:, :, keys], own_bias, scale, tile.causal)
        total = total.to(logsumexp.dtype) + top
        if bias is not None:
            total = total.masked_fill(all_out(bias[..., keys], tile.causal), -torch.inf)
        before = logsumexp[..., rows]
        both = torch.logaddexp(before, total)
        base = both.masked_fill(both == -torch.inf, 0.0)
        shares = [(x - base).exp().to(wide).unsqueeze(-1) for x in (before, total)]
        out[:, :, rows] = (shares[0] * out[:, :, rows] + shares[1] * part).to(q.dtype)
        logsumexp[..., rows] = both
    return out, logsumexp.masked_fill(logsumexp == -torch.inf, 0.0)


def tiled_backward(grad_out: Tensor, grad_logsumexp: Tensor | None, call: Call, bias_needs_grad: bool) -> Gradients:
    """As `Kernel.backward`, for the o and l of `tiled_forward`."""
    q, k, v, bias, out, logsumexp, scale, causal = call
    parts = tiles(q, k, bias, causal)
    if takes_all(parts, q, bias):
        call = call._replace(causal=parts[0].causal)
        return kernels.kernel_for(q, call.causal).backward(grad_out, grad_logsumexp, call, bias_needs_grad)
    wide = torch.promote_types(q.dtype, torch.float32)
    grad_q, grad_k, grad_v = (torch.zeros_like(x, dtype=wide) for x in (q, k, v))
    grad_bias = logsumexp.new_zeros(*k.shape[:2], 1, k.shape[-2]) if bias_needs_grad else None
    for tile in parts:
        kernel, own_bias, top = of_tile(q, bias, tile)
        rows, keys = tile.rows, tile.keys
        total = (logsumexp[..., rows] - top).to(wide)
        part = Call(
            q[:, :, rows],
            k[:, :, keys],
            v[:, :, keys],
            own_bias,
            out[:, :, rows],
            total.contiguous(),
            scale,
            tile.causal,
        )
        of_total = None if grad_logsumexp is None else grad_logsumexp[..., rows]
        *grads, of_bias = kernel.backward(grad_out[:, :, rows], of_total, part, bias_needs_grad)
        for grad, term, at in zip((grad_q, grad_k, grad_v), grads, (rows, keys, keys), strict=True):
            grad[:, :, at] += term
        if grad_bias is not None and of_bias is not None:
            grad_bias[..., keys] += of_bias
    return grad_q.to(q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype), grad_bias


def tiles(q: Tensor, k: Tensor, bias: Tensor | None, causal: bool) -> list[Tile]:
    """The tiles of a problem. A query without keys is in none of them."""
    queries, before = q.shape[-2], k.shape[-2] - q.shape[-2]
    if not causal or queries == 1:  # a cached step sees all keys
        return [Tile(slice(0, queries), slice(0, k.shape[-2]), False)]
    parts, at_once = [], SPAN if keeps_precision(q, bias) else queries
    for start in range(max(0, -before), queries, at_once):
        rows = slice(start, min(start + at_once, queries))
        if start + before > 0:
            parts.append(Tile(rows, slice(0, start + before), False))
        parts.append(Tile(rows, slice(start + before, rows.stop + before), True))
    return parts


def takes_all(parts: list[Tile], q: Tensor, bias: Tensor | None) -> bool:
    """Whether a kernel takes the problem as it is, in a single call."""
    return len(parts) == 1 and parts[0].rows == slice(0, q.shape[-2]) and not keeps_precision(q, bias)


def keeps_precision(q: Tensor, bias: Tensor | None) -> bool:
    """Whether the bias is wider than the numbers of a kernel."""
    return bias is not None and bias.dtype == torch.float64 and q.dtype != torch.float64


def of_tile(q: Tensor, bias: Tensor | None, tile: Tile) -> tuple[Kernel, Tensor | None, Tensor | float]:
    """The kernel for a tile, its bias, and the numbers (B, H, 1 or rows) that were subtracted from the bias."""
    own_bias = None if bias is None else bias[..., tile.keys]
    if own_bias is None or not keeps_precision(q, own_bias):
        return kernels.kernel_for(q, tile.causal), own_bias, 0.0
    top = own_bias.cummax(-1).values.mT if tile.causal else own_bias.amax(-1, keepdim=True)  # (B, H, rows or 1, 1)
    top = top.masked_fill(top == -torch.inf, 0.0)
    kernel = kernels.FALLBACK if tile.causal else kernels.kernel_for(q, causal=False)
    return kernel, (own_bias - top).to(torch.float32), top.squeeze(-1)
