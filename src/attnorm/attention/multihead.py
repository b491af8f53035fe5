"""Multi-head attention with a configurable normalizer: input projections, `attend`, output projection."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnorm.attention.call_context import in_layer
from attnorm.attention.hooks import Observation
from attnorm.attention.layer_options import LayerOptions
from attnorm.attention.masking import Mask, dense_mask
from attnorm.attention.normalizers.base import Normalizer, dot_scores
from attnorm.attention.rotary import Rotation, rotate
from attnorm.attention.scorers import Scorer


class Cache:
    """Keys and values of one attention module during incremental decoding.

    grows: True for self-attention, where each step appends a key. False for cross-attention, where the keys are
           projected once.
    state: the running column step of a prefix normalizer, (B, H, 1, M), or of those of a mix, (B, H, S, M).
    features: what a normalizer computes from the states of the keys, (B, H, M, F); see `Normalizer.needs_states`.
    """

    def __init__(self, grows: bool):
        self.grows = grows
        self.k: Tensor | None = None  # (B, H, M, D)
        self.v: Tensor | None = None
        self.state: Tensor | None = None
        self.features: Tensor | None = None

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Adds new keys and values, and returns all keys and values so far, (B, H, M, D) each."""
        if self.k is not None and self.v is not None and self.grows:
            k, v = torch.cat([self.k, k], dim=-2), torch.cat([self.v, v], dim=-2)
        self.k, self.v = k, v
        return k, v

    def select(self, rows: Tensor) -> None:
        """Keeps the given rows, int (B',), in this order. Used when beams are reordered and when examples finish."""
        for name in ("k", "v", "state", "features"):
            tensor = getattr(self, name)
            if tensor is not None:
                setattr(self, name, tensor.index_select(0, rows))


