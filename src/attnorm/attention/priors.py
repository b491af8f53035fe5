"""Preferences over keys, log u: modules that compose with any normalizer ("Fenchel Duality", Eq. 18-19, Sec. 7).

A prior is called as `prior(n_queries, n_keys, query_offset, device) -> log u`, broadcastable to (B, H, N, M) and not
necessarily normalized: a normalizer uses u only up to a factor per row. `query_offset` is the position of the first
query, so that one cached query is treated as in the full pass.
"""

import math

import torch
from torch import Tensor, nn


class Uniform(nn.Module):
    """u_j = 1 / M: no preference."""

    def forward(self, n_queries: int, n_keys: int, query_offset: int, device: torch.device) -> Tensor:
        return torch.zeros(1, 1, 1, 1, device=device)


def relative_positions(n_queries: int, n_keys: int, query_offset: int, device: torch.device) -> Tensor:
    """key position - query position, int (N, M)."""
    queries = torch.arange(query_offset, query_offset + n_queries, device=device)
    return torch.arange(n_keys, device=device)[None, :] - queries[:, None]


class T5(nn.Module):
    """The relative position bias of T5: one trained number per head and bucket of key minus query.

    Half of the buckets are exact distances, the rest grow logarithmically up to `max_distance`; a bidirectional table
    gives each direction half of the buckets.
    """

    def __init__(self, heads: int, bidirectional: bool = True, buckets: int = 32, max_distance: int = 128):
        super().__init__()
        self.bidirectional, self.buckets, self.max_distance = bidirectional, buckets, max_distance
        self.bias = nn.Embedding(buckets, heads)

    def bucket(self, relative: Tensor) -> Tensor:
        """The bucket (N, M) of each key minus query."""
        buckets, base = self.buckets, 0
        if self.bidirectional:
            buckets //= 2
            base = (relative > 0) * buckets
            distance = relative.abs()
        else:
            distance = (-relative).clamp(min=0)
        exact = buckets // 2
        growth = torch.log(distance.clamp(min=1) / exact) / math.log(self.max_distance / exact)
        far = (exact + (growth * (buckets - exact)).long()).clamp(max=buckets - 1)
        return base + torch.where(distance < exact, distance, far)

    def forward(self, n_queries: int, n_keys: int, query_offset: int, device: torch.device) -> Tensor:
        relative = relative_positions(n_queries, n_keys, query_offset, device)
        return self.bias(self.bucket(relative)).permute(2, 0, 1)[None]  # (1, H, N, M)


class Alibi(nn.Module):
    """log u = -m_h |i - j|, with slopes m_h = 2 ** (-8 h / H), h = 1..H."""

    def __init__(self, heads: int):
        super().__init__()
        slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)
        self.register_buffer("slopes", slopes[:, None, None], persistent=False)

    def forward(self, n_queries: int, n_keys: int, query_offset: int, device: torch.device) -> Tensor:
        return -(self.slopes * relative_positions(n_queries, n_keys, query_offset, device).abs())[None]


class Sum(nn.Module):
    """The product of several preferences: the sum of their logarithms."""

    def __init__(self, priors: list[nn.Module]):
        super().__init__()
        self.priors = nn.ModuleList(priors)

    def forward(self, n_queries: int, n_keys: int, query_offset: int, device: torch.device) -> Tensor:
        return sum(prior(n_queries, n_keys, query_offset, device) for prior in self.priors)
