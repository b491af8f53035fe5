"""Checks of options. Their messages name the option, its value, and what is allowed. A bool is not a number."""

import math
from collections.abc import Iterable
from typing import Any


def finite_number(value: object) -> bool:
    """Whether `value` is a finite number."""
    return not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value)


def one_of(option: str, value: str, allowed: Iterable[str]) -> str:
    """Returns the value of an option that must be one of several words. Raises ValueError otherwise."""
    if value not in (words := tuple(allowed)):
        raise ValueError(f"{option}={value!r}: allowed: {', '.join(words)}")
    return value


def whole(option: str, value: Any, least: int) -> int:
    """Returns the value of an option that must be a whole number >= `least`. Raises ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{option}={value!r}: allowed: whole numbers from {least}")
    return value


def above_zero(option: str, value: Any) -> float:
    """Returns the value of an option that must be a finite number above 0. Raises ValueError otherwise."""
    if not finite_number(value) or value <= 0:
        raise ValueError(f"{option}={value!r}: allowed: numbers above 0")
    return float(value)


def inside_unit_interval(option: str, value: Any) -> float:
    """Returns the value of an option that must be above 0 and below 1. Raises ValueError otherwise."""
    if not finite_number(value) or not 0 < value < 1:
        raise ValueError(f"{option}={value!r}: allowed: numbers between 0 and 1")
    return float(value)
