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

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, causal: bool
    ) -> tuple[Tensor, Tensor]:
        """As `Kernel.forward`. The bias may also be one per pair, (B, H, N, M)."""
        wide = torch.promote_types(q.dtype, torch.float32)
        out, logsumexp = torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=wide)
        values = v.to(wide)
        with torch.autocast(q.device.type, enabled=False):
            for rows, seen in blocks(q, k, causal):
                scores = block_scores(q, k, bias, scale, causal, rows, seen)
                total = scores.logsumexp(-1)
                total = total.masked_fill(total == -torch.inf, 0.0)
                weights = (scores - total.unsqueeze(-1)).exp_()
                out[..., rows, :] = (weights @ values[..., seen, :]).to(q.dtype)
                logsumexp[..., rows] = total
        return out, logsumexp

    def backward(self, grad_out: Tensor, grad_logsumexp: Tensor | None, call: Call, bias_needs_grad: bool) -> Gradients:
        """As `Kernel.backward`. With dO and dL the gradients of o and l,

        dV = P' dO, dS = P * (dO V' - sum_d dO * O + dL), dQ = scale dS K, dK = scale dS' Q.
        """
        q, k, v, bias, out, logsumexp, scale, causal = call
        wide = logsumexp.dtype
        keys, values = k.to(wide), v.to(wide)
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(keys), torch.zeros_like(values)
        grad_bias = logsumexp.new_zeros(*k.shape[:2], 1, k.shape[-2]) if bias_needs_grad else None
        with torch.autocast(q.device.type, enabled=False):
            for rows, seen in blocks(q, k, causal):
                grad, queries = grad_out[..., rows, :].to(wide), q[..., rows, :].to(wide)
                weights = (block_scores(q, k, bias, scale, causal, rows, seen) - logsumexp[..., rows, None]).exp_()
                grad_v[..., seen, :] += weights.mT @ grad
                mean = (grad * out[..., rows, :]).sum(-1, keepdim=True)
                if grad_logsumexp is not None:
                    mean = mean - grad_logsumexp[..., rows, None]
                grad_scores = weights.mul_(grad @ values[..., seen, :].mT - mean)
                grad_q[..., rows, :] = (scale * (grad_scores @ keys[..., seen, :])).to(q.dtype)
                grad_k[..., seen, :] += scale * (grad_scores.mT @ queries)
                if grad_bias is not None:
                    grad_bias[..., seen] += grad_scores.sum(-2, keepdim=True)
        return grad_q, grad_k.to(k.dtype), grad_v.to(v.dtype), grad_bias


def block_scores(
    q: Tensor, k: Tensor, bias: Tensor | None, scale: float, causal: bool, rows: slice, seen: slice
) -> Tensor:
    """scale q k' + bias of a block in float32 or wider. If causal, it is -inf above the diagonal."""
    wide = torch.promote_types(k.dtype, torch.float32)
    scores = (q[..., rows, :].to(wide) * scale) @ k[..., seen, :].to(wide).mT
    if bias is not None:
        scores += bias[..., seen] if bias.shape[-2] == 1 else bias[..., rows, seen]
    if causal:
        square = scores[..., rows]
        later = torch.ones(square.shape[-2:], dtype=torch.bool, device=q.device).triu_(1)
        square.masked_fill_(later, -torch.inf)
    return scores


def blocks(q: Tensor, k: Tensor, causal: bool) -> list[tuple[slice, slice]]:
    """Slices of the queries, each with the keys that they see, up to the diagonal if causal."""
    batch, heads, queries, _ = q.shape
    keys = k.shape[-2]
    at_once = max(1, flash.CHUNK[q.device.type] // (batch * heads * keys))
    stops = ((start, min(start + at_once, queries)) for start in range(0, queries, at_once))
    return [(slice(start, stop), slice(0, stop if causal else keys)) for start, stop in stops]
