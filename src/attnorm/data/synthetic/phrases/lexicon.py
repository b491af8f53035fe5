"""The words of the parallel corpus: English words (text/words.txt), and the invented words that stand for them."""

import math
from pathlib import Path
from typing import NamedTuple

from attnorm.data.synthetic.text_files import sections, words

_SECTIONS = sections(Path(__file__).parent / "text" / "words.txt")


class Verb(NamedTuple):
    """The base form and the past of an English verb; both words of a phrasal verb count."""

    base: str
    past: str


def _words(section: str) -> tuple[str, ...]:
    return tuple(words(_SECTIONS[section]))


def _verbs(entries: list[str]) -> list[Verb]:
    return [Verb(*entry.strip().split("/")) for entry in entries]


def _choice(line: str) -> tuple[frozenset[str], Verb, Verb]:
    """A verb with two translations: (its objects, the translation with one of them, the translation otherwise)."""
    objects, _, verbs = line.partition(":")
    of_these, otherwise = _verbs(verbs.split("|"))
    return frozenset(objects.split()), of_these, otherwise


PEOPLE, THINGS, PLACES = _words("people"), _words("things"), _words("places")
ADJECTIVES, NUMBERS = _words("adjectives"), _words("numbers")
TIMES, ONLY_PAST, ONLY_FUTURE = _words("times"), _words("times of the past only"), _words("times of the future only")
NAMES, PLACE_WORDS = _words("names"), _words("place words")
VERBS, SPEECH = _verbs(words(_SECTIONS["verbs"])), _verbs(words(_SECTIONS["verbs of speech"]))
CHOICES = [_choice(line) for line in _SECTIONS["choices"]]

_SYLLABLES = tuple(map(_words, ("onsets", "vowels", "onsets", "vowels", "codas")))


def _invented(number: int) -> str:
    """A word of two syllables, one of 60,000, and another for every number."""
    count = math.prod(map(len, _SYLLABLES))
    number = (number * 7919 + 4242) % count  # 7919 is a prime that does not divide the number of words
    parts = []
    for choices in _SYLLABLES:
        number, index = divmod(number, len(choices))
        parts.append(choices[index])
    return "".join(parts)


_ENGLISH = [
    *PEOPLE,
    *THINGS,
    *PLACES,
    *ADJECTIVES,
    *NUMBERS,
    *TIMES,
    *PLACE_WORDS,
    *(verb.base for verb in (*VERBS, *SPEECH)),
    *(f"choice_{number}" for number in range(len(CHOICES))),
]
KELVAN = {english: _invented(number) for number, english in enumerate(_ENGLISH)}  # names are the same in both languages
assert len(set(KELVAN.values())) == len(_ENGLISH) == len(set(_ENGLISH))
