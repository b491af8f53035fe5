"""Multi-head attention around a normalizer: projections in, `attend`, projection out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnorm.attention.masking import Mask, dense_mask
from attnorm.attention.normalizers.base import Normalizer, dot_scores
from attnorm.attention.scorers import Scorer


class Cache:
    """Keys and values of one attention during incremental decoding.

    grows: True for self-attention (each step appends its key), False for cross-attention (projected once).
    state: the running column step of a prefix normalizer, (B, H, 1, M).
    """

    def __init__(self, grows: bool):
        self.grows = grows
        self.k: Tensor | None = None  # (B, H, M, D)
        self.v: Tensor | None = None
        self.state: Tensor | None = None

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values so far, (B, H, M, D) each, after adding the new ones."""
        if self.k is not None and self.v is not None and self.grows:
            k, v = torch.cat([self.k, k], dim=-2), torch.cat([self.v, v], dim=-2)
        self.k, self.v = k, v
        return k, v

    def select(self, rows: Tensor) -> None:
        """Keeps these rows (int (B',)), in this order: beams that moved, examples that finished."""
        for name in ("k", "v", "state"):
            tensor = getattr(self, name)
            if tensor is not None:
                setattr(self, name, tensor.index_select(0, rows))


class MultiHeadAttention(nn.Module):
    """Queries from one sequence attend to keys and values from another (or the same).

    width: of the states, divisible by `heads`; normalizer and scorer as built by `attnorm.attention.build`;
    dropout: on the attention weights. In training it takes the dense path, as a scorer that is not a dot type always
    does; else `Normalizer.attend` is used.
    """

    def __init__(self, width: int, heads: int, normalizer: Normalizer, scorer: Scorer, dropout: float = 0.0):
        super().__init__()
        assert width % heads == 0, f"width {width} is not divisible by {heads} heads"
        self.heads, self.dropout = heads, dropout
        self.normalizer, self.scorer = normalizer, scorer
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)
        self.observer: Callable[[Tensor, Tensor | None], None] | None = None

    def forward(
        self,
        states: Tensor,
        memory: Tensor,
        mask: Tensor | Mask | None = None,
        *,
        log_prior: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """states (B, N, W) attend to memory (B, M, W) -> (B, N, W).

        With a `cache`, `states` holds the newest position only (N = 1), earlier keys come from the cache.
        """
        q = self._split(self.query(states))  # (B, H, N, D)
        if cache is not None and not cache.grows and cache.k is not None and cache.v is not None:
            k, v = cache.k, cache.v
        else:
            k, v = map(self._split, self.key_value(memory).chunk(2, dim=-1))  # (B, H, M, D)
            if cache is not None:
                k, v = cache.update(k, v)
        context = self._attend(q, k, v, mask, log_prior, cache)  # (B, H, N, D)
        return self.output(context.transpose(1, 2).flatten(2))

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | Mask | None, log_prior: Tensor | None, cache: Cache | None
    ) -> Tensor:
        scale, dropout = self.scorer.scale(q.shape[-1]), self.dropout if self.training else 0.0
        stepping = cache is not None and self.normalizer.couples_queries == "past"
        if self.scorer.is_dot:
            q, k = self.scorer.project(q, k)
            if dropout == 0 and self.observer is None and not stepping:
                return self.normalizer.attend(q, k, v, mask, log_prior=log_prior, scale=scale)
            scores = dot_scores(q, k, scale)
        else:
            scores = self.scorer(q, k)
        if stepping:
            assert cache is not None
            weights, cache.state = self.normalizer.step(scores, mask, cache.state, log_prior=log_prior)
        else:
            weights = self.normalizer(scores, mask, log_prior=log_prior, keys=k, scale=scale)
        if self.observer is not None:
            self.observer(weights, dense_mask(mask, scores))
        return F.dropout(weights, dropout).to(v.dtype) @ v

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, N, W) -> (B, H, N, D)


def attention_layers(model: nn.Module) -> dict[str, MultiHeadAttention]:
    """Every attention of a model by its module name, in order."""
    return {name: module for name, module in model.named_modules() if isinstance(module, MultiHeadAttention)}


@contextmanager
def observe(model: nn.Module, see: Callable[[str, Tensor, Tensor | None], None]) -> Iterator[None]:
    """Within this context, `see(layer name, weights (B, H, N, M), allowed mask or None)` is called at every attention.

    Costs the dense path while it lasts and nothing otherwise.
    """
    layers = attention_layers(model)
    try:
        for name, layer in layers.items():
            layer.observer = lambda weights, allowed, name=name: see(name, weights, allowed)
        yield
    finally:
        for layer in layers.values():
            layer.observer = None


def entropy(weights: Tensor) -> Tensor:
    """-sum_j w_ij log w_ij in nats, the mean over examples and their live queries: weights (B, H, N, M) -> (H,)."""
    each = -torch.special.xlogy(weights, weights).sum(-1)  # (B, H, N)
    live = weights.sum(-1) > 0
    return (each * live).sum((0, 2)) / live.sum((0, 2)).clamp(min=1)


def smallest_column_mass(weights: Tensor, allowed: Tensor | None) -> Tensor:
    """min over the allowed keys of sum_i w_ij, (B, H): near 0 when a key is explained away ([D] Lemma 1).

    A key counts when some query may see it; an example without any gives +inf.
    """
    mass = weights.sum(-2)  # (B, H, M)
    if allowed is not None:
        mass = mass.masked_fill(~allowed.expand(weights.shape).any(-2), float("inf"))
    return mass.amin(-1)
