"""The masks of PyTorch as those of attnorm: who may attend to whom, and what is added to the scores."""

import torch
from torch import Tensor

from attnorm.attention.masking import Mask, hides_the_future
from attnorm.attention.names import name_of
from attnorm.attention.normalizers.base import Normalizer

FORBIDDEN = -1e4  # a float mask forbids what has at most this value: -inf is often written as a large finite number
SOURCE = "bool_mask"  # an attribute of a float mask: the mask of which it was made, True = forbidden


def read_masks(
    normalizer: Normalizer,
    shape: tuple[int, int, int],
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    query_padding_mask: Tensor | None,
    is_causal: bool,
) -> tuple[Tensor | Mask | None, Tensor | None]:
    """Returns the mask, compact if possible, and what is added to the scores, broadcastable to them. None: nothing.

    shape:              (B, N, M), the number of examples, queries and keys.
    attn_mask:          broadcastable to (B, H, N, M); bool, True = may attend, or float, added to the scores.
    key_padding_mask:   (B, M); bool, True = padding, or float, added to the scores of each key.
    query_padding_mask: (B, N), bool, True = padding.
    is_causal:          query i may see the keys j <= i, in place of an `attn_mask`; only if N = M.

    Raises ValueError for a mask of another dtype or shape, and for masks with which the normalizer is not defined.
    """
    batch, n_queries, n_keys = shape
    _check("attn_mask", attn_mask)
    _check("key_padding_mask", key_padding_mask, (batch, n_keys))
    _check("query_padding_mask", query_padding_mask, (batch, n_queries), bool_only=True)
    # looking at values would divide a compiled graph: there, a float mask is added even if it is 0 where it allows
    look = not torch.compiler.is_compiling() or normalizer.needs_queries
    pairs, bias, keys = None, None, None
    if attn_mask is not None:
        pairs, bias = split(attn_mask[(None,) * (4 - attn_mask.dim())], look)
        pairs = None if is_causal else pairs  # the hint says where it allows attention
    if key_padding_mask is not None:
        keys, added = split(opposite(key_padding_mask), look)
        if added is not None:
            bias = added[:, None, None] if bias is None else bias + added[:, None, None]
    if normalizer.couples_queries == "all" and (is_causal or hides_the_future(pairs)):
        argument = "is_causal=True" if is_causal else "attn_mask: hides the future"
        raise ValueError(f"{argument}: {normalizer.leak_message(name_of(normalizer))}")
    if normalizer.needs_causal and not (is_causal or is_triangle(pairs) or n_queries == n_keys == 1):
        raise ValueError(f"{name_of(normalizer)} is defined for causal self-attention only; pass a causal mask")
    if normalizer.needs_queries and bias is not None:
        raise ValueError(
            f"{name_of(normalizer)} is computed from the queries and keys, not from the scores, so that a float mask "
            "cannot be added to them; use a bool mask, or one of 0 and -inf"
        )
    if query_padding_mask is None and keys is None and not is_causal:
        return pairs, bias
    mask = Mask(None if query_padding_mask is None else ~query_padding_mask, keys, is_causal)
    padding = None if pairs is None else mask.dense(n_queries, n_keys)
    return (mask if pairs is None or padding is None else pairs & padding), bias


def _check(name: str, mask: Tensor | None, shape: tuple[int, ...] | None = None, bool_only: bool = False) -> None:
    """Raises ValueError for a mask of another dtype, or of another shape if there is only one."""
    if mask is None:
        return
    if mask.dtype != torch.bool and (bool_only or not mask.is_floating_point()):
        raise ValueError(f"{name}: expected dtype bool{'' if bool_only else ' or a float dtype'}, got {mask.dtype}")
    if shape is not None and mask.shape != shape:
        raise ValueError(f"{name}: expected the shape {shape}, got {tuple(mask.shape)}")


def split(mask: Tensor, look: bool) -> tuple[Tensor, Tensor | None]:
    """Where a mask allows attention, and what it adds to the scores there.

    look: whether to look at the values of a float mask, and to return None if it adds nothing.
    """
    if mask.dtype == torch.bool:
        return mask, None
    if hasattr(mask, SOURCE):
        return ~getattr(mask, SOURCE), None
    allowed = ~forbidden(mask)
    added = mask.masked_fill(~allowed, 0.0)
    if look and not mask.is_meta and not mask.requires_grad and not added.any():  # a learned mask may begin with 0
        return allowed, None
    return allowed, added


def forbidden(mask: Tensor) -> Tensor:
    """Where a mask forbids attention; for a bool mask, where it is True."""
    return mask if mask.dtype == torch.bool else mask <= FORBIDDEN


def opposite(mask: Tensor) -> Tensor:
    """A mask whose bool values have the other meaning. A float mask means the same everywhere."""
    return ~mask if mask.dtype == torch.bool else mask


def is_triangle(pairs: Tensor | None) -> bool:
    """Whether, of N queries and N keys, some query sees an earlier key and none sees a later one."""
    if pairs is None or pairs.shape[-2] != pairs.shape[-1]:
        return False
    return pairs.is_meta or bool(pairs.tril(-1).any() & ~pairs.triu(1).any())
