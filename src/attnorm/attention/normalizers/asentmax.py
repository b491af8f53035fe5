"""Adaptive-scalable entmax, "Long-Context Generalization with Sparse Attention" (arXiv 2506.16640)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attnorm.attention.call_context import without_autocast
from attnorm.attention.masking import Mask
from attnorm.attention.normalizers.base import Normalizer, add_log_prior, masked_scores, upcast
from attnorm.attention.normalizers.entmax import Entmax
from attnorm.attention.normalizers.shared.per_position import PerPosition
from attnorm.attention.normalizers.shared.row_map import map_rows
from attnorm.attention.option_checks import finite_number
from attnorm.attention.visible import visible_keys


class ASEntmax(Normalizer):
    """w_i = entmax over j of (delta + beta_i (log(n_i + 1))^gamma_i) s_ij + log u_j; see `Entmax`.

    beta_i = softplus(w_h' x_i + b_h) and gamma_i = 2 tanh(v_h' x_i + c_h) are computed from the hidden state x_i of the
    query in each head h. n_i is the number of keys that query i may see, so that padding and other segments are not
    counted.

    heads, state_width: the number of heads and the width of the states.
    delta: a number of at least 0. alpha: as in `Entmax`.
    """

    needs_states = "queries"

    def __init__(self, heads: int, state_width: int, delta: float = 1.0, alpha: float = 1.5):
        super().__init__()
        if not finite_number(delta) or delta < 0:
            raise ValueError(f"delta={delta!r}: allowed: numbers from 0")
        self.delta, self.entmax = float(delta), Entmax(alpha)
        self.scale = PerPosition(heads, state_width, 2)

    def features(self, states: Tensor) -> Tensor:
        """beta and gamma, (B, H, N, 2)."""
        beta, gamma = self.scale(states).unbind(-1)
        return torch.stack([F.softplus(beta), 2 * gamma.tanh()], -1)

    def forward(
        self,
        scores: Tensor,
        mask: Tensor | Mask | None = None,
        *,
        log_prior: Tensor | None = None,
        keys: Tensor | None = None,
        scale: float | None = None,
        queries: Tensor | None = None,
        features: Tensor | None = None,
    ) -> Tensor:
        assert features is not None, "asentmax needs the features of the queries"
        with without_autocast(scores):
            beta, gamma = features.to(upcast(scores).dtype).split(1, -1)  # (B, H, N, 1)
            n = visible_keys(mask, upcast(scores))
            factor = self.delta + beta * (n + 1).log() ** gamma
            s = add_log_prior(masked_scores(factor * upcast(scores), mask), log_prior)
            return map_rows(lambda s, forbidden: self.entmax.row_weights(s), s).to(scores.dtype)
