"""Pooling of many states into one vector, or a few: by learned queries at an attention site, or by a plain softmax."""

import torch
from torch import Tensor, nn

from attnorm.attention.masking import Mask
from attnorm.attention.normalizers.base import softmax_over_keys, upcast
from attnorm.attention.pooling import LearnedQueries
from attnorm.attention.site import Site
from attnorm.attention.transfer import on_host


class SitePooling(LearnedQueries):
    """`LearnedQueries` with the normalizer, scorer, prior, bank and options that the attention tables name for a site.

    width, heads, queries, dropout: as in `LearnedQueries`.
    attention: resolved tables (`attnorm.attention.table_form`). site: the name of the site in them.
    positions: the largest number of states of an example.
    """

    def __init__(
        self, width: int, heads: int, queries: int, attention: dict, site: str, positions: int, dropout: float = 0.0
    ):
        of_site = Site(attention, site)
        super().__init__(width, heads, queries, dropout=dropout, **of_site.layer_parts(width, heads))
        self.prior = of_site.prior(heads=heads, bidirectional=True, positions=positions, width=width)

    def forward(
        self,
        states: Tensor,
        real: Tensor | None = None,
        segments: Tensor | None = None,
        *,
        log_prior: Tensor | None = None,
    ) -> Tensor:
        """As `LearnedQueries.forward`. The prior of the site is added to `log_prior`."""
        if self.prior is not None:
            count = 1 if segments is None else int(on_host(segments).max()) + 1
            mask = Mask(keys=real) if segments is None else self.own_segment(count, segments, real)
            of_site = self.prior(count * len(self.queries), states.shape[1], 0, states, mask)
            log_prior = of_site if log_prior is None else log_prior + of_site
        return super().forward(states, real, segments, log_prior=log_prior)


# Attentions with a single query, which are not attention sites. With a single query, a column step would divide every
# key by itself, so doubly-normalized weights would be uniform for any scores.


class AttentionPooling(nn.Module):
    """w = softmax over the real i of u' relu(W x_i + b). The output is sum_i w_i x_i."""

    def __init__(self, width: int):
        super().__init__()
        self.inner, self.score = nn.Linear(width, width), nn.Linear(width, 1, bias=False)  # softmax would cancel a bias

    def forward(self, states: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """states (B, N, W), real bool (B, N) -> the vector (B, W) and its weights (B, N), 0 if no state is real."""
        return average(states, self.score(self.inner(states).relu()).squeeze(-1), real)


class TopDownAttention(nn.Module):
    """w = softmax over the present boxes i of u' (relu(A x_i + a) * relu(B q + b)). The output is sum_i w_i x_i.

    "Pythia v0.1", Sec. 2.1, after the attention of "Bottom-Up and Top-Down Attention". The only query is the question.
    """

    def __init__(self, width: int, hidden: int, dropout: float):
        super().__init__()
        self.box, self.question = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.score, self.dropout = nn.Linear(hidden, 1, bias=False), nn.Dropout(dropout)

    def forward(self, question: Tensor, boxes: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """question (B, W), boxes (B, M, W), present bool (B, M) -> the vector (B, W) and its weights (B, M)."""
        query = self.dropout(self.score.weight * self.question(question).relu())  # (B, hidden), includes u
        logits = self.box(boxes).relu() @ query.to(boxes.dtype).unsqueeze(-1)  # avoids the (B, M, hidden) product
        return average(boxes, logits.squeeze(-1), present)


def average(states: Tensor, logits: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """states (B, N, W), logits (B, N), real bool (B, N) -> (B, W) and the weights (B, N) in float32 or wider."""
    weights = softmax_over_keys(upcast(logits).masked_fill(~real, -torch.inf))
    return (weights.to(states.dtype).unsqueeze(1) @ states).squeeze(1), weights
