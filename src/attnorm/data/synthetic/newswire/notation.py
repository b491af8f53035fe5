"""The notation in which events are written, and its reader.

    == earthquake / disaster                     an event kind and its desk (the desk's leads and sources frame it)
    size: strong > powerful | minor > small      a slot of this event: article form > headline form | ...
    > a {size} earthquake shook {country.town}   a clause of the article (finite, past tense, no full stop) ...
    < {size} quake rocks {country}               ... and the headline that goes with it
    + cutting power in parts of {country.town}   a detail that never reaches the headline

A slot is `{name}`, `{name2}` (a second one, always different) or `{name.form}`; its name is one of this event's or one
of `lexicon.KINDS`. In a `<` line a slot reads in its headline form. The details and the frames use high numbers
(`{person9}`) for people and places of their own. Indented lines continue the line above.

What goes around a clause, the orders of a lead sentence and each desk's openings and sources, is in text/frames.txt and
text/desks.txt.
"""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from attnorm.data.synthetic import sections
from attnorm.data.synthetic.newswire.lexicon import KINDS, TEXT, Kind, slot_entries

_PART = re.compile(r"\b(core|second|detail|who|lead|aside|on)\b")
_SLOT = re.compile(r"\{([a-z]+)(\d?)(?:\.([a-z]+))?\}")


class Template(NamedTuple):
    """A text with its slots taken out: `text % forms` puts them back.

    `fields` holds a (slot, form index) for each `%s`; `slots` each slot once, with the entries it is drawn from.
    """

    text: str
    fields: tuple[tuple[str, int], ...]
    slots: tuple[tuple[str, list[tuple[str, ...]]], ...]

    def render(self, values: dict[str, tuple[str, ...]]) -> str:
        """The text with each slot replaced by its entry's form; `values` maps a slot to its entry."""
        return self.text % tuple([values[slot][form] for slot, form in self.fields])


@dataclass
class Event:
    """One event kind: stories are (article clause, headline) templates, details are clauses to hang on."""

    name: str
    desk: str
    kinds: dict[str, Kind] = field(default_factory=lambda: dict(KINDS))
    stories: list[tuple[Template, Template]] = field(default_factory=list)
    details: list[Template] = field(default_factory=list)


def compile_template(text: str, kinds: dict[str, Kind], headline: bool = False) -> Template:
    """Compile one template line. Raises ValueError for an unknown slot or form, naming those that exist."""
    fields, slots = [], {}
    for name, number, form in _SLOT.findall(text):
        if name not in kinds:
            raise ValueError(f"unknown slot {{{name}}} in {text!r}: known are {', '.join(sorted(kinds))}")
        kind = kinds[name]
        forms = ("article", "headline", *kind.forms)
        form = form or ("headline" if headline else "article")
        if form not in forms:
            raise ValueError(f"unknown form {{{name}.{form}}} in {text!r}: known are {', '.join(forms)}")
        fields.append((name + number, forms.index(form)))
        slots[name + number] = kind.entries
    text = _SLOT.sub("%s", text)
    if re.search(r"[{}A-Z0-9]|%(?!s)|  ", text):
        raise ValueError(f"templates are lower case, digits written #, single spaces, slots in braces: {text!r}")
    return Template(text, tuple(fields), tuple(slots.items()))


def logical_lines(text: str) -> list[str]:
    """The lines of `text` without blank ones, indented lines joined to the line above."""
    lines: list[str] = []
    for line in text.splitlines():
        if line[:1].isspace() and line.strip():
            lines[-1] += " " + line.strip()
        elif line.strip():
            lines.append(line.strip())
    return lines


def read_events(text: str) -> list[Event]:
    """Read event kinds written in the notation above. Raises ValueError naming the line that does not read."""
    events: list[Event] = []
    clause = None
    for line in logical_lines(text):
        mark, _, rest = line.partition(" ")
        if mark != "==" and not events:
            raise ValueError(f"events begin with a line '== name / desk': {line!r}")
        if mark == "==":
            name, _, desk = rest.partition(" / ")
            events.append(Event(name, desk))
        elif mark == ">":
            clause = compile_template(rest, events[-1].kinds)
        elif mark == "<" and clause is not None:
            headline = compile_template(rest, events[-1].kinds, headline=True)
            missing = {slot for slot, _ in headline.slots} - {slot for slot, _ in clause.slots}
            if missing:
                raise ValueError(f"headline slots {sorted(missing)} are not in the article clause above: {line!r}")
            events[-1].stories.append((clause, headline))
            clause = None
        elif mark == "+":
            events[-1].details.append(compile_template(rest, events[-1].kinds))
        elif re.fullmatch(r"[a-z]+:", mark):
            events[-1].kinds[mark[:-1]] = Kind(slot_entries(rest))
        else:
            raise ValueError(f"not a line of an event ('==', 'slot:', '>', '<' after '>', '+'): {line!r}")
    return events


class Frame(NamedTuple):
    """A frame as (text with %s, the parts that fill it in order: core, second, detail, who, lead, aside, on)."""

    text: str
    parts: tuple[str, ...]


class Desk(NamedTuple):
    """A news desk's ways to begin and to attribute: `leads` and `sources`."""

    leads: list[Template]
    sources: list[Template]


def _templates(lines: list[str]) -> list[Template]:
    return [compile_template(line, KINDS) for line in lines]


_ORDERS, _DESKS = sections(TEXT / "frames.txt"), sections(TEXT / "desks.txt")
FRAMES, FRAMES_OF_TWO = (
    [Frame(_PART.sub("%s", line), tuple(_PART.findall(line))) for line in _ORDERS[name]]
    for name in ("orders", "orders of two")
)
ASIDES, DAYS = _templates(_ORDERS["asides"]), _templates(_ORDERS["days"])
DESKS = {
    name.removeprefix("leads of "): Desk(_templates(lines), _templates(_DESKS[name.replace("leads", "sources", 1)]))
    for name, lines in _DESKS.items()
    if name.startswith("leads of ")
}
