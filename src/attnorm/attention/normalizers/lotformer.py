"""LOTFormer, "LOTFormer: Doubly-Stochastic Linear Attention via Low-Rank Optimal Transport" (arXiv 2509.23436)."""

import torch
from torch import Tensor, nn

from attnorm.attention.call_context import without_autocast
from attnorm.attention.masking import Mask
from attnorm.attention.normalizers.base import (
    Given,
    Normalizer,
    add_log_prior,
    logsumexp_over_queries,
    softmax_over_keys,
    upcast,
)
from attnorm.attention.normalizers.shared.key_bias import separable
from attnorm.attention.normalizers.shared.transport_plans import plan_of_all
from attnorm.attention.normalizers.sinkhorn import logsumexp_over_keys
from attnorm.attention.option_checks import above_zero, whole


class LOTFormer(Normalizer):
    """w_ij = u_j sum_r P_ir R_rj, divided by its sum over j: transport from queries to pivots and from these to keys.

    P is the entropic plan between the queries and the pivots z_r of the head with uniform marginals and the scores
    alpha q_i'z_r / eps. R is that between the pivots and the keys, with the scores alpha z_r'k_j / eps. Both come from
    half steps of Sinkhorn's algorithm, each of which normalizes the rows or the columns of exp(scores). The first one
    is a step of the rows: of each query for P, and of each pivot for R. Only positions that are not masked take part:
    queries that may see the same keys have plans of their own.

    heads, width: the number and the width of the heads.
    pivots:     the number of pivots of each head, >= 1. Initially they are normal numbers times 0.02.
    eps:        the regularization of the transport problems, > 0.
    half_steps: the number of half steps, >= 1. After an odd number of them, the rows of both plans sum to 1.
    """

    couples_queries = "all"
    needs_keys = True
    needs_queries = True
    needs_fixed_alpha = True
    proportional_to_prior = True

    def __init__(self, heads: int, width: int, pivots: int = 16, eps: float = 1.0, half_steps: int = 5):
        super().__init__()
        self.eps, self.half_steps = above_zero("eps", eps), whole("half_steps", half_steps, 1)
        self.pivots = nn.Parameter(0.02 * torch.randn(heads, whole("pivots", pivots, 1), width))

    def plans(self, given: Given, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """log P (B, H, N, R) and log R (B, H, R, M), each up to a number; -inf at other queries and keys than these."""
        assert given.queries is not None and given.keys is not None and given.scale is not None, (
            "needs queries and keys"
        )
        q, k = upcast(given.queries), upcast(given.keys)
        pivots = self.pivots.to(q.dtype) * (given.scale / self.eps)
        from_queries = (q @ pivots.mT).masked_fill(~queries[..., None], -torch.inf)
        to_keys = (pivots @ k.mT).masked_fill(~keys[..., None, :], -torch.inf)
        return self.alternate(from_queries), self.alternate(to_keys)

    def alternate(self, s: Tensor) -> Tensor:
        """The half steps, beginning with the rows: scores -> log plan."""
        for step in range(self.half_steps):
            s = s - (logsumexp_over_queries(s) if step % 2 else logsumexp_over_keys(s))
        return s

    def glue(self, log_p: Tensor, log_r: Tensor) -> tuple[Tensor, Tensor]:
        """Weights of the pivots for each query and of the keys for each pivot. The rows of both sum to 1.

        The mass of a pivot, sum_j R_rj, moves to the weights of the pivots, where it cannot underflow.
        """
        return softmax_over_keys(log_p + logsumexp_over_keys(log_r).mT), softmax_over_keys(log_r)

    def weights(self, s: Tensor, given: Given) -> Tensor:
        def plan(queries: Tensor, keys: Tensor) -> Tensor:
            of_pivots, of_keys = self.glue(*self.plans(given, queries, keys))
            return of_pivots @ of_keys

        return plan_of_all(s, given, plan)

    def fast_attend(self, q: Tensor, k: Tensor, v: Tensor, given: Given) -> Tensor | None:
        """The values are averaged for each pivot, and then for each query. Time and memory grow with (N + M) R."""
        if not separable(given):
            return None
        mask, scale = given.mask, given.scale
        assert scale is not None  # `attend` gives it
        queries, keys = (torch.ones(1, x.shape[-2], dtype=torch.bool, device=x.device) for x in (q, k))
        if isinstance(mask, Mask):
            mask.check_shape(q.shape[0], q.shape[-2], k.shape[-2])
            if mask.segments is not None:
                return mask.each_segment(self.attend, q, k, v, given.log_prior, scale)
            queries = queries if mask.queries is None else mask.queries
            keys = keys if mask.keys is None else mask.keys
        with without_autocast(q):
            log_p, log_r = self.plans(given, queries[:, None], keys[:, None])
            of_pivots, of_keys = self.glue(log_p, add_log_prior(log_r, given.log_prior))
            return (of_pivots @ (of_keys @ upcast(v))).to(v.dtype)
