"""Numbers and names as messages show them."""

from collections.abc import Sequence

LONGEST = 60  # maximum number of characters of a name in a message
CONTROLS = {  # characters that a terminal obeys, that end a line, or that reorder what is beside them -> their escapes
    code: f"\\u{code:04x}"
    for code in (
        *(*range(9), *range(11, 32), *range(127, 160), 0x061C, 0x200E, 0x200F),
        *(*range(0x2028, 0x202F), *range(0x2066, 0x206A)),
    )
}


def printable(text: str) -> str:
    """A text, which may be someone else's, as it may be printed and written: control characters but tabs and ends of
    lines as escapes."""
    return text.translate(CONTROLS)


def on_one_line(text: str) -> str:
    """The same for a name or a sentence, in which ends of lines are escapes too."""
    return printable(text).replace("\n", "\\n")


def counted(number: int, what: str) -> str:
    """'1 question', '1,200 questions'."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def listed(names: Sequence[str], most: int = 10) -> str:
    """The first few names, separated by commas."""
    shown = (name if len(name) <= LONGEST else f"{name[:LONGEST]}..." for name in names[:most])
    return ", ".join(shown) + ", ..." * (len(names) > most)
