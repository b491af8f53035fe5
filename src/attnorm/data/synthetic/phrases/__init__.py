"""The built-in parallel corpus: sentences of an invented language, Kelvan, and their English translations.

    from attnorm.data.synthetic.phrases import sentence_pair
    kelvan, english = sentence_pair("train", 0)

Kelvan differs from English in what makes a translation depend on attention:

- Its order is subject, place, object, verb, time, and adjectives and numbers follow their noun. English has the time
  first and the verb second. What somebody says stands before the speaker. So alignments cross, some of them far away.
- One Kelvan word can stand for several English ones: nouns carry the article and the number as endings, verbs carry
  tense and negation, and compounds are one word. The fertility of a word, the number of its translations, is 1 to 3.
- Some verbs have two translations, which depend on the object.

The text is a pure function of (split, index, seed). No English sentence occurs in two splits.
"""

import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from attnorm.data.synthetic import SPLITS, Draw, pick, sections, split_of, words

__all__ = ["KELVAN", "NAMES", "SPLITS", "sentence_pair"]

# the words: English ones, and the invented ones that stand for them

_SECTIONS = sections(Path(__file__).parent / "text" / "words.txt")


class _Verb(NamedTuple):
    """The base form and the past of an English verb; both words of a phrasal verb count."""

    base: str
    past: str


def _words(section: str) -> tuple[str, ...]:
    return tuple(words(_SECTIONS[section]))


def _verbs(entries: list[str]) -> list[_Verb]:
    return [_Verb(*entry.strip().split("/")) for entry in entries]


def _choice(line: str) -> tuple[frozenset[str], _Verb, _Verb]:
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


class _Group(NamedTuple):
    """A noun with what belongs to it. number: None for a definite singular, "one" for an indefinite one, or a number.
    A name has neither number nor adjectives."""

    noun: str
    number: str | None = None
    adjectives: tuple[str, ...] = ()


class _Clause(NamedTuple):
    """Who did what, where and when. kelvan: the entry of the lexicon for the verb. location: (preposition, group)."""

    subject: _Group
    verb: _Verb
    kelvan: str
    future: bool
    negated: bool
    thing: _Group
    location: tuple[str, _Group] | None
    time: str | None


def sentence_pair(split: str, index: int, seed: int = 0) -> tuple[str, str]:
    """The sentence with this number in Kelvan and in English, lower case, with spaces between words and marks."""
    random = Random(zlib.crc32(f"phrases/{split}/{index}/{seed}".encode())).random
    while True:
        kelvan, english = _sentence(random)
        if split_of(english) == split:
            return kelvan, english


def _sentence(random: Draw) -> tuple[str, str]:
    clause = _clause(random)
    kelvan, english = _in_kelvan(clause), _in_english(clause)
    if random() < 0.25:  # somebody says so
        speaker, verb = _person(random), pick(random, SPEECH)
        kelvan = [*kelvan, "ke", *_group_in_kelvan(speaker, ""), KELVAN[verb.base] + "te"]
        english = [*_group_in_english(speaker), verb.past, "that", *english]
    return _text(kelvan), _text(english)


def _text(words: Sequence[str]) -> str:
    return " ".join([*words, "."]).replace("_", " ")


# ------------------------------------------------------------------------------------------------------ what is said


def _clause(random: Draw) -> _Clause:
    subject, thing = _person(random), _group(random, THINGS)
    if random() < 0.3:
        choice = int(random() * len(CHOICES))
        objects, of_these, otherwise = CHOICES[choice]
        if random() < 0.6:
            thing = thing._replace(noun=pick(random, sorted(objects)))
        verb, kelvan = (of_these if thing.noun in objects else otherwise), f"choice_{choice}"
    else:
        verb = pick(random, VERBS)
        kelvan = verb.base
    future = random() < 0.3
    times = [time for time in TIMES if time not in (ONLY_PAST if future else ONLY_FUTURE)]
    return _Clause(
        subject,
        verb,
        kelvan,
        future=future,
        negated=random() < 0.25,
        thing=thing,
        location=(pick(random, PLACE_WORDS), _group(random, PLACES)) if random() < 0.5 else None,
        time=pick(random, times) if random() < 0.5 else None,
    )


def _person(random: Draw) -> _Group:
    return _Group(pick(random, NAMES)) if random() < 0.25 else _group(random, PEOPLE)


def _group(random: Draw, nouns: Sequence[str]) -> _Group:
    kind, count = random(), random()
    number = None if kind < 0.5 else "one" if kind < 0.75 else pick(random, NUMBERS)
    adjectives = tuple(pick(random, ADJECTIVES) for _ in range((count > 0.45) + (count > 0.9)))
    return _Group(pick(random, nouns), number, adjectives)


# -------------------------------------------------------------------------------------------------------- in Kelvan


def _in_kelvan(clause: _Clause) -> list[str]:
    """Subject, place, object, verb, time. The object has the case -um, and a preposition follows its noun."""
    location = (
        [] if clause.location is None else [*_group_in_kelvan(clause.location[1], ""), KELVAN[clause.location[0]]]
    )
    verb = ("ne" if clause.negated else "") + KELVAN[clause.kelvan] + ("ra" if clause.future else "te")
    time = [] if clause.time is None else [KELVAN[clause.time]]
    return [*_group_in_kelvan(clause.subject, ""), *location, *_group_in_kelvan(clause.thing, "um"), verb, *time]


def _group_in_kelvan(group: _Group, case: str) -> list[str]:
    """The noun with its endings: -a for a definite one, -in for a plural, and the case; then number and adjectives."""
    if group.noun in NAMES:
        return [group.noun]
    number = [] if group.number in (None, "one") else [KELVAN[str(group.number)]]
    ending = "a" if group.number is None else "in" if number else ""
    return [KELVAN[group.noun] + ending + case, *number, *(KELVAN[adjective] for adjective in group.adjectives)]


# -------------------------------------------------------------------------------------------------------- in English


def _in_english(clause: _Clause) -> list[str]:
    """Time, subject, verb, object, place."""
    time = [] if clause.time is None else [clause.time]
    location = [] if clause.location is None else [clause.location[0], *_group_in_english(clause.location[1])]
    subject, thing = _group_in_english(clause.subject), _group_in_english(clause.thing)
    verb = [clause.verb.past]
    if clause.future or clause.negated:
        verb = ["will" if clause.future else "did", *["not"] * clause.negated, clause.verb.base]
    return [*time, *subject, *verb, *thing, *location]


def _group_in_english(group: _Group) -> list[str]:
    if group.noun in NAMES:
        return [group.noun]
    following = [*group.adjectives, group.noun]
    if group.number is None:
        return ["the", *following]
    if group.number == "one":
        return ["an" if following[0][0] in "aeiou" else "a", *following]
    return [group.number, *group.adjectives, f"{group.noun}s"]
