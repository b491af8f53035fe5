"""Attention with any normalizer, called like `torch.nn.functional.scaled_dot_product_attention`."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnorm.attention.masking import Mask
from attnorm.attention.normalizers.base import Normalizer, dot_scores
from attnorm.attention.registry import name_of
from attnorm.nn.choice import without_parameters
from attnorm.nn.masks import read_masks


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    normalizer: str | Normalizer = "softmax",
    key_padding_mask: Tensor | None = None,
    query_padding_mask: Tensor | None = None,
    log_prior: Tensor | None = None,
    features: Tensor | None = None,
    ordered: bool = True,
) -> Tensor:
    """Averages the values with the weights of a normalizer: (..., L, E), (..., S, E), (..., S, Ev) -> (..., L, Ev).

    The shapes and the first eight arguments are those of `torch.nn.functional.scaled_dot_product_attention`, and so is
    the result for softmax, except that a query without an allowed key gets 0. The axis before the last two is that of
    the heads. Tensors with three axes have one head.

    attn_mask:   broadcastable to (..., L, S). Bool: True where a query may attend to a key. Float: added to the scores,
                 before they are normalized. Values of -1e4 or less forbid attention like -inf.
    dropout_p:   dropout probability of the weights. Above 0, dropout is applied, also in evaluation.
    is_causal:   query i may see the keys j <= i. ValueError with an `attn_mask`.
    scale:       the factor of the dot products. None means E ** -0.5.
    enable_gqa:  whether groups of query heads share a key and value head.
    normalizer:  a name of a normalizer without parameters, such as "dnas", or an instance.
    key_padding_mask: (..., S) without the axis of the heads. Bool: True at padding, as for
                 `torch.nn.MultiheadAttention`. Float: added to the scores of each key.
    query_padding_mask: bool, (..., L) without the axis of the heads, True at padding. The output there is 0. It is
                 required beside a `key_padding_mask` if the normalizer couples queries: a padded query would change the
                 weights of the others. In self-attention, both are the same tensor.
    log_prior:   log u, broadcastable to (B, H, L, S), where u is the preference over keys; see `Normalizer.forward`.
    features:    those of `Normalizer.features_of`, for a normalizer that needs hidden states.

    ordered:     whether the positions have an order. False, for masks of neighbours or random pairs, accepts any pairs
                 for a normalizer that couples all queries. The weights of a query then depend on queries that it does
                 not see, wherever both see a key.

    Neither scores nor weights are stored if the normalizer has a path with linear memory, the mask is made of padding
    and `is_causal`, and the dropout is 0. A float mask is looked at for this purpose, which waits for the device. A
    graph that is compiled looks at none, and stores the scores.

    Raises ValueError for an unknown normalizer, a normalizer by name that has trained parameters, and masks with which
    the normalizer is not defined. One that couples all queries is refused with a mask that hides the future: with as
    many queries as keys, one in which some real position sees another one that does not see it. One that couples
    queries is refused with an `attn_mask` that hides padded keys but not their queries, and with a single query beside
    several keys, as from a cache, if it depends on the earlier queries. An `attn_mask` is looked at once for this
    purpose, which waits for the device.
    """
    if isinstance(normalizer, str):
        normalizer = without_parameters(normalizer, query.device)
    elif not isinstance(normalizer, Normalizer):
        raise ValueError(
            f"normalizer={normalizer!r}: expected a name such as 'dnas', or an instance, such as "
            "build_normalizer('sinkhorn', n_iters=5)"
        )
    if is_causal and attn_mask is not None:
        raise ValueError("is_causal=True: sets the mask, so attn_mask must be None")
    if key_padding_mask is not None and query_padding_mask is None and normalizer.couples_queries != "none":
        raise ValueError(
            f"key_padding_mask without query_padding_mask: {name_of(normalizer)} couples queries, so padded queries "
            "would change the others; pass the same mask in self-attention, and zeros if every query is real"
        )
    if normalizer.needs_states != "none" and features is None:
        raise ValueError(
            f"{name_of(normalizer)} needs the hidden states of the {normalizer.needs_states}: pass "
            "features=normalizer.features_of(states), or use attnorm.nn.MultiheadAttention"
        )
    n_queries, n_keys, user_mask = query.shape[-2], key.shape[-2], attn_mask
    if not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        own = 3 if enable_gqa else 2  # the axes that are not broadcast
        lead = torch.broadcast_shapes(*(x.shape[:-own] for x in (query, key, value)))
        query, key, value = (x.expand(*lead, *x.shape[-own:]) for x in (query, key, value))
    q, k, v = map(with_heads, (query, key, value))
    if enable_gqa:
        for name, x in (("key", k), ("value", v)):
            if q.shape[1] % x.shape[1]:
                raise ValueError(
                    f"enable_gqa=True: the query has {q.shape[1]} heads, which must be a multiple of the "
                    f"{x.shape[1]} heads of the {name}"
                )
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    if is_causal and n_queries != n_keys:  # `Mask` aligns the diagonal to the end, and this function to the beginning
        if normalizer.couples_queries == "all":
            raise ValueError(f"is_causal=True: {normalizer.leak_message(name_of(normalizer))}")
        attn_mask = torch.ones(n_queries, n_keys, dtype=torch.bool, device=query.device).tril()
    elif attn_mask is not None and attn_mask.dim() > 2 and query.dim() != 4:
        attn_mask = with_heads(attn_mask.expand(*query.shape[:-1], n_keys))
    padding = (key_padding_mask, query_padding_mask)
    keys, queries = (None if x is None else x.reshape(math.prod(x.shape[:-1]), x.shape[-1]) for x in padding)
    shape = (q.shape[0], n_queries, n_keys)
    is_causal = is_causal and n_queries == n_keys
    mask, bias = read_masks(
        normalizer, shape, attn_mask, keys, queries, is_causal, user_mask=user_mask, ordered=ordered
    )
    context, _ = attend(normalizer, q, k, v, mask, bias, log_prior, features, scale, dropout_p)
    return context.reshape(*query.shape[:-1], value.shape[-1])


def with_heads(x: Tensor) -> Tensor:
    """(..., L, E) -> (B, H, L, E)."""
    heads = x.shape[-3] if x.dim() > 3 else 1
    return x.reshape(math.prod(x.shape[:-2]) // max(heads, 1), heads, *x.shape[-2:])  # -1 is unknown without elements


def attend(
    normalizer: Normalizer,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | Mask | None,
    bias: Tensor | None = None,
    log_prior: Tensor | None = None,
    features: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    need_weights: bool = False,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor | None]:
    """As `Normalizer.attend`, with a bias of the scores, dropout and the remainder: (B, H, N, D), and the weights.

    The weights (B, H, N, M), after dropout, are None without `need_weights`. They are computed only if necessary.
    softcap: the scores s are softcap tanh(s / softcap).
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    rest_value = normalizer.remainder_value()
    if bias is None and dropout == 0 and rest_value is None and not (need_weights or softcap):
        with_features: dict[str, Any] = {} if features is None else {"features": features}
        return normalizer.attend(q, k, v, mask, log_prior=log_prior, scale=scale, **with_features), None
    scores = dot_scores(q, k, scale)
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    if bias is not None:
        scores = scores + bias
    declared = normalizer.declared(q, features)
    weights = normalizer(scores, mask, log_prior=log_prior, keys=k, scale=scale, **declared)
    rest = None if rest_value is None else (1 - weights.sum(-1, keepdim=True)) * rest_value[:, None]
    weights = F.dropout(weights, dropout)
    context = weights.to(v.dtype) @ v
    if rest is not None:
        context = context + rest.to(v.dtype)
    return context, weights if need_weights else None
