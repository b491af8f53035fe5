"""A normalizer for code that calls `torch.nn.functional.scaled_dot_product_attention`."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnorm.attention.normalizers.base import Normalizer
from attnorm.nn.choice import without_parameters
from attnorm.nn.functional import attention


@contextmanager
def replace_sdpa(normalizer: str | Normalizer, *, ordered: bool = True) -> Iterator[None]:
    """Computes every call of `torch.nn.functional.scaled_dot_product_attention` with a normalizer, inside a `with`.

        with replace_sdpa("dnas"):
            out = model(images)

    Models of timm and diffusers, nanoGPT and the modules of torch call it under this name. Code that has imported the
    function itself keeps softmax, and so do modules that compute softmax themselves, such as
    `torch.nn.MultiheadAttention` when it returns weights. A warning at the end says so if nothing was replaced. The
    fast path of torch's encoder layers, which calls no attention, is off inside. All this holds for all threads of the
    process.

    normalizer, ordered: as in `attnorm.nn.functional.attention`, whose errors a call may raise. It has no argument for
        padded queries, so a normalizer that couples queries is refused with a mask of padded keys.
    """
    if isinstance(normalizer, str):
        without_parameters(normalizer, torch.device("cpu"))  # an error before the model runs
    before, with_fast_path, calls = F.scaled_dot_product_attention, torch.backends.mha.get_fastpath_enabled(), 0

    def replacement(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *args: Any, **options: Any
    ) -> Tensor:
        nonlocal calls
        calls += 1
        return attention(query, key, value, attn_mask, *args, normalizer=normalizer, ordered=ordered, **options)

    F.scaled_dot_product_attention = replacement
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        F.scaled_dot_product_attention = before
        torch.backends.mha.set_fastpath_enabled(with_fast_path)
    if not calls:
        warnings.warn(
            "replace_sdpa: nothing called torch.nn.functional.scaled_dot_product_attention under this name, so nothing "
            "was replaced",
            stacklevel=3,
        )
