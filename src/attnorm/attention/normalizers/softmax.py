"""Softmax attention, the lower-normalized scheme (LNAS) of "Doubly-Normalized Attention", Eq. 1."""

import torch
from torch import Tensor

from attnorm.attention.call_context import without_autocast
from attnorm.attention.masking import Mask, dense_mask
from attnorm.attention.normalizers.base import Given, add_log_prior, masked_scores, upcast
from attnorm.attention.normalizers.shared.key_bias import KeyBiased

# that of PyTorch even if a script has put a function of attnorm in the place of F.scaled_dot_product_attention
scaled_dot_product_attention = torch._C._nn.scaled_dot_product_attention


class Softmax(KeyBiased):
    """w_ij = u_j exp(s_ij) / sum_j' u_j' exp(s_ij')."""

    finite_scores = True
    proportional_to_prior = True

    def weights(self, s: Tensor, given: Given) -> Tensor:
        return add_log_prior(s, given.row_prior).softmax(-1)

    def value(self, scores: Tensor, mask: Tensor | Mask | None = None, *, log_prior: Tensor | None = None) -> Tensor:
        """As `RowMap.value`, with Omega(p) = sum_j p_j log p_j: log sum_j u_j exp(s_ij)."""
        s = add_log_prior(masked_scores(scores, mask), log_prior)
        dead = s.amax(-1) == -torch.inf
        return s.masked_fill(dead.unsqueeze(-1), 0.0).logsumexp(-1).masked_fill(dead, 0.0).to(scores.dtype)

    def fast_attend(self, q: Tensor, k: Tensor, v: Tensor, given: Given) -> Tensor:
        """torch's fused attention."""
        mask, log_prior, scale = given.mask, given.log_prior, given.scale
        n_queries, n_keys = q.shape[-2], k.shape[-2]
        if mask is None and log_prior is None:
            return scaled_dot_product_attention(q, k, v, scale=scale)
        alike = log_prior is None and n_queries == n_keys
        if alike and isinstance(mask, Mask) and mask.causal and mask.queries is mask.keys is mask.segments is None:
            return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        out = super().fast_attend(q, k, v, given)
        if out is not None:
            return out
        allowed = dense_mask(mask, q.new_empty(()).expand(1, 1, n_queries, n_keys))
        if allowed is not None:  # torch makes a float copy; avoid one copy per head
            allowed = allowed.expand(*allowed.shape[:-2], n_queries, n_keys)
        if log_prior is None:
            return scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=scale)
        # 16 bits are too coarse for a bias, and beside queries of 16 bits, kernels of CUDA refuse or misread one of 32
        with without_autocast(q):
            x, y, values = map(upcast, (q, k, v))
            bias = log_prior.to(x.dtype).expand(*log_prior.shape[:-2], n_queries, n_keys)
            bias = bias if allowed is None else torch.where(allowed, bias, -torch.inf)
            return scaled_dot_product_attention(x, y, values, attn_mask=bias, scale=scale).to(v.dtype)
