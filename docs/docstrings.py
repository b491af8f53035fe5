"""Prepares the docstrings of attnorm for the API reference: their lists of fields become lists in Markdown.

A field is a name of the object (a parameter, an attribute) at the start of a line or sentence, and a colon:

    scores: (B, H, N, M), already scaled. mask: bool, broadcastable to `scores`, True where a query may attend to a
            key.
"""

import re
from collections.abc import Collection
from typing import Any

import griffe

HEADERS = {"Args:": "", "Returns:": "**Returns:** "}


class FieldLists(griffe.Extension):
    """Rewrites the docstring of every object of a package when it is loaded."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value, names_of(obj))


def names_of(obj: Any) -> set[str]:
    """The parameters of a function, or the attributes of a class and the parameters of its constructor."""
    return {*obj.members, *(parameter.name for parameter in getattr(obj, "parameters", ()))}


def to_markdown(text: str, names: Collection[str]) -> str:
    """Returns a docstring as Markdown. names: those that begin a field."""
    return "\n\n".join(paragraph(block, names) for block in re.split(r"\n\s*\n", text.strip()))


def paragraph(block: str, names: Collection[str]) -> str:
    """One paragraph of a docstring, with its fields as a list."""
    if block.startswith("    "):
        return block  # an example
    header, _, rest = block.partition("\n")
    if header in HEADERS:
        return HEADERS[header] + paragraph("\n".join(line.strip() for line in rest.splitlines()), names)
    listed = "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)"
    field = re.compile(rf"(?:^|(?<=[.;] ))((?:{listed})(?:, (?:{listed}))*): +")
    lead, *fields = field.split(" ".join(block.split()))
    items = [f"- `{name}`: {escaped(content.strip())}" for name, content in zip(fields[::2], fields[1::2], strict=True)]
    return "\n\n".join(part for part in (escaped(lead.strip()), "\n".join(items)) if part)


def escaped(text: str) -> str:
    """Text in which only backquotes are markup."""
    parts = re.split(r"(`[^`]*`)", text)
    special = r"([*\[\]]|(?<!\w)_|_(?!\w))"
    parts[::2] = [re.sub(special, r"\\\1", part).replace("<", "&lt;") for part in parts[::2]]
    return "".join(parts)
