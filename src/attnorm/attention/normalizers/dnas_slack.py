"""DNAS with a virtual query: between DNAS and softmax. This is not in the papers."""

import torch
from torch import Tensor

from attnorm.attention.linear.logsumexp import logsumexp
from attnorm.attention.masking import Mask
from attnorm.attention.normalizers.base import (
    LOWEST,
    Given,
    Normalizer,
    add_log_prior,
    masked_scores,
    softmax_over_keys,
)
from attnorm.attention.normalizers.shared.derivatives import logaddexp
from attnorm.attention.normalizers.shared.head_number import HeadNumber
from attnorm.attention.normalizers.shared.key_bias import KeyBiased
from attnorm.attention.normalizers.shared.running_logsumexp import running_logsumexp


class Slack(Normalizer):
    """The virtual query of `DNASSlack` and `DNASSlackPrefix`, and its options."""

    proportional_to_prior = True

    def __init__(
        self, start: float = 0.0, fixed: float | None = None, per_query: bool = False, heads: int | None = None
    ):
        super().__init__()
        if not isinstance(per_query, bool):
            raise ValueError(f"per_query={per_query!r}: allowed: true, false")
        self.slack, self.per_query = HeadNumber("slack", start, fixed, heads), per_query

    def score_and_shift(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """b - t and t >= 0, (H, 1, 1) each, where t may be subtracted from all scores of a head.

        The weights do not depend on such a shift. With t = max(b, 0), they are those of softmax to the bit if b is
        large. If -b is large, they are those of DNAS.
        """
        b = self.slack().to(dtype)
        shift = b.detach().clamp(min=0.0)
        return b - shift, shift


class DNASSlack(Slack, KeyBiased):
    """DNAS, in whose column step a virtual query with the constant score b takes part:

    xi_ij = exp(s_ij) / (exp(b) + sum_i' exp(s_i'j)),   w_ij = u_j xi_ij / sum_j' u_j' xi_ij'.

    With c_j = logsumexp_i s_ij, this is a softmax over the keys of s_ij - logaddexp(b, c_j) + log u_j. A key whose
    scores are all below b is left as in softmax, and one that many queries want is shared out as in DNAS. As b goes to
    -inf, the weights are those of DNAS; as b goes to +inf, those of softmax. Lemma 1 becomes sum_i w_ij >=
    sigmoid(c_j - b) / M, which depends on the scores: a key that no query wants may be explained away.

    start:     the initial value of b, which each of the `heads` heads learns.
    fixed:     a value of b that is not trained.
    per_query: the virtual query counts once for every query that may see the key: its score is b + log N. Otherwise its
               share of a key falls with the number of queries.
    """

    couples_queries = "all"
    safe_form = "dnas_slack_prefix"
    finite_scores = True

    def weights(self, s: Tensor, given: Given) -> Tensor:
        b, shift = self.score_and_shift(s.dtype)
        c = s.logsumexp(-2, keepdim=True)
        if self.per_query:
            b = b + (s > LOWEST / 2).sum(-2, keepdim=True).clamp(min=1).to(s.dtype).log()
        return add_log_prior(s - logaddexp(b, c - shift), given.log_prior).softmax(-1)

    def key_bias(self, q: Tensor, k: Tensor, given: Given, queries: Tensor | None) -> Tensor:
        assert given.scale is not None  # `attend` gives it
        c = logsumexp(k, q, queries, given.scale)  # the transposed problem: over the queries, for each key
        b, shift = self.score_and_shift(c.dtype)
        if self.per_query:
            real = c.new_full((1, 1, 1, 1), q.shape[-2]) if queries is None else (queries == 0).sum(-1, keepdim=True)
            b = b + real.clamp(min=1).to(c.dtype).log()
        return add_log_prior(-logaddexp(b, c - shift), given.log_prior)


class DNASSlackPrefix(Slack):
    """As `DNASSlack`, but the column step sums over the current and earlier queries, i' <= i, and the virtual query.

    N is then the number of these queries that may see the key. `step` computes one row from a running column step, with
    the same result as the full pass.
    """

    couples_queries = "past"
    query_equivariant = False

    def joining(self, s: Tensor) -> Tensor:
        """What each query adds to the column step, as a logarithm, (B, H, N, M).

        With `per_query`, each query brings its own share of the virtual one: exp(b) N + sum_i' exp(s_i'j) is a sum over
        the queries of exp(b) + exp(s_i'j). A masked pair has the smallest number, which does not change a sum and,
        unlike -inf, has a well-defined gradient.
        """
        b, shift = self.score_and_shift(s.dtype)
        masked = s == -torch.inf
        s = s.masked_fill(masked, 0.0) - shift
        s = logaddexp(b, s) if self.per_query else s
        return s.masked_fill(masked, torch.finfo(s.dtype).min)

    def rows(self, s: Tensor, c: Tensor, log_prior: Tensor | None) -> Tensor:
        """The weights for the column step c, both (B, H, N, M)."""
        if not self.per_query:
            c = logaddexp(self.score_and_shift(s.dtype)[0], c)
        return softmax_over_keys(add_log_prior(s - c, log_prior))

    def weights(self, s: Tensor, given: Given) -> Tensor:
        return self.rows(s, running_logsumexp(self.joining(s)), given.log_prior)

    def step(
        self,
        scores: Tensor,
        mask: Tensor | Mask | None = None,
        state: Tensor | None = None,
        *,
        log_prior: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Adds one query, as `DNASPrefix.step`. A key without a query so far has the smallest number as its state."""
        s = masked_scores(scores, self._mask_of(scores, mask))
        new = self.joining(s)
        if state is not None:
            lowest = torch.finfo(s.dtype).min
            past = torch.nn.functional.pad(state, (0, s.shape[-1] - state.shape[-1]), value=lowest)
            new = torch.logaddexp(past, new)
        return self.rows(s, new, log_prior).to(scores.dtype), new
