"""Shortcuts of normalizers: what computes the weights or the output without the method that is the formula."""

from typing import Any

SHORTCUTS = {  # and what they shortcut
    "forward": ("weights",),
    "attend": ("weights", "forward"),
    "fast_attend": ("weights", "forward", "row_step"),
}
PARTS = {"fast_attend": ("fast_attend", "key_bias", "average")}  # by which a class overrides a shortcut


def give_up_shortcuts(cls: Any, base: Any) -> None:
    """Replaces each shortcut of a parent class by that of `base` if a class below overrides what it shortcuts: it would
    compute the formula of the parent."""
    for shortcut, formula in SHORTCUTS.items():
        if level(cls, *formula) < level(cls, *PARTS.get(shortcut, (shortcut,))):
            setattr(cls, shortcut, getattr(base, shortcut))
    if cls.total == 0 and level(cls, "weights", "forward") < level(cls, "total"):
        cls.total = None  # layers do not compute what is 0


def level(cls: Any, *names: str) -> int:
    """How far above a class the first one is that defines one of the names; 0 for the class itself."""
    return next(level for level, part in enumerate(cls.__mro__) if any(name in vars(part) for name in names))
