"""Attention from public operations only, for a block of queries at a time: the fallback on every device."""

import torch
from torch import Tensor

from attnorm.attention.linear import flash
from attnorm.attention.linear.flash import Call, Gradients


class Blockwise:
    """The dense formula for as many queries as give at most about `flash.CHUNK` scores, recomputed backward.

    It is slower than a fused kernel, and its memory is linear as well. Scores and sums are in float32 or wider, also
    under autocast.
    """

    name = "blockwise"

    def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(q.dtype, torch.float32)
        out, logsumexp = torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=wide)
        with torch.autocast(q.device.type, enabled=False):
            for rows in blocks(q, k):
                scores = block_scores(q[..., rows, :], k, bias, scale)
                total = scores.logsumexp(-1)
                total = total.masked_fill(total == -torch.inf, 0.0)
                weights = (scores - total.unsqueeze(-1)).exp_()
                out[..., rows, :] = (weights @ v.to(wide)).to(q.dtype)
                logsumexp[..., rows] = total
        return out, logsumexp

    def backward(self, grad_out: Tensor, call: Call, bias_needs_grad: bool) -> Gradients:
        """With dO the gradient of o: dV = P' dO, dS = P * (dO V' - sum_d dO * O), dQ = scale dS K, dK = scale dS' Q."""
        q, k, v, bias, out, logsumexp, scale = call
        wide = logsumexp.dtype
        keys, values = k.to(wide), v.to(wide)
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(keys), torch.zeros_like(values)
        grad_bias = logsumexp.new_zeros(*k.shape[:2], 1, k.shape[-2]) if bias_needs_grad else None
        with torch.autocast(q.device.type, enabled=False):
            for rows in blocks(q, k):
                grad, queries = grad_out[..., rows, :].to(wide), q[..., rows, :].to(wide)
                weights = (block_scores(queries, k, bias, scale) - logsumexp[..., rows, None]).exp_()
                grad_v += weights.mT @ grad
                mean = (grad * out[..., rows, :]).sum(-1, keepdim=True)
                grad_scores = weights.mul_(grad @ values.mT - mean)
                grad_q[..., rows, :] = (scale * (grad_scores @ keys)).to(q.dtype)
                grad_k += scale * (grad_scores.mT @ queries)
                if grad_bias is not None:
                    grad_bias += grad_scores.sum(-2, keepdim=True)
        return grad_q, grad_k.to(k.dtype), grad_v.to(v.dtype), grad_bias


def block_scores(q: Tensor, k: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """scale q k' + bias in float32 or wider."""
    wide = torch.promote_types(k.dtype, torch.float32)
    scores = (q.to(wide) * scale) @ k.to(wide).mT
    return scores if bias is None else scores + bias


def blocks(q: Tensor, k: Tensor) -> list[slice]:
    """Slices of the queries."""
    batch, heads, queries, _ = q.shape
    at_once = max(1, flash.CHUNK[q.device.type] // (batch * heads * k.shape[-2]))
    return [slice(start, start + at_once) for start in range(0, queries, at_once)]
