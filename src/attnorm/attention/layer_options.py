"""Options of the attention layer that change what is done with the weights, whatever the normalizer is.

With o_i = sum_j w_ij v_j, the output of a head for query i, and the state x_i of this query, they apply in this order:

laser:        o_i = log sum_j w_ij exp(v_j), per channel ("LASER: Attention with Exponential Transformation").
differential: o_i = o_i^(1) - sigmoid(lambda_i) o_i^(2), lambda_i = w_lambda' x_i, for two attention maps with the same
              keys and values ("Differential Transformer V2").
exclusive:    o_i - (o_i' v_i / |v_i|^2) v_i, in self-attention ("Exclusive Self Attention").
gate:         scale sigmoid(W_g x_i) o_i, with one number per head or per channel ("Gated Attention for Large Language
              Models").
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnorm.attention.call_context import without_autocast
from attnorm.attention.normalizers.base import upcast
from attnorm.attention.option_checks import above_zero

LAYER_OPTIONS = ("gate", "exclusive", "differential", "laser")
LARGEST_VALUE = 64.0  # e^64 = 6e27: sums of such numbers, and their products with small weights, fit in float32


class Headwise(nn.Module):
    """The gate `scale` sigmoid(W_g x), one number per head. W_g (H, W) is initially 0, so the gate is `scale` / 2.

    width: width of the states x. With the default scale of 2 the gate is initially 1, and the layer is the layer
    without a gate. With a scale of 1 it is the gate of the paper, which halves the output at first.
    """

    def __init__(self, width: int, heads: int, scale: float = 2.0):
        super().__init__()
        self.scale, self.heads = above_zero("scale", scale), heads
        self.weight = nn.Parameter(torch.zeros(heads, width))

    def forward(self, states: Tensor) -> Tensor:
        """The gate of each query, (B, N, W) -> (B, H, N, 1), or (B, H, N, D) with one number per channel."""
        return self.scale * F.linear(states, self.weight).sigmoid().unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Elementwise(Headwise):
    """As `Headwise`, with one number per channel of the output: W_g is (W, W)."""

    def __init__(self, width: int, heads: int, scale: float = 2.0):
        super().__init__(width, heads, scale)
        self.weight = nn.Parameter(torch.zeros(width, width))


class Differential(nn.Module):
    """o^(1) - sigmoid(lambda) o^(2): the maps 2m and 2m + 1 differ in their queries, and share keys and values.

    `MultiHeadAttention.query` projects the queries of the first map, and `query` those of the second. w_lambda (H, W)
    is initially 0, so that half of the second map is subtracted.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.weight = nn.Parameter(torch.zeros(heads, width))

    def queries(self, q: Tensor, states: Tensor) -> Tensor:
        """The queries of all maps: those of the first map of each head (B, H, N, D) -> (B, 2 H, N, D)."""
        second = self.query(states).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return torch.stack([q, second], 2).flatten(1, 2)

    def forward(self, context: Tensor, states: Tensor) -> Tensor:
        """The outputs of all maps (B, 2 H, N, D) -> those of the heads (B, H, N, D)."""
        first, second = context.unflatten(1, (self.heads, 2)).unbind(2)
        return first - F.linear(states, self.weight).sigmoid().transpose(1, 2).unsqueeze(-1) * second


class LayerOptions(nn.Module):
    """The options of one layer; see the top of this file.

    width, heads: as in `MultiHeadAttention`.
    gate:         a module from the states (B, N, W) to factors of the output, broadcastable to (B, H, N, D), or None.

    Raises ValueError for `laser` with `differential`.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        gate: nn.Module | None = None,
        exclusive: bool = False,
        differential: bool = False,
        laser: bool = False,
    ):
        super().__init__()
        if differential and laser:
            raise ValueError("laser=True: not defined with differential=True, because a difference has no logarithm")
        self.gate, self.exclusive, self.laser = gate, exclusive, laser
        self.differential = Differential(width, heads) if differential else None

    @property
    def maps(self) -> int:
        """The number of attention maps of each head."""
        return 1 if self.differential is None else 2

    def queries(self, q: Tensor, states: Tensor, memory: Tensor) -> Tensor:
        """The queries of all maps, (B, H, N, D) -> (B, maps H, N, D).

        Raises ValueError for exclusive attention to other states than those of the queries.
        """
        if self.exclusive and memory is not states:
            raise ValueError("exclusive attention needs the value of each query, so that memory must be states")
        return q if self.differential is None else self.differential.queries(q, states)

    def keys(self, k: Tensor, v: Tensor, log_prior: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys and values (B, H, M, D), and log u, for all maps."""
        if self.maps == 1:
            return k, v, log_prior
        if log_prior is not None and log_prior.dim() > 2 and log_prior.shape[-3] > 1:
            log_prior = log_prior.repeat_interleave(self.maps, dim=-3)
        return k.repeat_interleave(self.maps, dim=1), v.repeat_interleave(self.maps, dim=1), log_prior

    def attend(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The outputs of all maps. attend: averages values of any dtype with the weights of q and k."""
        if self.laser:
            return laser(lambda values: attend(q.to(values.dtype), k.to(values.dtype), values), v)
        return attend(q, k, v)

    def average(self, weights: Tensor, v: Tensor) -> Tensor:
        """The outputs of all maps from their weights (B, maps H, N, M)."""
        if self.laser:
            return laser(lambda values: weights.to(values.dtype) @ values, v)
        return weights.to(v.dtype) @ v

    def output(self, context: Tensor, states: Tensor, v: Tensor) -> Tensor:
        """The outputs of the heads (B, H, N, D) from those of all maps, (B, maps H, N, D).

        states: (B, N, W), those of the queries. v: (B, H, M, D). In self-attention, the last N values are the queries'.
        """
        if self.differential is not None:
            context = self.differential(context, states)
        if self.exclusive:
            context = without_own_value(context, v[..., -context.shape[-2] :, :])
        return context if self.gate is None else self.gate(states) * context


def without_own_value(context: Tensor, v: Tensor) -> Tensor:
    """o - (o'v / |v|^2) v for each query with output o and value v, (..., D). If v is 0, o is returned."""
    unit, o = F.normalize(upcast(v), dim=-1), upcast(context)
    return (o - (o * unit).sum(-1, keepdim=True) * unit).to(context.dtype)


def laser(attend: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
    """log sum_j w_ij exp(v_j) per channel, in float32 or wider and then in the dtype of v; 0 if all w_ij are 0.

    Subtracting the largest value first, as the paper does, changes no digit, because the precision of floating-point
    numbers is relative; it only avoids numbers outside of their range. With a causal mask, it would make earlier
    outputs depend on later values, which could push all others below the smallest number. Therefore values outside of
    [-64, 64] count as the nearer bound instead.
    """
    with without_autocast(v):
        mean = attend(upcast(v).clamp(-LARGEST_VALUE, LARGEST_VALUE).exp())
        return torch.where(mean > 0, mean, 1.0).log().to(v.dtype)
