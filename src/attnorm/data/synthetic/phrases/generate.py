"""Drawing sentences: what is said, and then how both languages say it."""

import zlib
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple, TypeVar

from attnorm.data.synthetic.phrases.lexicon import (
    ADJECTIVES,
    CHOICES,
    KELVAN,
    NAMES,
    NUMBERS,
    ONLY_FUTURE,
    ONLY_PAST,
    PEOPLE,
    PLACE_WORDS,
    PLACES,
    SPEECH,
    THINGS,
    TIMES,
    VERBS,
    Verb,
)

# Of 100 checksum classes of English sentences, those below the bound belong to the split.
_BOUNDS = (("train", 92), ("validation", 96), ("test", 100))
SPLITS: tuple[str, ...] = tuple(name for name, _ in _BOUNDS)

Entry = TypeVar("Entry")
Draw = Callable[[], float]


class _Group(NamedTuple):
    """A noun with what belongs to it. number: None for a definite singular, "one" for an indefinite one, or a number.
    A name has neither number nor adjectives."""

    noun: str
    number: str | None = None
    adjectives: tuple[str, ...] = ()


class _Clause(NamedTuple):
    """Who did what, where and when. kelvan: the entry of the lexicon for the verb. place: (preposition, group)."""

    subject: _Group
    verb: Verb
    kelvan: str
    future: bool
    negated: bool
    thing: _Group
    place: tuple[str, _Group] | None
    time: str | None


def pair(split: str, index: int, seed: int = 0) -> tuple[str, str]:
    """The sentence with this number in Kelvan and in English, lower case, with spaces between words and marks."""
    random = Random(zlib.crc32(f"phrases/{split}/{index}/{seed}".encode())).random
    while True:
        kelvan, english = _sentence(random)
        if _split_of(english) == split:
            return kelvan, english


def _split_of(english: str) -> str:
    place = zlib.crc32(english.encode()) % 100
    return next(name for name, bound in _BOUNDS if place < bound)


def _pick(random: Draw, entries: Sequence[Entry]) -> Entry:
    """One entry, uniformly. Uses only `.random()`, whose stream Python documents as stable between versions."""
    return entries[int(random() * len(entries))]


def _sentence(random: Draw) -> tuple[str, str]:
    clause = _clause(random)
    kelvan, english = _in_kelvan(clause), _in_english(clause)
    if random() < 0.25:  # somebody says so
        speaker, verb = _person(random), _pick(random, SPEECH)
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
            thing = thing._replace(noun=_pick(random, sorted(objects)))
        verb, kelvan = (of_these if thing.noun in objects else otherwise), f"choice_{choice}"
    else:
        verb = _pick(random, VERBS)
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
        place=(_pick(random, PLACE_WORDS), _group(random, PLACES)) if random() < 0.5 else None,
        time=_pick(random, times) if random() < 0.5 else None,
    )


def _person(random: Draw) -> _Group:
    return _Group(_pick(random, NAMES)) if random() < 0.25 else _group(random, PEOPLE)


def _group(random: Draw, nouns: Sequence[str]) -> _Group:
    kind, count = random(), random()
    number = None if kind < 0.5 else "one" if kind < 0.75 else _pick(random, NUMBERS)
    adjectives = tuple(_pick(random, ADJECTIVES) for _ in range((count > 0.45) + (count > 0.9)))
    return _Group(_pick(random, nouns), number, adjectives)


# -------------------------------------------------------------------------------------------------------- in Kelvan


def _in_kelvan(clause: _Clause) -> list[str]:
    """Subject, place, object, verb, time. The object has the case -um, and a preposition follows its noun."""
    place = [] if clause.place is None else [*_group_in_kelvan(clause.place[1], ""), KELVAN[clause.place[0]]]
    verb = ("ne" if clause.negated else "") + KELVAN[clause.kelvan] + ("ra" if clause.future else "te")
    time = [] if clause.time is None else [KELVAN[clause.time]]
    return [*_group_in_kelvan(clause.subject, ""), *place, *_group_in_kelvan(clause.thing, "um"), verb, *time]


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
    place = [] if clause.place is None else [clause.place[0], *_group_in_english(clause.place[1])]
    subject, thing = _group_in_english(clause.subject), _group_in_english(clause.thing)
    return [*time, *subject, *_verb_in_english(clause), *thing, *place]


def _verb_in_english(clause: _Clause) -> list[str]:
    verb, negation = clause.verb, ["not"] * clause.negated
    if clause.future:
        return ["will", *negation, verb.base]
    return ["did", *negation, verb.base] if clause.negated else [verb.past]


def _group_in_english(group: _Group) -> list[str]:
    if group.noun in NAMES:
        return [group.noun]
    following = [*group.adjectives, group.noun]
    if group.number is None:
        return ["the", *following]
    if group.number == "one":
        return ["an" if following[0][0] in "aeiou" else "a", *following]
    return [group.number, *group.adjectives, f"{group.noun}s"]
