"""The mask function that `transformers` calls once per forward pass, and what its result means to a layer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnorm.attention import Mask
from attnorm.nn.masks import split


@dataclass(frozen=True)
class ModelMask(Mask):
    """A mask that a model may hand on to another one, which then takes its mask from there. shape: (B, 1, N, M)."""

    shape: tuple[int, ...] = ()

    @property
    def ndim(self) -> int:
        return len(self.shape)

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
        return library.sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask,
            allow_is_causal_skip=False, allow_is_bidirectional_skip=False, **others,
        )  # fmt: skip
    keys = attention_mask
    if keys is not None:
        missing = max(0, kv_offset + kv_length - keys.shape[-1])
        keys = F.pad(keys, (0, missing))[:, kv_offset : kv_offset + kv_length]
        if not torch.compiler.is_compiling() and bool(keys.all()):
            keys = None  # so that softmax can use the fused kernel
    return ModelMask(keys=keys, causal=is_causal, shape=(batch_size, 1, q_length, kv_length))


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
    return *split(mask, look=False), is_causal


def without_padded_queries(mask: Mask | Tensor | None) -> Mask | Tensor | None:
    """The mask of self-attention in which padding is no query, either.

    In a tensor, a position that no query may see counts as padding.
    """
    if isinstance(mask, Mask):
        return Mask(queries=mask.keys, keys=mask.keys, causal=mask.causal)
    return None if mask is None else mask & mask.any(-2).unsqueeze(-1)
