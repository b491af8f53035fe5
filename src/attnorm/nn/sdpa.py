"""A normalizer for code that calls `torch.nn.functional.scaled_dot_product_attention`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnorm.attention.names import name_of
from attnorm.attention.normalizers.base import Normalizer
from attnorm.attention.surroundings import may_look
from attnorm.nn.choice import without_parameters
from attnorm.nn.functional import attention
from attnorm.nn.masks import forbidden, opposite


@contextmanager
def replace_sdpa(normalizer: str | Normalizer) -> Iterator[None]:
    """Computes every call of `torch.nn.functional.scaled_dot_product_attention` with a normalizer, inside a `with`.

        with replace_sdpa("dnas"):
            out = model(images)

    Models of timm and diffusers, nanoGPT and the modules of torch call it under this name; code that has imported the
    function itself keeps softmax. The replacement holds for all threads of the process.

    normalizer: as in `attnorm.nn.functional.attention`, whose errors a call may raise: a normalizer that couples all
                queries is refused with a causal mask. One that couples queries is also refused with a mask that hides
                the same keys from all of them, which is padding, because it does not say which queries are padded.
                The mask is looked at for this, which waits for the device.
    """
    chosen = without_parameters(normalizer, torch.device("cpu")) if isinstance(normalizer, str) else normalizer
    before = F.scaled_dot_product_attention

    def replacement(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *args: Any, **given: Any
    ) -> Tensor:
        if attn_mask is not None and chosen.couples_queries != "none" and pads_keys(attn_mask, query.shape[-2]):
            raise ValueError(
                f"attn_mask: hides the same keys from all queries, and {name_of(chosen)} couples queries, so padded "
                "ones would change the others; use attnorm.nn.functional.attention with query_padding_mask"
            )
        return attention(query, key, value, attn_mask, *args, normalizer=normalizer, **given)

    F.scaled_dot_product_attention = replacement
    try:
        yield
    finally:
        F.scaled_dot_product_attention = before


def pads_keys(mask: Tensor, n_queries: int) -> bool:
    """Whether a mask, as of `scaled_dot_product_attention`, hides the same keys from all of several queries."""
    if n_queries == 1 or not may_look(mask):
        return False
    hidden = torch.atleast_2d(forbidden(opposite(mask)))
    return bool(hidden.any()) and bool((hidden == hidden[..., :1, :]).all())
