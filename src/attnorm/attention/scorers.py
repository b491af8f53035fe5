"""Scorers compute scores from queries and keys and work with any normalizer ("Neural Attention Mechanisms")."""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attnorm.attention.hooks import TrainingHooks
from attnorm.attention.normalizers.base import dot_scores, upcast

LARGEST = 2**24  # elements of additive's (B, H, N, M, D) tensor: 64 MiB in float32; above it, queries are chunked


class Scorer(TrainingHooks):
    """Computes scores from projected queries q (B, H, N, D) and keys k (B, H, M, D) with the same head width D.

    is_dot: whether the scores are `scale` times the dot products of `project(q, k)`. If so, `Normalizer.attend` may use
            a fused implementation that never stores all scores. Other scorers override `forward`, and the dense weights
            are computed.
    """

    is_dot = True

    def scale(self, width: int) -> float:
        """The factor of the dot products for head width D. It is 1 for scorers that are not of a dot-product type."""
        return 1.0

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Returns q and k such that `scale` times their dot products are the scores. Keeps shapes and dtypes."""
        return q, k

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """Returns scores (B, H, N, M) in float32 or wider, regardless of the dtype of the inputs and of autocast."""
        return dot_scores(*self.project(q, k), self.scale(q.shape[-1]))


class ScaledDot(Scorer):
    """s_ij = q_i . k_j / sqrt(D), "Attention Is All You Need", Eq. 1."""

    def scale(self, width: int) -> float:
        return width**-0.5


class Dot(Scorer):
    """s_ij = q_i . k_j."""


class Bilinear(Scorer):
    """s_ij = k_j' W q_i / sqrt(D) with one W (D, D) per head. W is initialized to the identity, as in scaled_dot."""

    def __init__(self, heads: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(width).repeat(heads, 1, 1))  # (H, D, D)

    def scale(self, width: int) -> float:
        return width**-0.5

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q @ self.weight.transpose(-2, -1), k


class Additive(Scorer):
    """s_ij = v' tanh(W1 k_j + W2 q_i). W1 and W2 (D, D) are shared by the heads, and each head has its own v (D).

    If the (B, H, N, M, D) tensor would be large, it is computed for a few queries at a time and recomputed in the
    backward pass.
    """

    is_dot = False

    def __init__(self, heads: int, width: int):
        super().__init__()
        self.key = nn.Linear(width, width, bias=False)  # W1
        self.query = nn.Linear(width, width, bias=False)  # W2
        # constant, because tanh is odd and W is random, so random signs of v would have no effect
        self.v = nn.Parameter(torch.full((heads, width), width**-0.5))

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        queries, keys, v = upcast(self.query(q)), upcast(self.key(k)), upcast(self.v)
        rows = max(1, LARGEST // keys.numel())
        if rows >= queries.shape[-2]:
            return self.scores(queries, keys, v)
        return torch.cat(
            [
                checkpoint(self.scores, few, keys, v, use_reentrant=False, preserve_rng_state=False)
                for few in queries.split(rows, dim=-2)
            ],
            dim=-2,
        )

    @staticmethod
    def scores(queries: Tensor, keys: Tensor, v: Tensor) -> Tensor:
        """Returns v' tanh(keys + queries), (B, H, N, M): queries (B, H, N, D), keys (B, H, M, D), v (H, D)."""
        with torch.autocast(queries.device.type, enabled=False):
            hidden = torch.tanh(keys[:, :, None] + queries[:, :, :, None])  # (B, H, N, M, D)
            return (hidden @ v[:, None, :, None]).squeeze(-1)


class Gaussian(Scorer):
    """s_ij = -|q_i - k_j|^2 / 2, "Doubly-Normalized Attention", Eq. 3 and 6."""

    is_dot = False

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        # Distances do not depend on the origin, but rounding errors do: far from it, the squares and the product
        # would cancel. The first key is visible to every row, and padding, future keys and caching do not change it.
        origin = upcast(k[..., :1, :]).detach()
        q, k = upcast(q) - origin, upcast(k) - origin
        squares_q, squares_k = q.square().sum(-1), k.square().sum(-1)  # (B, H, N), (B, H, M)
        return dot_scores(q, k, 1.0) - squares_q[..., :, None] / 2 - squares_k[..., None, :] / 2
