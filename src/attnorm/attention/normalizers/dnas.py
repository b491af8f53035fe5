"""Doubly-normalized attention (DNAS), "Doubly-Normalized Attention", Eq. 7-8 and Sec. 4."""

from torch import Tensor

from attnorm.attention.logsumexp import logsumexp
from attnorm.attention.masking import Mask
from attnorm.attention.normalizers._key_bias import KeyBiased
from attnorm.attention.normalizers.base import (
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
    """

    couples_queries = "all"
    key_shift_invariant = True
    least_mass = 1.0
    proportional_to_prior = True

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
        c = logsumexp_over_queries(s)
        return softmax_over_keys(add_log_prior(s - c, log_prior)).to(scores.dtype)

    def key_bias(self, q: Tensor, k: Tensor, log_prior: Tensor | None, queries: Tensor | None, scale: float) -> Tensor:
        c = logsumexp(k, q, queries, scale)  # the transposed problem: over the queries, for each key
        return add_log_prior(-c, log_prior)
