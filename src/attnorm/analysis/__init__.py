"""What comes after training: opening runs, figures, and comparisons. Everything is read from run folders."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnorm.analysis.comparison import Comparison, compare

__all__ = ["Comparison", "compare"]


def __getattr__(name: str) -> Any:
    """Imports what is listed above when it is first used."""
    if name in __all__:
        from attnorm.analysis import comparison

        return getattr(comparison, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
