"""The attention function that `transformers` calls in each layer."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnorm.attention import Normalizer
from attnorm.attention.masking import hides_the_future
from attnorm.attention.names import name_of
from attnorm.attention.normalizers.sink import Sink
from attnorm.attention.normalizers.softmax import Softmax
from attnorm.integrations.transformers.masks import read_mask, without_padded_queries
from attnorm.integrations.transformers.sites import (
    is_merged,
    is_self_attention,
    may_be_of_decoder,
    says_causal,
    site_of,
)
from attnorm.nn import functional

UNSUPPORTED = {  # arguments that change what is computed
    "indices": "attention to selected keys",
    "block_indices": "attention to selected blocks of keys",
    "sinks": "a learned sink for each query",
}


def attend(
    normalizer: Normalizer,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention of one layer: query (B, H, N, D), key and value (B, H', M, D) -> (B, N, H, D), and the weights
    (B, H, N, M) if they are wanted, otherwise None.

    H is a multiple of H'. The weights are those after dropout. They are computed if attentions are returned, with
    dropout and with `softcap`; otherwise the normalizer takes its fastest way.

    position_bias: added to the scores, as the prior `t5` is: it acts as log u. softcap: the scores are
    softcap tanh(s / softcap). s_aux: (H,), the scores of learned sinks, with softmax only.

    Raises ValueError for what the normalizer, or this function, cannot compute correctly.
    """
    is_causal = says_causal(module) if is_causal is None else is_causal
    mask, log_prior, is_causal = read_mask(attention_mask, bool(is_causal))
    # looking at values would divide a compiled graph
    if normalizer.couples_queries == "all" and isinstance(mask, Tensor) and not torch.compiler.is_compiling():
        is_causal = is_causal or hides_the_future(mask)
    n_queries, n_keys = query.shape[-2], key.shape[-2]
    settings = {"softcap": softcap, "s_aux": s_aux, **others}
    if problem := problem_of(normalizer, module, is_causal, n_keys > n_queries, settings):
        raise ValueError(f"{type(module).__name__}: {problem}")
    if s_aux is not None:
        normalizer = ModelSink(s_aux)
    if normalizer.couples_queries != "none" and n_queries == n_keys and is_self_attention(module):
        mask = without_padded_queries(mask)
    if position_bias is not None:
        log_prior = position_bias if log_prior is None else position_bias + log_prior
    if (groups := query.shape[1] // key.shape[1]) > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    output, weights = functional.attend(
        normalizer,
        query,
        key,
        value,
        mask,
        log_prior=log_prior,
        scale=scaling,
        dropout=dropout if module.training else 0.0,
        need_weights=bool(others.get("output_attentions") or is_recorded()),
        softcap=softcap,
    )
    return output.transpose(1, 2).contiguous(), None if weights is None else weights.to(query.dtype)


class ModelSink(Sink):
    """`Sink` with the scores (H,) that belong to the model."""

    def __init__(self, scores: Tensor):
        Normalizer.__init__(self)
        self.sink = lambda: scores[:, None, None].float()  # type: ignore[assignment]


def problem_of(
    normalizer: Normalizer, module: nn.Module, is_causal: bool, has_past: bool, settings: Mapping[str, Any]
) -> str | None:
    """Why a layer cannot be computed, as a clause; None if it can.

    has_past: whether there are more keys than queries. settings: the other arguments of `attend`.
    """
    for argument, what in UNSUPPORTED.items():
        if settings.get(argument) is not None:
            return f"{what} is not supported ({argument}={type(settings[argument]).__name__})"
    name = name_of(normalizer)
    by_name = not hasattr(module, "attnorm")
    of_decoder = is_causal or site_of(module) == "decoder" or (by_name and may_be_of_decoder(module))
    if normalizer.couples_queries == "all" and of_decoder:
        part = f"convert(model.<part>, {name!r}), such as convert(model.vision_model, {name!r})"
        encoder = f"convert(model, {{'encoder': {name!r}}})"
        where = ("a part that is not causal", part) if site_of(module) == "encoder" else ("the encoder only", encoder)
        return f"{normalizer.leak_message(name)}. To use it in {where[0]}: {where[1]}"
    if normalizer.couples_queries == "past" and is_causal and has_past:
        return cache_message(name)
    if normalizer.couples_queries == "past" and by_name and is_merged(module):
        return f"its keys do not show whether a cache is used, which {name} cannot; use convert(model, {name!r})"
    if normalizer.needs_causal and not is_causal:
        return f"{name} is defined for causal self-attention only"
    if settings["softcap"] and normalizer.needs_queries:
        return f"{name} takes dot products of its own, which the softcap of the model does not change"
    if settings["s_aux"] is not None and not isinstance(normalizer, Softmax):
        return f"the model has learned attention sinks (s_aux), which {name} cannot use; use softmax"
    return None


def cache_message(name: str) -> str:
    """Why a normalizer with a running state cannot decode with a cache."""
    return f"{name} depends on earlier queries, which a cache does not keep; use generate(..., use_cache=False)"


def is_recorded() -> bool:
    """Whether the forward pass returns attentions although the flag does not reach the attention function."""
    from transformers.utils import output_capturing

    collected = output_capturing._active_collector.get()
    return bool(collected) and any("attentions" in key for key in collected)
