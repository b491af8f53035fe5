"""Transformer layers around multi-head attention, pre- or post-norm."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from attnorm.attention.masking import Mask
from attnorm.attention.multihead import Cache, MultiHeadAttention
from attnorm.attention.rotary import Rotation
from attnorm.attention.site import Site
from attnorm.models.config import LayerConfig

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "relu": nn.ReLU,
    "gelu_new": partial(nn.GELU, approximate="tanh"),
}


class Residual(nn.Module):
    """s x + f(norm(x)) (pre-norm) or norm(s x + f(x)) (post-norm), with dropout on f.

    s is `shape.residual`: 1 for True, 0 for False. Without skip connections, the states of all positions become more
    alike from layer to layer ("Attention is not all you need: pure attention loses rank doubly exponentially with
    depth", Dong et al., 2021). A smaller s shows how much of that a normalizer causes or prevents.
    """

    def __init__(self, shape: LayerConfig):
        super().__init__()
        self.pre, self.scale = shape.norm_first, float(shape.residual)
        self.norm = nn.LayerNorm(shape.d_model, shape.norm_eps)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor, sublayer: Callable[..., Tensor], *inputs: Any, **options: Any) -> Tensor:
        """inputs, options: of `sublayer`, behind x or norm(x)."""
        change = self.dropout(sublayer(self.norm(x) if self.pre else x, *inputs, **options))
        if self.scale:  # a factor of 1 or 0 costs no product
            change = (x if self.scale == 1 else self.scale * x) + change
        return change if self.pre else self.norm(change)


def build_attention(shape: LayerConfig, attention: dict, site: str, layer: int = 0) -> MultiHeadAttention:
    """Builds the multi-head attention of one layer at one site. layer: the index of the layer at the site, from 0."""
    return Site(attention, site).layer(shape.d_model, shape.n_heads, layer, shape.attention_dropout)


class SwiGLU(nn.Module):
    """silu(a) * b for the halves a and b of the input ("GLU Variants Improve Transformer", Shazeer, 2020, Eq. 5)."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., 2 W) -> (..., W)."""
        a, b = x.chunk(2, dim=-1)
        return F.silu(a) * b


def feed_forward(shape: LayerConfig) -> nn.Sequential:
    """The position-wise network: Linear, activation, Linear."""
    gated = shape.activation == "swiglu"
    activation = SwiGLU() if gated else ACTIVATIONS[shape.activation]()
    inner = nn.Linear(shape.d_model, 2 * shape.ffn_dim if gated else shape.ffn_dim)
    return nn.Sequential(inner, activation, nn.Linear(shape.ffn_dim, shape.d_model))


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each in a residual. layer: the index of the layer in the stack, from 0."""

    def __init__(self, shape: LayerConfig, attention: dict, site: str, layer: int = 0):
        super().__init__()
        self.attention, self.attention_residual = build_attention(shape, attention, site, layer), Residual(shape)
        self.feed_forward, self.feed_forward_residual = feed_forward(shape), Residual(shape)

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        log_prior: Tensor | None,
        cache: Cache | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """x (B, N, W) -> (B, N, W). cache, rotation: as in `MultiHeadAttention.forward`."""
        arguments = {"log_prior": log_prior, "cache": cache, "rotation": rotation}
        x = self.attention_residual(x, self.attention, None, mask, **arguments)
        return self.feed_forward_residual(x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention to the encoder's states, and feed-forward, each in a residual.

    layer: the index of the layer in the stack, from 0.
    """

    def __init__(self, shape: LayerConfig, attention: dict, site: str, cross_site: str, layer: int = 0):
        super().__init__()
        self.attention, self.attention_residual = build_attention(shape, attention, site, layer), Residual(shape)
        self.cross, self.cross_residual = build_attention(shape, attention, cross_site, layer), Residual(shape)
        self.feed_forward, self.feed_forward_residual = feed_forward(shape), Residual(shape)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Mask,
        cross_mask: Mask,
        log_prior: Tensor | None,
        cross_log_prior: Tensor | None,
        caches: tuple[Cache, ...] | None,
    ) -> Tensor:
        """x (B, T, W), memory (B, N, W) -> (B, T, W). With caches (one per attention), x holds one new position."""
        cache, cross_cache = caches or (None, None)
        x = self.attention_residual(x, self.attention, None, mask, log_prior=log_prior, cache=cache)
        x = self.cross_residual(x, self.cross, memory, cross_mask, log_prior=cross_log_prior, cache=cross_cache)
        return self.feed_forward_residual(x, self.feed_forward)
