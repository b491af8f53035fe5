"""What goes around a clause: the orders of a lead sentence, and each desk's openings and sources.

The texts are in text/frames.txt and text/desks.txt.
"""

import re
from typing import NamedTuple

from attnorm.data.synthetic.newswire.lexicon import KINDS, TEXT
from attnorm.data.synthetic.newswire.notation import Template, compile_template
from attnorm.data.synthetic.text_files import sections

_PART = re.compile(r"\b(core|second|detail|who|lead|aside|on)\b")


class Frame(NamedTuple):
    """A frame as (text with %s, the parts that fill it in order: core, second, detail, who, lead, aside, on)."""

    text: str
    parts: tuple[str, ...]


class Desk(NamedTuple):
    """A news desk's ways to begin and to attribute: `leads` and `sources`."""

    leads: list[Template]
    sources: list[Template]


def _frames(lines: list[str]) -> list[Frame]:
    return [Frame(_PART.sub("%s", line), tuple(_PART.findall(line))) for line in lines]


def _templates(lines: list[str]) -> list[Template]:
    return [compile_template(line, KINDS) for line in lines]


_ORDERS, _DESKS = sections(TEXT / "frames.txt"), sections(TEXT / "desks.txt")
FRAMES, FRAMES_OF_TWO = _frames(_ORDERS["orders"]), _frames(_ORDERS["orders of two"])
ASIDES, DAYS = _templates(_ORDERS["asides"]), _templates(_ORDERS["days"])
DESKS = {
    name.removeprefix("leads of "): Desk(_templates(lines), _templates(_DESKS[name.replace("leads", "sources", 1)]))
    for name, lines in _DESKS.items()
    if name.startswith("leads of ")
}
