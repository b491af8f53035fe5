"""What the maps that treat each row of scores by itself have in common."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from attnorm.attention.masking import Mask
from attnorm.attention.normalizers.base import Normalizer, add_log_prior, masked_scores


class RowMap(Normalizer):
    """Each row of weights is a map of that row of s + log u alone; a subclass writes the map."""

    def row_weights(self, scores: Tensor) -> Tensor:
        """scores (B, H, N, M) in float32 or wider, -inf where no weight may go but never in a whole row -> weights."""
        raise NotImplementedError

    def forward(
        self,
        scores: Tensor,
        mask: Tensor | Mask | None = None,
        *,
        log_prior: Tensor | None = None,
        keys: Tensor | None = None,
        scale: float | None = None,
    ) -> Tensor:
        return map_rows(lambda s, forbidden: self.row_weights(s), scores, mask, log_prior)


def map_rows(
    row_weights: Callable[[Tensor, Tensor], Tensor],
    scores: Tensor,
    mask: Tensor | Mask | None,
    log_prior: Tensor | None,
) -> Tensor:
    """`row_weights(s, forbidden)` of s = scores + log u, in the dtype of `scores`, 0 where forbidden.

    s is -inf where forbidden, except in a dead row (all forbidden), which the map sees as zeros. A row with a NaN or
    +inf score gets NaN weights, as from softmax, and is kept from the map: sorts and index look-ups crash on it.
    """
    s = add_log_prior(masked_scores(scores, mask), log_prior)
    forbidden = s == -torch.inf
    top = s.detach().amax(-1, keepdim=True)
    broken = top.isnan() | (top == torch.inf)
    weights = row_weights(s.masked_fill(broken | (top == -torch.inf), 0.0), forbidden)
    return weights.masked_fill(forbidden, 0.0).masked_fill(broken, torch.nan).to(scores.dtype)


def finite_number(value: object) -> bool:
    """Whether an option is a finite number; True and False are none."""
    return not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value)
