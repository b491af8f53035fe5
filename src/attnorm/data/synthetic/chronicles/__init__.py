"""The built-in corpus of long documents: chronicles of invented towns.

    from attnorm.data.synthetic.chronicles import chronicle
    text = chronicle("train", 0)

A chronicle introduces the people of a town, with facts that are drawn for this chronicle alone, and then tells what
happens day by day. Most sentences mention facts that were stated long before, so a model that sees more of the context
predicts them better:

- The trade, the birthplace and the animal of a person are stated once at the beginning, and mentioned again later.
- Some things pass from hand to hand. Who has a thing follows from the latest sentence that gives it away.
- A song of invented words is sung line by line, always in the same order.
- The days are counted.

The text is a pure function of (split, index, seed).
"""

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from attnorm.data.synthetic import Draw, Entry, pick, sections, words

_SECTIONS = sections(Path(__file__).parent / "text" / "chronicles.txt")
_WORDS = {name: words(lines) for name, lines in _SECTIONS.items()}
_PEOPLE, _THINGS, _SONG_LINES, _SONG_WORDS = 24, 12, 12, 6
_SENTENCES_PER_DAY = 5
# the sections of the sentences of a day, each with its share
_KINDS = (("recollections", 0.45), ("possessions", 0.25), ("gifts", 0.08), ("song", 0.08), ("events", 0.14))
_PLACEHOLDER = re.compile(r"{(\w+)(?::(\w+))?}")


@dataclass(frozen=True)
class _Person:
    name: str
    trade: str
    place: str
    animal: str


def chronicle(split: str, index: int, seed: int = 0, length: int = 3000) -> str:
    """The chronicle with this number, of at least `length` words: paragraphs that are separated by a line break.

    A chronicle of fewer words is a beginning of one of more words.
    """
    random = Random(zlib.crc32(f"chronicles/{split}/{index}/{seed}".encode())).random
    people = _people(random)
    things = _distinct(random, lambda: f"{_word(random, 'materials')} {_word(random, 'things')}", _THINGS)
    owners = {thing: pick(random, people) for thing in things}
    syllables = [[_word(random, "song syllables") for _ in range(2 * _SONG_WORDS)] for _ in range(_SONG_LINES)]
    song = [" ".join(map("".join, zip(line[::2], line[1::2], strict=True))) for line in syllables]
    paragraphs = [
        f"The chronicle of {_place(random)}.",
        " ".join(_sentence(random, "introductions", person, person) for person in people),
        " ".join(_sentence(random, "owners", owner, owner, thing) for thing, owner in owners.items()),
    ]
    count, day, sung = sum(len(paragraph.split()) for paragraph in paragraphs), 0, 0
    while count < length:
        day += 1
        sentences = [f"Day {day}."]
        for _ in range(_SENTENCES_PER_DAY):
            kind, (a, b) = _kind(random), _distinct(random, lambda: pick(random, people), 2)
            if kind == "song":
                sentences.append(f"{pick(random, _SECTIONS['song beginnings'])}: {song[sung % _SONG_LINES]}.")
                sung += 1
                continue
            thing = pick(random, things)
            if kind in ("possessions", "gifts") and owners[thing] != a:
                a, b = owners[thing], a
            sentences.append(_sentence(random, kind, a, b, thing))
            if kind == "gifts":
                owners[thing] = b
        paragraphs.append(" ".join(sentences))
        count += len(paragraphs[-1].split())
    return "\n".join(paragraphs)


def _word(random: Draw, section: str) -> str:
    return pick(random, _WORDS[section])


def _distinct(random: Draw, draw: Callable[[], Entry], count: int) -> list[Entry]:
    """The first `count` different values that are drawn."""
    values: list[Entry] = []
    while len(values) < count:
        if (value := draw()) not in values:
            values.append(value)
    return values


def _place(random: Draw) -> str:
    return _word(random, "first syllables of places") + _word(random, "last syllables of places")


def _people(random: Draw) -> list[_Person]:
    """People who differ in each of their facts."""
    syllables = ("first syllables", "middle syllables", "last syllables")
    names = _distinct(random, lambda: "".join(_word(random, section) for section in syllables), _PEOPLE)
    trades = _distinct(random, lambda: _word(random, "trades"), _PEOPLE)
    places = _distinct(random, lambda: _place(random), _PEOPLE)
    animals = _distinct(random, lambda: f"{_word(random, 'colours')} {_word(random, 'animals')}", _PEOPLE)
    return [_Person(*facts) for facts in zip(names, trades, places, animals, strict=True)]


def _kind(random: Draw) -> str:
    draw = random()
    for kind, share in _KINDS:
        draw -= share
        if draw < 0:
            return kind
    return _KINDS[-1][0]


def _sentence(random: Draw, section: str, a: _Person, b: _Person, thing: str = "") -> str:
    """A sentence of this section about two people, and a thing if it mentions one."""

    def filled(match: re.Match) -> str:
        name, fact = match.groups()
        return thing if name == "thing" else getattr({"a": a, "b": b}[name], fact or "name")

    return _PLACEHOLDER.sub(filled, pick(random, _SECTIONS[section]))
