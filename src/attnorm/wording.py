"""Numbers and names as messages show them."""

from collections.abc import Sequence

LONGEST = 60  # maximum number of characters of a name in a message


def counted(number: int, what: str) -> str:
    """'1 question', '1,200 questions'."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def listed(names: Sequence[str], most: int = 10) -> str:
    """The first few names, separated by commas."""
    shown = (name if len(name) <= LONGEST else f"{name[:LONGEST]}..." for name in names[:most])
    return ", ".join(shown) + ", ..." * (len(names) > most)
