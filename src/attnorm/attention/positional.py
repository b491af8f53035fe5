"""The preference for templates near the query's own position, whose reach is learned ("Fenchel Duality", Sec. 3.2)."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from attnorm.attention.hooks import TrainingHooks
from attnorm.attention.masking import Mask
from attnorm.attention.option_checks import above_zero
from attnorm.attention.priors import relative_positions


class Positional(TrainingHooks):
    """log u_i^(k) = -|i - k| / r_h with one learned reach r_h > 0 per head.

    In translation, the k-th target word is expected to depend on source words in a similar place ("Attention as
    Inference via Fenchel Duality", the translation problem). A large reach is a weak preference. Unlike `alibi`, whose
    slopes are fixed, this prior can learn how far the orders of the two sequences agree.

    reach: the initial reach of every head, in positions. Raises ValueError if it is not a finite number above 0.
    """

    def __init__(self, heads: int, reach: float = 4.0):
        super().__init__()
        self.log_reach = nn.Parameter(torch.full((heads,), math.log(above_zero("reach", reach))))

    def fast_parameters(self) -> Iterable[nn.Parameter]:
        return [self.log_reach]

    def forward(
        self, n_queries: int, n_keys: int, query_offset: int, key_states: Tensor, mask: Tensor | Mask | None
    ) -> Tensor:
        distance = relative_positions(n_queries, n_keys, query_offset, key_states.device).abs()
        return -(distance / self.log_reach.exp()[:, None, None])[None]  # (1, H, N, M)
