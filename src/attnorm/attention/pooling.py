"""Attention with learned queries, which pools any number of states into a fixed number of vectors.

Source: "A Mathematical View of Attention Models", Eq. 4: O = W_v X softmax((W_k X)' Q), where Q is trained and does not
depend on the input X. The paper proves (Theorem 1) that O does not change when the columns of X are reordered.
"""

import logging

import torch
from torch import Tensor, nn

from attnorm.attention.layer_options import LayerOptions
from attnorm.attention.masking import Mask
from attnorm.attention.multihead import MultiHeadAttention
from attnorm.attention.normalizers.base import Normalizer
from attnorm.attention.scorers import Scorer
from attnorm.attention.transfer import on_host

log = logging.getLogger(__name__)


class LearnedQueries(nn.Module):
    """Pools states into `queries` vectors by multi-head attention with as many learned queries (Eq. 4 to 6).

    width:      width of the states, divisible by `heads`.
    queries:    the number k of learned queries, at least 1. The paper's Q is the projection of these queries. Their
                entries are standard normal at first, like those of a normalized state: smaller queries give nearly
                uniform weights, and are slow to leave them.
    normalizer, scorer, dropout, bank, options: as in `MultiHeadAttention`.

    With a single query, the column step of dnas divides every key by itself. Its weights are then uniform (or equal to
    the prior), whatever was learned, and those of hnas are uniform in its share of dnas. With several queries, a
    column step divides each key among them. A single query with such a normalizer logs a warning.

    If neither the normalizer nor a prior depends on the order of the keys, the output does not change when the states
    are reordered.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        queries: int,
        normalizer: Normalizer,
        scorer: Scorer,
        dropout: float = 0.0,
        bank: nn.Module | None = None,
        options: LayerOptions | None = None,
    ):
        super().__init__()
        self.queries = nn.Parameter(torch.randn(queries, width))
        self.attention = MultiHeadAttention(width, heads, normalizer, scorer, dropout, bank, options)
        if queries == 1 and (message := single_query_problem(normalizer)):
            log.warning(message)

    def forward(
        self,
        states: Tensor,
        real: Tensor | None = None,
        segments: Tensor | None = None,
        *,
        log_prior: Tensor | None = None,
    ) -> Tensor:
        """states (B, M, W) -> (B, k, W), or (B, S, k, W) if `segments` are given.

        real:      bool (B, M), False at padding. None: there is no padding.
        segments:  int (B, M), the number of the segment of each state, from 0 to S - 1. Every segment is pooled by
                   itself, with the same queries. A segment without real states gives the bias of the output projection.
        log_prior: log u, broadcastable to (B, H, k, M), or to (B, H, S k, M).
        """
        count = 1 if segments is None else int(on_host(segments).max()) + 1
        if segments is None:
            mask: Mask | Tensor | None = None if real is None else Mask(keys=real)
        else:
            mask = self.own_segment(count, segments, real)
        queries = self.queries.repeat(count, 1).expand(len(states), -1, -1)  # (B, S k, W)
        output = self.attention(queries, states, mask, log_prior=log_prior)
        return output if segments is None else output.unflatten(1, (count, -1))

    def own_segment(self, count: int, segments: Tensor, real: Tensor | None) -> Tensor:
        """bool (B, 1, S k, M): whether a state is in the segment of a query."""
        in_segment = torch.arange(count, device=segments.device)[:, None] == segments[:, None, :]  # (B, S, M)
        if real is not None:
            in_segment = in_segment & real[:, None, :]
        return in_segment.repeat_interleave(len(self.queries), dim=1)[:, None]


def single_query_problem(normalizer: Normalizer) -> str | None:
    """Why a normalizer is of no use with a single query; None if it is.

    If a number per key can be added to the scores without effect, a single row of scores has no effect at all.
    """
    name = type(normalizer).__name__
    if normalizer.couples_queries == "none":  # a null arm ignores the scores by design
        return None
    if normalizer.key_shift_invariant:
        return f"{name} with a single query gives uniform weights, whatever the scores are; use two or more queries"
    parts = [part for part in normalizer.modules() if isinstance(part, Normalizer) and part.key_shift_invariant]
    if parts:
        part = type(parts[0]).__name__
        return f"{name} with a single query mixes in the uniform weights of its {part}; use two or more queries"
    return None
