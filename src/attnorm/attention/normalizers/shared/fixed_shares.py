"""Shares of a mixture: checking them, and finding those of one layer among shares that are fixed for each layer."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from attnorm.attention.option_checks import finite_number

Place = tuple[str, int]  # a site and the index of a layer at this site, from 0
ROUNDED = 1e-3  # how far the sum of shares that were typed may be from 1


def is_fraction(value: object) -> bool:
    """Whether a value is a number from 0 to 1."""
    return finite_number(value) and 0 <= value <= 1  # type: ignore[operator]  # it is a number


def on_simplex(option: str, shares: Any, members: int) -> list[float]:
    """Returns the shares of a mixture, with a sum of exactly 1. Raises ValueError if they are not on the simplex."""
    if (
        not isinstance(shares, Sequence)
        or isinstance(shares, str)
        or len(shares) != members
        or not all(map(is_fraction, shares))
        or abs(sum(shares) - 1) > ROUNDED
    ):
        raise ValueError(f"{option}={shares!r}: allowed: {members} numbers from 0 to 1 with the sum 1")
    return [share / sum(shares) for share in shares]


def fixed_value(fixed: Any, place: Place | None, heads: int | None, parse: Callable[[Any], list]) -> Tensor:
    """Returns the fixed value of one layer as a tensor: the same one at all layers, or that of `place` in a mapping.

    fixed: a value for all layers, or a mapping from each site to a list with a value per layer. The value is None for
           layers that do not need one.
    place: None takes the first value of a mapping, which is enough to check it.
    heads: the number of heads. Unless there is only one value for all of them, there must be as many.
    parse: converts a value to a list with one value for all heads, or one per head. All values of a mapping are parsed.

    Raises ValueError if a value is wrong, or if the mapping has no value for the layer.
    """
    if isinstance(fixed, Mapping):
        if not all(isinstance(values, list) for values in fixed.values()):
            raise ValueError(f"fixed={fixed!r}: expected a list with a value per layer for each site")
        parsed = {site: [None if value is None else parse(value) for value in values] for site, values in fixed.items()}
        layers = chain(*parsed.values()) if place is None else parsed.get(place[0], [])[place[1] : place[1] + 1]
        if (of_heads := next((value for value in layers if value is not None), None)) is None:
            where = "any layer" if place is None else f"layer {place[1]} of {place[0]}"
            raise ValueError(f"fixed={fixed!r}: has no value for {where}")
    else:
        of_heads = parse(fixed)
    # options are checked with a single head and without a place, before the model is known
    unknown = heads is None or (place is None and heads == 1)
    if not unknown and len(of_heads) not in (1, heads):
        raise ValueError(f"fixed={of_heads!r}: {len(of_heads)} values for {heads} head{'s' * (heads != 1)}")
    return torch.tensor(of_heads, dtype=torch.float32)
