"""What comes after training: opening runs, figures, and comparisons. Everything is read from run folders."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnorm.analysis.comparison import Comparison, compare
    from attnorm.analysis.score_tables import compare_scores

__all__ = ["Comparison", "compare", "compare_scores"]


def __getattr__(name: str) -> Any:
    """Imports what is listed above when it is first used."""
    if name in __all__:
        from attnorm.analysis import comparison, score_tables

        return getattr(score_tables if name == "compare_scores" else comparison, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
