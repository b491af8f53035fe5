"""The words of the parallel corpus: English words, and the invented words that stand for them."""

from typing import NamedTuple


def words(text: str) -> tuple[str, ...]:
    """The words of a text; "_" stands for a space inside a word."""
    return tuple(text.split())


PEOPLE = words(
    """farmer teacher doctor singer painter baker hunter sailor soldier driver girl boy king queen neighbour friend cook
    judge guard visitor school_teacher taxi_driver fire_fighter shop_keeper"""
)
THINGS = words(
    """apple book letter lamp radio door window basket hat coin flower picture ticket drum bottle ring chair blanket
    apple_tree fire_engine fishing_boat snow_ball garden_gate coffee_cup"""
)
PLACES = words(
    """house garden market river bridge school forest harbour station castle village island mountain kitchen bus_stop
    town_hall railway_station"""
)
ADJECTIVES = words(
    """old young small big red green blue white black new broken heavy quiet happy tired clever strange wooden golden
    famous"""
)
NUMBERS = words("two three four five six seven")
TIMES = words(
    """yesterday today tomorrow on_monday on_tuesday on_friday in_spring in_winter last_week every_morning at_noon
    after_dinner"""
)
ONLY_PAST, ONLY_FUTURE = {"yesterday", "last_week"}, {"tomorrow"}
NAMES = words("mira tobin selva orin dalia perrin kesta joram lunet varo")
PLACE_WORDS = words("in near behind above beside")


class Verb(NamedTuple):
    """The base form and the past of an English verb; both words of a phrasal verb count."""

    base: str
    past: str


def verbs(text: str) -> list[Verb]:
    """Verbs written as base/past."""
    return [Verb(*entry.split("/")) for entry in text.split()]


VERBS = verbs(
    """see/saw find/found sell/sold buy/bought lose/lost carry/carried paint/painted hide/hid break/broke steal/stole
    bring/brought keep/kept clean/cleaned repair/repaired throw/threw follow/followed watch/watched touch/touched
    look_for/looked_for give_away/gave_away"""
)
SPEECH = verbs("say/said believe/believed know/knew hope/hoped write/wrote")
# Verbs whose English translation depends on the object: (with one of these objects, otherwise).
CHOICES: list[tuple[frozenset[str], Verb, Verb]] = [
    (frozenset({"lamp", "radio"}), Verb("turn_on", "turned_on"), Verb("open", "opened")),
    (frozenset({"book", "letter", "ticket"}), Verb("read", "read"), Verb("count", "counted")),
    (frozenset({"hat", "ring"}), Verb("wear", "wore"), Verb("use", "used")),
]

_ONSETS = words("b d f g k l m n p r s t v z br dr kl pr st tr")
_VOWELS = words("a e i o u")
_CODAS = words("l m n r s k")


def _invented(number: int) -> str:
    """A word of two syllables, one of 12,000, and another for every number."""
    words = len(_ONSETS) * len(_VOWELS) * len(_ONSETS) * len(_VOWELS) * len(_CODAS)
    number = (number * 7919 + 4242) % words  # 7919 is a prime that does not divide the number of words
    parts = []
    for choices in (_ONSETS, _VOWELS, _ONSETS, _VOWELS, _CODAS):
        number, place = divmod(number, len(choices))
        parts.append(choices[place])
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