class MultiHeadAttention(nn.Module):
    """Queries from one sequence attend to keys and values from another sequence (or the same one).

    width:      width of the states, divisible by `heads`.
    normalizer, scorer: modules as built by `attnorm.attention.site`.
    dropout:    dropout probability of the attention weights.
    bank:       templates outside the input (`attnorm.attention.banks`), or None. They are projected to keys and values
                like the memory. They are no sources (their prior is 0), so the normalizer must be one that gives weight
                to such keys by a method `forward_with_bank`, as `ot` does.
    options:    what else is done with the weights (`attnorm.attention.layer_options`), or None. With differential
                attention, the normalizer and the scorer have 2 `heads` heads, `maps` in all.

    `Normalizer.attend` is used whenever possible. The (N, M) weights are stored in training with dropout, if the
    scorer is not of a dot-product type, if the weights are observed, with a bank, during cached decoding with a prefix
    normalizer, and if the normalizer has a `remainder_value`, whose weight is what a row leaves of 1.

    Raises ValueError for `laser` with a normalizer whose rows need not sum to 1.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        normalizer: Normalizer,
        scorer: Scorer,
        dropout: float = 0.0,
        bank: nn.Module | None = None,
        options: LayerOptions | None = None,
    ):
        super().__init__()
        assert width % heads == 0, f"width {width} is not divisible by {heads} heads"
        if options is not None and options.laser and normalizer.total not in (0, 1):
            raise ValueError(
                f"laser=True: takes the logarithm of an average, and rows of {type(normalizer).__name__} need not sum "
                "to 1; use a normalizer whose rows do, such as softmax"
            )
        self.heads, self.dropout = heads, dropout
        assert bank is None or normalizer.takes_bank, f"{type(normalizer).__name__} gives no weight to a bank"
        self.normalizer, self.scorer, self.bank, self.options = in_layer(normalizer), scorer, bank, options
        self.maps = heads if options is None else options.maps * heads  # the number of matrices of weights
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)
        self.observer: Callable[[Observation], None] | None = None

    def forward(
        self,
        states: Tensor,
        memory: Tensor | None,
        mask: Tensor | Mask | None = None,
        *,
        log_prior: Tensor | None = None,
        cache: Cache | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """states (B, N, W) attend to memory (B, M, W), or to themselves if it is None -> (B, N, W).

        Raises ValueError as `Normalizer.attend` does.

        With a `cache`, `states` holds only the newest positions, and the cache provides the earlier keys. A prefix
        normalizer takes them one at a time (N = 1). Exclusive attention raises ValueError if `memory` is not `states`.
        rotation: the angles by which queries and keys are rotated, if states and memory are the same sequence with
                  rotary positions.
        """
        memory = states if memory is None else memory
        q = self._split(self.query(states))  # (B, H, N, D)
        if self.options is not None:
            q = self.options.queries(q, states, memory)
        if cache is not None and not cache.grows and cache.k is not None and cache.v is not None:
            k, v = cache.k, cache.v
        else:
            k, v = map(self._split, self.key_value(memory).chunk(2, dim=-1))  # (B, H, M, D)
            if rotation is not None:
                q, k = rotate(q, rotation), rotate(k, rotation)
            if cache is not None:
                k, v = cache.update(k, v)
        features = None if self.normalizer.needs_states == "none" else self._features(states, memory, cache)
        context = self._attend(q, k, v, mask, log_prior, cache, features)  # (B, H, N, D)
        if self.options is not None:
            context = self.options.output(context, states, v)
        output = self.output(context.transpose(1, 2).flatten(2))
        return 0 * output if self.normalizer.total == 0 else output  # without attention, not even a bias is added

    def _features(self, states: Tensor, memory: Tensor, cache: Cache | None) -> Tensor:
        """What the normalizer computes from the states of the queries, or of all keys so far."""
        if self.normalizer.needs_states == "queries":
            return self.normalizer.features_of(states)
        if cache is not None and not cache.grows and cache.features is not None:
            return cache.features
        features = self.normalizer.features_of(memory)
        if cache is not None:
            if cache.grows and cache.features is not None:
                features = torch.cat([cache.features, features], dim=-2)
            cache.features = features
        return features

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | Mask | None,
        log_prior: Tensor | None,
        cache: Cache | None,
        features: Tensor | None,
    ) -> Tensor:
        if self.normalizer.couples_queries == "all":
            self.normalizer.refuse_mask(
                mask, q.shape[-2], k.shape[-2]
            )  # also on the paths that do not call the normalizer
        scale, dropout = self.scorer.scale(q.shape[-1]), self.dropout if self.training else 0.0
        stepping = cache is not None and self.normalizer.couples_queries == "past"
        rest_value = self.normalizer.remainder_value()
        outside = 0  # the number of templates of the bank, which come first
        if self.bank is not None:
            k, v, mask, outside = self._add_bank(q, k, v, mask)
        if self.options is not None:
            k, v, log_prior = self.options.keys(k, v, log_prior)
        if self.scorer.is_dot:
            q, k = self.scorer.project(q, k, *(mask,) if self.scorer.needs_mask else ())
            if self.observer is None and self.bank is None and not stepping:
                given: dict[str, Any] = {"log_prior": log_prior, "scale": scale}
                given |= {} if features is None else {"features": features}
                if dropout == 0 and rest_value is None:
                    if self.options is None:
                        return self.normalizer.attend(q, k, v, mask, **given)
                    return self.options.attend(partial(self.normalizer.attend, mask=mask, **given), q, k, v)
                return self._average(self.normalizer.weights_of(q, k, mask, **given), v, dropout, rest_value)
            scores = dot_scores(q, k, scale)
        else:
            scores = self.scorer(q, k)
        declared = self.normalizer.declared(q, features)
        if stepping:
            assert cache is not None
            if q.shape[-2] != 1:
                name = type(self.normalizer).__name__
                raise ValueError(f"cache: {name} depends on earlier queries; give it one at a time, not {q.shape[-2]}")
            given = {"keys": k, "scale": scale} if self.normalizer.needs_keys else {}
            weights, cache.state = self.normalizer.step(
                scores, mask, cache.state, log_prior=log_prior, **given, **declared
            )
        elif self.bank is not None:
            weights = self.normalizer.forward_with_bank(
                scores, mask, log_prior=log_prior, keys=k, scale=scale, outside=outside
            )
        else:
            weights = self.normalizer(scores, mask, log_prior=log_prior, keys=k, scale=scale, **declared)
        if self.observer is not None:
            rest = None if rest_value is None else 1 - weights.sum(-1, keepdim=True)
            allowed = dense_mask(mask, scores)
            of_dot = scale if self.scorer.is_dot and not self.scorer.learns_alpha else None
            seen = Observation(weights, allowed, scores, log_prior, q, k, v, of_dot, rest)
            self.observer(seen if self.bank is None else seen.without_bank(outside))
        return self._average(weights, v, dropout, rest_value)

    def _average(self, weights: Tensor, v: Tensor, dropout: float, rest_value: Tensor | None) -> Tensor:
        """The context (B, H, N, D) for the weights (B, H, N, M), and for the value (H, D) of what they leave of 1."""
        dropped = F.dropout(weights, dropout)
        context = dropped.to(v.dtype) @ v if self.options is None else self.options.average(dropped, v)
        if rest_value is None:
            return context
        return context + ((1 - weights.sum(-1, keepdim=True)) * rest_value[:, None]).to(v.dtype)

    def _add_bank(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | Mask | None
    ) -> tuple[Tensor, Tensor, Tensor | None, int]:
        """Puts the A templates of the bank before the M keys: keys and values (B, H, A + M, D), the dense mask, and A.

        A query that may see any key of the input may see the whole bank.
        """
        assert self.bank is not None
        allowed = dense_mask(mask, q.new_empty(()).expand(*q.shape[:-1], k.shape[-2]))
        bank = self.key_value(self.bank()[None]).chunk(2, dim=-1)
        k, v = (
            torch.cat([self._split(x).expand(len(q), -1, -1, -1), y], -2) for x, y in zip(bank, (k, v), strict=True)
        )
        size = bank[0].shape[-2]
        if allowed is not None:
            allowed = allowed.expand(*allowed.shape[:-1], k.shape[-2] - size)
            live = allowed.any(-1, keepdim=True).expand(*allowed.shape[:-1], size)
            allowed = torch.cat([live, allowed], -1)
        return k, v, allowed, size

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, N, W) -> (B, H, N, D)


def attention_layers(model: nn.Module) -> dict[str, MultiHeadAttention]:
    """All attention modules of a model by module name, in order."""
    return {name: module for name, module in model.named_modules() if isinstance(module, MultiHeadAttention)}


@contextmanager
def observe(model: nn.Module, see: Callable[[str, Tensor, Tensor | None], None]) -> Iterator[None]:
    """Calls `see(layer name, weights (B, H, N, M), allowed mask or None)` in every attention module of the model.

    The calls happen inside this context only. There the dense weights are computed; outside it there is no extra cost.
    """
    with observe_all(model, lambda name, seen: see(name, seen.weights, seen.allowed)):
        yield


@contextmanager
def observe_all(model: nn.Module, see: Callable[[str, Observation], None]) -> Iterator[None]:
    """As `observe`, with everything that a layer computes: calls `see(layer name, Observation)`."""
    layers = attention_layers(model)
    try:
        for name, layer in layers.items():
            layer.observer = lambda seen, name=name: see(name, seen)
        yield
    finally:
        for layer in layers.values():
            layer.observer = None


def entropy(weights: Tensor) -> Tensor:
    """-sum_j p_ij log p_ij in nats with p_ij = |w_ij| / sum_j' |w_ij'|: weights (B, H, N, M) -> (H,).

    It is averaged over the examples and their live queries.
    """
    weights = weights.abs()
    mass = weights.sum(-1, keepdim=True)
    p = weights / mass.clamp(min=torch.finfo(weights.dtype).tiny)
    each, live = -torch.special.xlogy(p, p).sum(-1), mass.squeeze(-1) > 0  # (B, H, N)
    return (each * live).sum((0, 2)) / live.sum((0, 2)).clamp(min=1)


def smallest_column_mass(weights: Tensor, allowed: Tensor | None) -> Tensor:
    """min over the allowed keys of sum_i w_ij, (B, H). It is near 0 if a key is explained away.

    Source: "Doubly-Normalized Attention", Lemma 1. A key counts if some query may see it. An example without such keys
    gives +inf.
    """
    mass = weights.sum(-2)  # (B, H, M)
    if allowed is not None:
        mass = mass.masked_fill(~allowed.expand(weights.shape).any(-2), float("inf"))
    return mass.amin(-1)
