"""Base class of the normalizers that map each row of scores independently of the other rows."""

from collections.abc import Callable

import torch
from torch import Tensor

from attnorm.attention.masking import Mask
from attnorm.attention.normalizers.base import Given, Normalizer, add_log_prior, masked_scores, upcast


class RowMap(Normalizer):
    """Each row of weights is a function of the same row of s = scores + log u only.

    A subclass implements `row_weights`. If the weights are argmax_{p in simplex} <p, s> - Omega(p), it also implements
    `regularizer`, which is Omega, and `value` is the maximum.
    """

    def row_weights(self, scores: Tensor) -> Tensor:
        """Maps scores (B, H, N, M) to weights of the same shape.

        The scores are in float32 or wider. They are -inf where the weight must be 0, but no row consists of -inf only.
        """
        raise NotImplementedError

    def weights(self, s: Tensor, given: Given) -> Tensor:
        return map_rows(lambda s, forbidden: self.row_weights(s), add_log_prior(s, given.log_prior))

    def regularizer(self, p: Tensor, allowed: Tensor) -> Tensor:
        """Omega(p) for weights p (B, H, N, M) -> (B, H, N). p is 0 where it is not `allowed`, bool (B, H, N, M)."""
        raise NotImplementedError

    def value(self, scores: Tensor, mask: Tensor | Mask | None = None, *, log_prior: Tensor | None = None) -> Tensor:
        """Computes max_Omega(s) = max_{p in simplex} <p, s> - Omega(p), (B, H, N), in the dtype of `scores`.

        The maximum is over the allowed keys, and 0 in a row without any. By Danskin's theorem, its gradient with
        respect to s is the row of weights.
        """
        p = self(upcast(scores), mask, log_prior=log_prior).detach()
        return value_at(p, self.regularizer, scores, mask, log_prior)


def map_rows(row_weights: Callable[[Tensor, Tensor], Tensor], s: Tensor) -> Tensor:
    """Applies `row_weights(s, forbidden)` to s = scores + log u, (B, H, N, M), and returns the weights.

    The weights are 0 where `forbidden`. There s is -inf, except in a dead row (one without any allowed key), which is
    passed as zeros. As with softmax, a row with a NaN or +inf score gets NaN weights. Such a row is also passed as
    zeros, because sorting and indexing can crash on NaN.
    """
    forbidden = s == -torch.inf
    top = s.detach().amax(-1, keepdim=True)
    broken = top.isnan() | (top == torch.inf)
    weights = row_weights(s.masked_fill(broken | (top == -torch.inf), 0.0), forbidden)
    return weights.masked_fill(forbidden, 0.0).masked_fill(broken, torch.nan)


def value_at(
    p: Tensor,
    regularizer: Callable[[Tensor, Tensor], Tensor],
    scores: Tensor,
    mask: Tensor | Mask | None,
    log_prior: Tensor | None,
) -> Tensor:
    """Computes <p, s> - Omega(p) over the allowed keys of each row, (B, H, N), and 0 in a row without any."""
    s = add_log_prior(masked_scores(scores, mask), log_prior)
    allowed = (s != -torch.inf).expand(p.shape)
    value = (p.to(s.dtype) * s.masked_fill(~allowed, 0.0)).sum(-1) - regularizer(p.to(s.dtype), allowed).to(s.dtype)
    return value.masked_fill(~allowed.any(-1), 0.0).to(scores.dtype)
