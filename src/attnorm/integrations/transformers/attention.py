"""The attention function that `transformers` calls in each layer, and the mask function that it calls in each pass."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnorm.attention import Mask, Normalizer
from attnorm.attention.judging import WITHOUT_ORDER, hides_the_future
from attnorm.attention.normalizers.sink import Sink
from attnorm.attention.normalizers.softmax import Softmax
from attnorm.attention.registry import name_of
from attnorm.integrations.transformers.sites import (
    is_merged,
    is_self_attention,
    may_be_of_decoder,
    says_causal,
    site_of,
)
from attnorm.nn import functional
from attnorm.nn.masks import split

ONE_WAY = "attnorm_one_way"  # an attribute of masks that a model made: the result of `is_one_way`
UNSUPPORTED = {  # arguments that change what is computed
    "indices": "attention to selected keys",
    "block_indices": "attention to selected blocks of keys",
    "sinks": "a learned sink for each query",
}


def layer_attention(
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
    if normalizer.couples_queries == "all" and isinstance(mask, Tensor):
        of_model = getattr(attention_mask, ONE_WAY, None)
        is_causal, is_ordered = is_causal or bool(of_model), getattr(module, "attnorm_ordered", True)
        # looking at values would divide a compiled graph
        may_look = of_model is None and is_ordered and not torch.compiler.is_compiling()
        if may_look and hides_the_future(attention_mask, mask, site_of(module) != "cross"):
            advice = f"{normalizer.leak_message(name_of(normalizer))}; {WITHOUT_ORDER} to convert"
            raise ValueError(f"{type(module).__name__}: attention_mask: hides the future: {advice}")
    n_queries, n_keys = query.shape[-2], key.shape[-2]
    settings = {"softcap": softcap, "s_aux": s_aux, **others}
    if problem := problem_of_layer(normalizer, module, is_causal, n_keys > n_queries, settings):
        raise ValueError(f"{type(module).__name__}: {problem}")
    if s_aux is not None:
        normalizer = ModelSink(s_aux)
    if normalizer.couples_queries != "none" and n_queries == n_keys and is_self_attention(module):
        # padding is no query, either; in a tensor, a position that no query may see counts as padding
        if isinstance(mask, Mask):
            mask = Mask(queries=mask.keys, keys=mask.keys, causal=mask.causal)
        elif mask is not None:
            mask = mask & mask.any(-2).unsqueeze(-1)
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


def problem_of_layer(
    normalizer: Normalizer, module: nn.Module, is_causal: bool, has_past: bool, settings: Mapping[str, Any]
) -> str | None:
    """Why a layer cannot be computed, as a clause; None if it can.

    has_past: whether there are more keys than queries. settings: the other arguments of `layer_attention`.
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

    collector = output_capturing._active_collector
    if torch.compiler.is_compiling() and not collector.compiling:  # nothing in the graph collects
        return False  # what `get` would ask then divides the graph
    collected = collector.get()
    return bool(collected) and any("attentions" in key for key in collected)


