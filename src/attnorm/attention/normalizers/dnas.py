"""Doubly-normalized attention (DNAS), "Doubly-Normalized Attention", Eq. 7-8 and Sec. 4."""

from torch import Tensor

from attnorm.attention.linear.logsumexp import logsumexp
from attnorm.attention.normalizers.base import Given, add_log_prior
from attnorm.attention.normalizers.shared.cluster_prior import ClusterPrior
from attnorm.attention.normalizers.shared.key_bias import KeyBiased


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
    safe_form = "dnas_prefix"
    finite_scores = True
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
        self.stores_weights = beta is not None  # because a segment does not know its positions

    def weights(self, s: Tensor, given: Given) -> Tensor:
        s = s if self.cluster_prior is None else s + self.cluster_prior(s.shape[-2])
        log_xi = s.log_softmax(-2)
        return add_log_prior(log_xi, given.log_prior).softmax(-1)

    def key_bias(self, q: Tensor, k: Tensor, given: Given, queries: Tensor | None) -> Tensor:
        assert given.scale is not None  # `attend` gives it
        c = logsumexp(k, q, queries, given.scale)  # the transposed problem: over the queries, for each key
        return add_log_prior(-c, given.log_prior)
