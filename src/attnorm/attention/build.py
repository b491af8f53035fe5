"""Functions that models of users call; they are short forms of `Site`.

self.prior = build_site_prior(attention, "mixer", heads=heads, bidirectional=True, positions=positions, width=width)
self.layers = nn.ModuleList(build_site_attention(attention, "mixer", width, heads, layer) for layer in range(depth))
"""

from typing import Any

from attnorm.attention.multihead import MultiHeadAttention
from attnorm.attention.names import NORMALIZERS, build, build_normalizer, build_prior, build_scorer
from attnorm.attention.priors import Sum
from attnorm.attention.site import Site

__all__ = [
    "NORMALIZERS",
    "build",
    "build_normalizer",
    "build_prior",
    "build_scorer",
    "build_site_attention",
    "build_site_prior",
]


def build_site_attention(
    attention: dict[str, Any], site: str, width: int, heads: int, layer: int = 0, dropout: float = 0.0
) -> MultiHeadAttention:
    """Builds the multi-head attention of one layer at a site, as `Site.layer`.

    attention: resolved tables (`attnorm.attention.sites`). layer: the index of the layer at this site, from 0.
    width, heads, dropout: as in `MultiHeadAttention`.
    """
    return Site(attention, site).layer(width, heads, layer, dropout)


def build_site_prior(attention: dict[str, Any], site: str, **facts: Any) -> Sum | None:
    """Builds the prior of a site, which all layers of its stack share, or returns None, as `Site.prior`."""
    return Site(attention, site).prior(**facts)
