"""The masks of PyTorch as those of attnorm: who may attend to whom, and what is added to the scores."""

import torch
from torch import Tensor

from attnorm.attention.judging import WITHOUT_ORDER, Questions, about_order, about_padding, about_triangle, judged, look
from attnorm.attention.masking import Mask
from attnorm.attention.normalizers.base import Normalizer
from attnorm.attention.registry import name_of
from attnorm.attention.transfer import note, read_note

FORBIDDEN = -1e4  # a float mask forbids what has at most this value: -inf is often written as a large finite number
OPPOSITE = "opposite"  # an attribute of a bool mask
SOURCE = "bool_mask"  # an attribute of a float mask: the mask of which it was made, True = forbidden


def read_masks(
    normalizer: Normalizer,
    shape: tuple[int, int, int],
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    query_padding_mask: Tensor | None,
    is_causal: bool,
    *,
    user_mask: Tensor | None = None,
    ordered: bool = True,
    is_self: bool = True,
    knows_past: bool = False,
) -> tuple[Tensor | Mask | None, Tensor | None]:
    """Returns the mask, compact if possible, and what is added to the scores, broadcastable to them. None: nothing.

    shape:              (B, N, M), the number of examples, queries and keys.
    attn_mask:          broadcastable to (B, H, N, M); bool, True = may attend, or float, added to the scores.
    key_padding_mask:   (B, M); bool, True = padding, or float, added to the scores of each key.
    query_padding_mask: (B, N), bool, True = padding.
    is_causal:          query i may see the keys j <= i, in place of an `attn_mask`; only if N = M.
    user_mask:          the `attn_mask` in the form of the user, on which is noted what is seen in it.
    ordered:            as in `Normalizer.refuse_mask`.
    is_self:            whether queries and keys are the same positions, if there are as many of them.
    knows_past:         whether the queries are all up to the last one, also if there is only one.

    Raises ValueError for a mask of another dtype or shape, and for masks with which the normalizer is not defined. The
    values of an `attn_mask` are looked at once, if they have to be.
    """
    batch, n_queries, n_keys = shape
    couples, name = normalizer.couples_queries, name_of(normalizer)
    _check("attn_mask", attn_mask)
    _check("key_padding_mask", key_padding_mask, (batch, n_keys))
    _check("query_padding_mask", query_padding_mask, (batch, n_queries), bool_only=True)
    pairs, bias, keys = None, None, None
    found: set[str] = set()
    if attn_mask is not None:
        pairs, bias = split(attn_mask[(None,) * (4 - attn_mask.dim())])
        questions = {} if bias is None else about_zeros(attn_mask, bias, normalizer)
        if couples == "all" and ordered and not is_causal:
            questions |= about_order(pairs, is_self)
        if couples != "none" and query_padding_mask is None and is_self and not is_causal:
            questions |= about_padding(pairs, n_queries, ordered and couples == "all")
        if (couples == "past" or normalizer.needs_causal) and not is_causal:
            questions |= about_triangle(pairs, n_queries, n_keys)
        if questions and not pairs.is_meta:
            found = look(attn_mask if user_mask is None else user_mask, questions)
        pairs = None if is_causal else judged(pairs)  # the hint says where it allows attention
        bias = None if "adds nothing" in found else bias
    if key_padding_mask is not None:
        keys, added = split(opposite(key_padding_mask))
        if added is not None and "adds nothing" not in look(
            key_padding_mask, about_zeros(key_padding_mask, added, normalizer)
        ):
            bias = added[:, None, None] if bias is None else bias + added[:, None, None]
    hides_the_future = is_causal or bool(found & {"hides the future", "looks causal"})
    if couples == "all" and hides_the_future:
        argument, advice = (
            ("is_causal=True", "") if is_causal else ("attn_mask: hides the future", f"; {WITHOUT_ORDER}")
        )
        raise ValueError(f"{argument}: {normalizer.leak_message(name)}{advice}")
    is_of_cache = n_queries == 1 or "ends with the last key" in found
    if couples == "past" and n_queries < n_keys and is_of_cache and not knows_past:
        raise ValueError(f"query: {normalizer.cache_message(name)}")
    if found & {"pads keys", "hides the same keys"}:
        raise ValueError(
            f"attn_mask: hides keys from all queries, and {name} couples queries, so that padded ones would change "
            "the others; pass query_padding_mask to MultiheadAttention or functional.attention of attnorm.nn: True at "
            "padding, or zeros if every query is real"
        )
    is_triangle = "is triangle" in found and (n_queries == n_keys or "ends with the last key" in found)
    in_order = is_causal or n_queries == n_keys == 1 or is_triangle or (pairs is not None and pairs.is_meta)
    if normalizer.needs_causal and not in_order:
        raise ValueError(f"{name} is defined for causal self-attention only; pass a causal mask")
    if normalizer.needs_queries and bias is not None:
        raise ValueError(
            f"{name} is computed from the queries and keys, not from the scores, so that a float mask "
            "cannot be added to them; use a bool mask, or one of 0 and -inf"
        )
    if query_padding_mask is None and keys is None and not is_causal:
        return pairs, bias
    mask = Mask(None if query_padding_mask is None else ~query_padding_mask, keys, is_causal)
    padding = None if pairs is None else mask.dense(n_queries, n_keys)
    return (mask if pairs is None or padding is None else judged(pairs & padding)), bias


def _check(name: str, mask: Tensor | None, shape: tuple[int, ...] | None = None, bool_only: bool = False) -> None:
    """Raises ValueError for a mask of another dtype, or of another shape if there is only one."""
    if mask is None:
        return
    if mask.dtype != torch.bool and (bool_only or not mask.is_floating_point()):
        raise ValueError(f"{name}: expected dtype bool{'' if bool_only else ' or a float dtype'}, got {mask.dtype}")
    if shape is not None and mask.shape != shape:
        raise ValueError(f"{name}: expected the shape {shape}, got {tuple(mask.shape)}")


def split(mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """Where a mask allows attention, and what a float mask adds to the scores there."""
    if mask.dtype == torch.bool:
        return mask, None
    if hasattr(mask, SOURCE):
        return ~getattr(mask, SOURCE), None
    allowed = ~forbidden(mask)
    return allowed, mask.masked_fill(~allowed, 0.0)


def about_zeros(mask: Tensor, added: Tensor, normalizer: Normalizer) -> Questions:
    """The question whether a float mask adds nothing to the scores. A learned mask may begin with zeros, and a look
    would divide a compiled graph: there, zeros are added."""
    may_ask = not torch.compiler.is_compiling() or normalizer.needs_queries
    return {"adds nothing": lambda: ~added.any()} if may_ask and not (mask.is_meta or mask.requires_grad) else {}


def forbidden(mask: Tensor) -> Tensor:
    """Where a mask forbids attention; for a bool mask, where it is True."""
    return mask if mask.dtype == torch.bool else mask <= FORBIDDEN


def opposite(mask: Tensor) -> Tensor:
    """A mask whose bool values have the other meaning. It is noted, and so is what is seen in it. A float mask means
    the same everywhere."""
    if mask.dtype != torch.bool:
        return mask
    if (other := read_note(mask, OPPOSITE)) is None:
        note(mask, OPPOSITE, other := ~mask)
    return other
