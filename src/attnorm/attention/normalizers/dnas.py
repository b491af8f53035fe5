"""Doubly-normalized attention (DNAS), "Doubly-Normalized Attention", Eq. 7-8 and Sec. 4."""

from torch import Tensor

from attnorm.attention.linear.logsumexp import logsumexp
from attnorm.attention.masking import Mask
from attnorm.attention.normalizers._cluster_prior import ClusterPrior
from attnorm.attention.normalizers._key_bias import KeyBiased
from attnorm.attention.normalizers.base import (
    Normalizer,
    add_log_prior,
    logsumexp_over_queries,
    masked_scores,
    softmax_over_keys,
)


class DNAS(KeyBiased):
    """Normalizes over the queries, then over the keys:

    xi_ij = exp(s_ij) / sum_i' exp(s_i'j),   w_ij = u_j xi_ij / sum_j' u_j' xi_ij'.

    With c_j = logsumexp_i s_ij, this is a softmax over the keys of s_ij - c_j + log u_j. Without a prior, every key
    that some query may see has a total mass sum_i w_ij >= 1/M (Lemma 1). The column step couples all queries. At an
    autoregressive site it would leak the future; use `dnas_prefix` there.

    beta: the priors of the clusters, beta_i ~ b_i exp(|q_i|^2 / 2) in Eq. 6, which turn the column step into
          xi_ij = b_i exp(s_ij) / sum_i' b_i' exp(s_i'j). None is the paper's choice b_i = 1. With "learned", each head
          and query position has a trained b_i; `queries` is the number of positions, and the (N, M) weights are stored.
    """

    couples_queries = "all"
    key_shift_invariant = True
    least_mass = 1.0
    proportional_to_prior = True

    def __init__(self, beta: str | None = None, queries: int | None = None, heads: int | None = None):
        super().__init__()
        if beta not in (None, "learned"):
            raise ValueError(f"beta={beta!r}: allowed: None and 'learned'")
        if queries is not None and beta is None:
            raise ValueError(f"queries={queries}: has no effect without beta='learned'")
        self.cluster_prior = None if beta is None else ClusterPrior(queries, heads, "dnas")
        self.query_equivariant = beta is None

    def forward(
        self,
        scores: Tensor,
        mask: Tensor | Mask | None = None,
        *,
        log_prior: Tensor | None = None,
        keys: Tensor | None = None,
        scale: float | None = None,
    ) -> Tensor:
        s = masked_scores(scores, mask)
        c = logsumexp_over_queries(s if self.cluster_prior is None else s + self.cluster_prior(s.shape[-2]))
        return softmax_over_keys(add_log_prior(s - c, log_prior)).to(scores.dtype)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | Mask | None = None,
        *,
        log_prior: Tensor | None = None,
        scale: float | None = None,
    ) -> Tensor:
        way = KeyBiased if self.cluster_prior is None else Normalizer  # a segment does not know its positions
        return way.attend(self, q, k, v, mask, log_prior=log_prior, scale=scale)

    def key_bias(self, q: Tensor, k: Tensor, log_prior: Tensor | None, queries: Tensor | None, scale: float) -> Tensor:
        c = logsumexp(k, q, queries, scale)  # the transposed problem: over the queries, for each key
        return add_log_prior(-c, log_prior)
