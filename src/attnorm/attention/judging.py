"""Judges masks for normalizers that couple queries: whether what a mask hides would change the weights all the same."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnorm.attention.call_context import may_look
from attnorm.attention.masking import Mask
from attnorm.attention.transfer import note, read_note

WITHOUT_ORDER = "if the positions have no order, pass ordered=False"
Questions = dict[str, Callable[[], Tensor]]
ANSWERS = "answers"  # an attribute of masks: what is known of their values


def look(mask: Tensor, questions: Questions) -> set[str]:
    """Those of the questions about the values of a mask to which the answer is yes. They are asked in one look, which
    waits for the device, and are noted on the mask: it is not looked at again until it is changed in place."""
    answers: dict[str, bool] = read_note(mask, ANSWERS) or {}
    if new := [name for name in questions if name not in answers]:
        found = torch.stack([questions[name]() for name in new]).tolist()
        note(mask, ANSWERS, answers := {**answers, **dict(zip(new, found, strict=True))})
    return {name for name in questions if answers[name]}


def about_order(pairs: Tensor, is_self: bool = True) -> Questions:
    """The question whether a mask hides the future. pairs: bool (..., N, M), True = may attend.

    With as many queries as keys, it does if some real position sees another one that does not see it: causal masks,
    also with a prefix or in blocks, and those from right to left. A position is real if it sees one and some position
    sees it, so that padding has no order.

    is_self: whether queries and keys are the same positions, if there are as many of them. Otherwise, a mask hides the
             future if it `looks_causal`.
    """
    if pairs.dim() < 2 or min(pairs.shape[-2:]) <= 1:
        return {}
    if not is_self or pairs.shape[-2] != pairs.shape[-1]:
        return {"looks causal": lambda: looks_causal(pairs)}
    return {"hides the future": lambda: sees_one_way(pairs, pairs.any(-1) & pairs.any(-2))}


def hides_the_future(mask: Tensor, pairs: Tensor, is_self: bool = True) -> bool:
    """Whether a mask hides the future, see `about_order`. pairs: its bool form; what is seen is noted on the mask."""
    return bool(look(mask, about_order(pairs, is_self)))


def sees_one_way(pairs: Tensor, real: Tensor) -> Tensor:
    """Whether one of the real positions, bool (..., N), sees another one that does not see it."""
    return (pairs & ~pairs.mT & real.unsqueeze(-1) & real.unsqueeze(-2)).any()


def looks_causal(pairs: Tensor) -> Tensor:
    """Whether, in some matrix of the mask, no query sees a key after its own position, some see other keys than others,
    and some share a key.

    The diagonal begins at the first query and key, or ends at the last ones. A matrix of padding is the same for all
    queries that see a key, and in a diagonal of blocks, some query of a block sees a later key or shares none. If the
    numbers of queries and keys differ, each query must also see the last key up to its own position that anyone sees.
    """
    n_queries, n_keys = pairs.shape[-2:]
    sees_later = pairs.triu(max(n_keys - n_queries, 0) + 1).flatten(-2).any(-1)
    common = pairs.any(-1, keepdim=True) & pairs.any(-2, keepdim=True)
    differs = (pairs != common).flatten(-2).any(-1)
    shares = (pairs.sum(-2) > 1).any(-1)
    found = ~sees_later & differs & shares
    return (found if n_queries == n_keys else found & ends_at_a_diagonal(pairs)).any()


def about_padding(pairs: Tensor, n_queries: int, is_ordered: bool = True) -> Questions:
    """The question whether a mask hides keys from all queries without hiding the queries of these positions.

    Among positions without an order, some may have no neighbour. Then, only a mask that is the same for all queries is
    one of padding.
    """
    if n_queries == 1:
        return {}
    hidden = torch.atleast_2d(~pairs)
    if is_ordered and hidden.shape[-2] == hidden.shape[-1]:
        return {"pads keys": lambda: (hidden.all(-2) & ~hidden.all(-1)).any()}
    return {"hides the same keys": lambda: hidden.any() & (hidden == hidden[..., :1, :]).all()}


def about_triangle(pairs: Tensor, n_queries: int, n_keys: int) -> Questions:
    """The questions whether some query sees an earlier key and none a later one, where the last query is at the place
    of the last key, and whether it sees that key. With fewer queries than keys, the keys are then those of a cache."""
    later = n_keys - n_queries + 1
    if pairs.shape[-2:] != (n_queries, n_keys) or later < 1:
        return {}
    return {
        "is triangle": lambda: pairs.tril(later - 2).any() & ~pairs.triu(later).any(),
        "ends with the last key": lambda: pairs[..., -1, -1].any() & ~pairs.triu(later).any(),
    }


def judged(mask: Tensor) -> Tensor:
    """Notes on a mask that it has been judged and need not be looked at again. Returns the mask."""
    questions = ("hides the future", "looks causal", "pads keys", "hides the same keys")
    return note(mask, ANSWERS, dict.fromkeys(questions, False))


def ends_at_a_diagonal(pairs: Tensor) -> Tensor:
    """Whether the last key of each query that sees one is the last one up to its position that anyone sees, (...,)."""
    n_queries, n_keys = pairs.shape[-2:]
    query, key = (torch.arange(n, device=pairs.device) for n in (n_queries, n_keys))
    last, seen = (pairs * (key + 1)).amax(-1), pairs.any(-2, keepdim=True)
    ends = [((seen & (key <= query[:, None] + shift)) * (key + 1)).amax(-1) for shift in (0, n_keys - n_queries)]
    return torch.stack([((last == end) | (last == 0)).all(-1) for end in ends]).any(0)


def questions_about(mask: Tensor, couples: str, n_queries: int, n_keys: int, ordered: bool) -> Questions:
    """What is asked about a dense mask for scores (B, H, n_queries, n_keys). couples: `Normalizer.couples_queries`."""
    if couples == "none":
        return {}
    asks_all = ordered and couples == "all"
    asked = about_order(mask) if asks_all else {}
    if n_queries == n_keys:  # otherwise, they are not the same positions
        return asked | about_padding(mask, n_queries, asks_all)
    return asked | (about_triangle(mask, n_queries, n_keys) if couples == "past" else {})


def problem_of(normalizer: Any, mask: Tensor | Mask | None, n_queries: int, n_keys: int, ordered: bool) -> str | None:
    """Why the weights would depend on what a mask hides, see `Normalizer.refuse_mask`; None if they would not."""
    couples, is_causal = normalizer.couples_queries, isinstance(mask, Mask) and mask.causal
    if couples == "all" and is_causal:
        return f"Mask(causal=True): {normalizer.leak_message()}"
    if couples == "none" or normalizer._in_layer:
        return None
    found: set[str] = set()
    if isinstance(mask, Tensor) and may_look(mask):
        found = look(mask, questions_about(mask, couples, n_queries, n_keys, ordered))
    if found & {"hides the future", "looks causal"}:
        return f"mask: hides the future: {normalizer.leak_message()}; {WITHOUT_ORDER}"
    of_cache = n_queries == 1 or is_causal or "ends with the last key" in found
    if couples == "past" and n_queries < n_keys and of_cache:
        return f"scores: {normalizer.cache_message()}"
    if found & {"pads keys", "hides the same keys"}:
        return (
            f"mask: hides keys from all queries, and {type(normalizer).__name__} couples queries, so that padded ones "
            "would change the others; use Mask(queries=..., keys=...), or Mask(keys=...) if every query is real"
        )
    return None
