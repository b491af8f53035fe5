"""DNAS and HNAS for autoregressive sites: the column step sums over earlier queries only. This is not in the paper."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attnorm.attention.masking import Mask
from attnorm.attention.normalizers.base import (
    Given,
    Normalizer,
    add_log_prior,
    masked_scores,
    softmax_over_keys,
    upcast,
)
from attnorm.attention.normalizers.hnas import HNAS
from attnorm.attention.normalizers.shared.running_logsumexp import running_logsumexp


class DNASPrefix(Normalizer):
    """xi_ij = exp(s_ij) / sum_{i' <= i} exp(s_i'j), then normalized over the keys. No row depends on a later query.

    With c_ij = logcumsumexp over i, w = softmax_j(s_ij - c_ij + log u_j). In causal self-attention xi_ii = 1, so the
    largest weight of each row is on the diagonal. `step` computes one row from a running c, with the same result as the
    full pass.
    """

    couples_queries = "past"
    finite_scores = True
    query_equivariant = False
    key_shift_invariant = True
    least_mass = 1.0
    proportional_to_prior = True

    def weights(self, s: Tensor, given: Given) -> Tensor:
        log_xi = s - running_logsumexp(s)
        return add_log_prior(log_xi, given.log_prior).softmax(-1)

    def step(
        self,
        scores: Tensor,
        mask: Tensor | Mask | None = None,
        state: Tensor | None = None,
        *,
        log_prior: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Adds one query: scores (B, H, 1, M) -> weights (B, H, 1, M) and the new state (B, H, 1, M').

        `state` is the running logsumexp of each key over the previous queries, (B, H, 1, M' <= M). New keys start at
        -inf. Pass the returned state to the next call. If the beams are reordered, reorder the rows of the state in the
        same way.
        """
        s = masked_scores(scores, self._mask_of(scores, mask))
        past = s[..., :0] if state is None else state
        state = torch.logaddexp(F.pad(past, (0, s.shape[-1] - past.shape[-1]), value=-torch.inf), s)
        c = state.masked_fill(state == -torch.inf, 0.0)
        return softmax_over_keys(add_log_prior(s - c, log_prior)).to(scores.dtype), state


class HNASPrefix(HNAS):
    """v * dnas_prefix + (1 - v) * softmax."""

    couples_queries = "past"
    query_equivariant = False
    doubly_normalized = DNASPrefix

    def fast_attend(self, q: Tensor, k: Tensor, v: Tensor, given: Given) -> Tensor | None:
        # the column step needs the (N, M) scores at all lengths
        return super().fast_attend(q, k, v, given) if self.form == "clamp" else None

    def step(
        self,
        scores: Tensor,
        mask: Tensor | Mask | None = None,
        state: Tensor | None = None,
        *,
        log_prior: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        s, mask = upcast(scores), self._mask_of(scores, mask)
        doubly, state = self.dnas.step(s, mask, state, log_prior=log_prior)
        return self.mix(doubly, self.softmax(s, mask, log_prior=log_prior)).to(scores.dtype), state
