"""Attention in which every key has a budget: constrained softmax and constrained sparsemax whose upper bounds are used
up by the earlier queries ("Neural Attention Mechanisms"; Martins and Kreutzer 2017; Malaviya, Ferreira and Martins
2018).

In translation, the budget f_j of a source word is its fertility, the number of target words that it may produce. The
attention that it has received so far is subtracted, so that no word is translated again and again:

    w_i = argmax_p of p's_i - Omega(p)  over p in the simplex with p_j <= f_j - sum_{i' < i} w_i'j
"""

from typing import Literal

import torch
from torch import Tensor, nn

from attnorm.attention.masking import Mask, dense_mask
from attnorm.attention.normalizers.base import AT_MOST_ONE, Normalizer, add_log_prior, masked_scores, upcast
from attnorm.attention.normalizers.constrained import ConstrainedSoftmax, ConstrainedSparsemax, rounding
from attnorm.attention.normalizers.shared.row_map import map_rows
from attnorm.attention.option_checks import finite_number

PREDICTED = "predicted"
MOST = 3.0  # the default of the largest predicted fertility


class Fertility(Normalizer):
    """Keys whose total weight over all queries is at most their fertility. Subclasses differ in the map of a row.

    fertility: the budget of every key, a number above 0; or "predicted" for f_j = most * sigmoid(a'k_j + c), with a and
               c trained for every head ("Modeling Coverage for Neural Machine Translation", Tu et al. 2016, Eq. 10).
    most:      the largest predicted fertility.
    sink:      whether the last key that a row may see, in translation the end of the source, has no bound. Then there
               is always a solution. Without a sink, a row whose keys have less than 1 left in total takes all of it,
               and sums to less than 1.
    heads, width: the number of heads, and their width; needed for a predicted fertility.

    Queries are processed one after another, also in training. Raises ValueError for any other fertility.
    """

    couples_queries = "past"
    query_equivariant = False
    constrained: type[ConstrainedSoftmax] | type[ConstrainedSparsemax]

    def __init__(
        self,
        heads: int | None = None,
        width: int | None = None,
        fertility: float | Literal["predicted"] = 1.0,
        most: float = MOST,
        sink: bool = False,
    ):
        super().__init__()
        if fertility != PREDICTED and not (finite_number(fertility) and fertility > 0):  # type: ignore[operator]
            raise ValueError(f"fertility={fertility!r}: allowed: finite numbers above 0, or {PREDICTED}")
        if not finite_number(most) or most <= 0:
            raise ValueError(f"most={most!r}: allowed: finite numbers above 0")
        if fertility != PREDICTED and most != MOST:
            raise ValueError(f"most={most!r}: has no effect with fertility={fertility!r}; it is for {PREDICTED}")
        if not isinstance(sink, bool):
            raise ValueError(f"sink={sink!r}: allowed: true, false")
        self.fertility, self.most, self.sink = fertility, most, sink
        self.map = self.constrained()
        self.needs_keys = fertility == PREDICTED
        self.key_equivariant = not sink
        self.total = 1.0 if sink else AT_MOST_ONE
        if self.needs_keys:
            if heads is None or width is None:
                raise ValueError(f"fertility={PREDICTED!r}: needs the number of heads and their width")
            self.slope = nn.Parameter(torch.zeros(heads, width))  # a; with c = 0, every key starts with most / 2
            self.offset = nn.Parameter(torch.zeros(heads))  # c

    def budget(self, scores: Tensor, keys: Tensor | None) -> Tensor:
        """The fertility of every key, (B, H, 1, M), or a number in a tensor without dimensions."""
        if not self.needs_keys:
            return scores.new_tensor(self.fertility)
        assert keys is not None, "a predicted fertility needs the keys"
        logits = (upcast(keys) * self.slope[:, None]).sum(-1) + self.offset[:, None]  # (B, H, M)
        return (self.most * logits.sigmoid()).to(scores.dtype)[..., None, :]

    def forward(  # type: ignore[override]  # without what only a class that declares it is called with
        self,
        scores: Tensor,
        mask: Tensor | Mask | None = None,
        *,
        log_prior: Tensor | None = None,
        keys: Tensor | None = None,
        scale: float | None = None,
    ) -> Tensor:
        allowed = dense_mask(mask, scores)

        def row(x: Tensor | None, i: int) -> Tensor | None:
            return None if x is None else x[..., i : i + 1, :] if x.dim() > 1 and x.shape[-2] > 1 else x

        weights, used = [], None
        for i in range(scores.shape[-2]):
            s, u = scores[..., i : i + 1, :], row(log_prior, i)
            w, used = self.step(s, row(allowed, i), used, log_prior=u, keys=keys, scale=scale)
            weights.append(w)
        return torch.cat(weights, -2)

    def step(
        self,
        scores: Tensor,
        mask: Tensor | Mask | None = None,
        state: Tensor | None = None,
        *,
        log_prior: Tensor | None = None,
        keys: Tensor | None = None,
        scale: float | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Adds one query: scores (B, H, 1, M) -> weights (B, H, 1, M) and the new state (B, H, 1, M').

        `state` is the weight that each key has received from the previous queries, (B, H, 1, M' <= M). Pass the
        returned state to the next call. If the beams are reordered, reorder the rows of the state in the same way.
        """
        s = upcast(scores)
        used = s.new_zeros(s.shape)
        if state is not None:
            used = torch.cat([state, used[..., state.shape[-1] :]], -1)
        left = (self.budget(s, keys) - used).clamp(0.0, 1.0)
        s = add_log_prior(masked_scores(s, self._mask_of(scores, mask)), log_prior)
        weights = map_rows(lambda s, forbidden: self.within(s, forbidden, left), s)
        return weights.to(scores.dtype), used + weights

    def within(self, scores: Tensor, forbidden: Tensor, left: Tensor) -> Tensor:
        """The weights of a row, (B, H, 1, M), none of them above what is left of the key's budget."""
        upper = left.expand_as(scores).masked_fill(forbidden, 0.0)
        if self.sink:
            last = (~forbidden).cumsum(-1).argmax(-1, keepdim=True)  # the first of the largest counts
            upper = upper.scatter(-1, last, 1.0).masked_fill(forbidden, 0.0)
        exhausted = upper.sum(-1, keepdim=True) <= 1 + rounding(scores.dtype)  # then the bounds are the only solution
        bounds = torch.where(exhausted, (~forbidden).to(upper.dtype), upper)
        dead = forbidden.all(-1, keepdim=True)
        return torch.where(exhausted, upper, self.map.bounded_weights(scores, bounds.masked_fill(dead, 1.0)))


class FertilitySoftmax(Fertility):
    """Constrained softmax: w_ij = min(f_j - used_j, t_i exp(s_ij)) with s = scores + log u."""

    constrained = ConstrainedSoftmax


class FertilitySparsemax(Fertility):
    """Constrained sparsemax: w_ij = min(f_j - used_j, max(s_ij - tau_i, 0)) with s = scores + log u."""

    constrained = ConstrainedSparsemax
