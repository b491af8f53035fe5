"""Sinkhorn attention: the double normalization of DNAS, repeated ("Doubly-Normalized Attention", Sec. 4, Eq. 10)."""

import torch
from torch import Tensor

from attnorm.attention.linear.logsumexp import logsumexp
from attnorm.attention.normalizers.base import LOWEST, Given, add_log_prior, logsumexp_over_queries
from attnorm.attention.normalizers.shared.key_bias import KeyBiased
from attnorm.attention.option_checks import whole


class Sinkhorn(KeyBiased):
    """Normalizes over the queries, then over the keys, `n_iters` times. n_iters = 1 is DNAS.

    The potentials start at f = 0. Each of the n_iters iterations computes
        g_j = logsumexp_i(s_ij - f_i)             column step
        f_i = logsumexp_j(s_ij - g_j + log u_j)   row step
    and the weights are exp(s_ij - f_i - g_j + log u_j). The gradient flows through every step. A factor on a row of u
    shifts f of that row and thereby the next column step. Therefore, if n_iters >= 2 and the prior differs between
    queries, it must be normalized.
    """

    couples_queries = "all"
    finite_scores = True
    key_shift_invariant = True
    least_mass = 1.0

    def __init__(self, n_iters: int = 3):
        super().__init__()
        self.n_iters = whole("n_iters", n_iters, 1)
        self.proportional_to_prior = self.prior_scale_invariant = n_iters == 1

    def weights(self, s: Tensor, given: Given) -> Tensor:
        for _ in range(self.n_iters - 1):
            s = self.row_step(s.log_softmax(-2), given)
        return add_log_prior(s.log_softmax(-2), given.log_prior).softmax(-1)  # the softmax is the last row step

    @staticmethod
    def row_step(s: Tensor, given: Given) -> Tensor:
        """s_ij - f_i. A query that may see no key stays out of the column steps."""
        s_and_prior = add_log_prior(s, given.log_prior)
        if given.row_prior is None:  # the fused form, whose result is masked again
            return add_log_prior(s_and_prior.log_softmax(-1), given.log_prior)
        f = s_and_prior.logsumexp(-1, keepdim=True)
        return s - f.masked_fill(f < LOWEST / 2, 0.0)

    def key_bias(self, q: Tensor, k: Tensor, given: Given, queries: Tensor | None) -> Tensor:
        without_f, log_prior, scale = queries, given.log_prior, given.scale
        assert scale is not None  # `attend` gives it
        for _ in range(self.n_iters - 1):
            g = logsumexp(k, q, queries, scale)
            f = logsumexp(q, k, add_log_prior(-g, log_prior), scale)
            queries = add_log_prior(-f, without_f)
        g = logsumexp(k, q, queries, scale)
        return add_log_prior(-g, log_prior)


def logsumexp_over_keys(scores: Tensor) -> Tensor:
    """f_i = log sum_j exp(s_ij), (B, H, N, 1). It is 0 for a query that may see no key."""
    return logsumexp_over_queries(scores.transpose(-2, -1).contiguous()).transpose(-2, -1)


def marginal_error(weights: Tensor, allowed: Tensor | None = None) -> Tensor:
    """max_j |sum_i w_ij - N / M| over the live queries and keys, (B, H): how far the columns are from equal mass.

    weights: (B, H, N, M), computed without a prior. allowed: bool, broadcastable to the weights. Sinkhorn's iterations
    drive this error to 0.
    """
    allowed = torch.ones_like(weights, dtype=torch.bool) if allowed is None else allowed.expand(weights.shape)
    live_keys = allowed.any(-2)  # (B, H, M)
    share = allowed.any(-1).sum(-1, keepdim=True).to(weights.dtype) / live_keys.sum(-1, keepdim=True)
    return ((weights.sum(-2) - share).abs() * live_keys).amax(-1)