@dataclass(frozen=True)
class ModelMask(Mask):
    """A mask that a model may hand on to another one, which then takes its mask from there. shape: (B, 1, N, M)."""

    shape: tuple[int, ...] = ()

    def tensor(self) -> Tensor:
        """The mask as a model expects it, bool (B, 1, N, M), True = may attend."""
        allowed = self.dense(self.shape[-2], self.shape[-1])
        return torch.ones(self.shape, dtype=torch.bool) if allowed is None else allowed.expand(self.shape)

    def __getattr__(self, name: str) -> Any:
        """What a model may ask of a tensor, such as `ndim` and `repeat`."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.tensor(), name)

    def __getitem__(self, index: Any) -> Tensor:
        return self.tensor()[index]

    def __radd__(self, bias: Tensor) -> Tensor:
        """The float mask of a model that adds it to a bias of the scores, as BEiT does."""
        allowed = self.dense(self.shape[-2], self.shape[-1], bias.device)
        return bias if allowed is None else torch.where(allowed, bias, torch.finfo(bias.dtype).min)

    __add__ = __radd__


def model_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable | None = None,
    attention_mask: Tensor | ModelMask | None = None,
    *,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    **others: Any,
) -> Mask | Tensor:
    """The mask of a forward pass: a compact `Mask`, or a bool tensor (B, 1, N, M) for other patterns than padding and
    causality, such as sliding windows. Both are True where a query may attend to a key.

    attention_mask: bool (B, total), True at real tokens, or the result of an earlier call, which is returned. The other
    arguments are those of `transformers.masking_utils.sdpa_mask`. A static cache gets the tensor, because its keys do
    not end with the newest query, and so does a model that does not allow a mask of None: it may index the mask.
    """
    from transformers import masking_utils

    if isinstance(attention_mask, ModelMask):
        return attention_mask
    library: Any = masking_utils  # whose annotations are narrower than what it is called with
    is_causal = mask_function is library.causal_mask_function
    ends_together = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
    is_padding = mask_function is library.bidirectional_mask_function and allow_is_bidirectional_skip
    if not (is_padding or (is_causal and allow_is_causal_skip and ends_together)):
        mask = library.sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask,
            allow_is_causal_skip=False, allow_is_bidirectional_skip=False, **others,
        )  # fmt: skip
        # from the function, so that no layer has to wait for the device; compiled code relies on the sites of `convert`
        if not torch.compiler.is_compiling() and ((one_way := is_one_way(mask_function)) or not mask.is_cpu):
            setattr(mask, ONE_WAY, one_way)
        return mask
    keys = attention_mask
    if keys is not None:
        missing = max(0, kv_offset + kv_length - keys.shape[-1])
        keys = F.pad(keys, (0, missing))[:, kv_offset : kv_offset + kv_length]
        if not torch.compiler.is_compiling() and bool(keys.all()):
            keys = None  # so that softmax can use the fused kernel
    return ModelMask(keys=keys, causal=is_causal, shape=(batch_size, 1, q_length, kv_length))


def is_one_way(function: Any) -> bool:
    """Whether some position may see another one that does not see it, for a mask function of `transformers`.

    Padding, packed texts and blocks, of which the values are in tensors, are the same in both directions.
    """
    return allows(function, 0, 1) is not allows(function, 1, 0)


def allows(function: Any, query: int, key: int) -> bool | None:
    """Whether a query may see a key by a mask function. None: a tensor or an object inside the function decides."""
    if not isinstance(function, FunctionType):
        return None
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    inside = {name: cell.cell_contents for name, cell in cells}
    if "mask_functions" in inside:  # of `and_masks` and `or_masks`
        each, decides = {allows(part, query, key) for part in inside["mask_functions"]}, "or" in function.__name__
        return decides if decides in each else None if None in each else not decides
    if "mask_function" in inside:  # with other positions, which are in the same order
        return allows(inside["mask_function"], query, key)
    if not all(isinstance(value, int | float | str | None) for value in inside.values()):
        return None
    return bool(function(*map(torch.tensor, (0, 0, query, key))))


def read_mask(mask: Mask | Tensor | None, is_causal: bool) -> tuple[Mask | Tensor | None, Tensor | None, bool]:
    """What a layer was given: the mask, what a float mask adds to log u, and whether the future is masked.

    mask:      the result of `model_mask`, or a mask of the user or of the model, (B, 1, N, M), bool or float. A float
               mask acts as a prior. Values of -1e4 or less forbid attention, because -inf is often written as a number.
    is_causal: what the layer says of itself. A `Mask` knows better.
    """
    if isinstance(mask, Mask):
        return mask, None, mask.causal
    if mask is None:
        return (Mask(causal=True) if is_causal else None), None, is_causal
    if not mask.is_floating_point():
        return mask, None, is_causal
    return *split(mask), is_causal
