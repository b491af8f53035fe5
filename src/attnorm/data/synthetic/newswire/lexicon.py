"""The words of the stories: what fills the slots, rare names, and the wordings between which the hard corpus chooses.

A kind of slot (country, person, ...) is a list of entries, an entry a tuple of forms. The first two forms are how the
entry reads in an article and how it reads in a headline. The words are in text/words.txt, the parts of names in
text/names.txt, and words with several wordings in text/wording.txt.
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from attnorm.data.synthetic import Draw, pick, sections, words

TEXT = Path(__file__).with_name("text")
COMPANY_ENDINGS = ("group", "corp.", "holdings", "international", "industries", "inc.")
CLUB_ENDINGS = ("united", "rovers", "athletic")
NAMES = sections(TEXT / "names.txt")


class Kind(NamedTuple):
    """One slot kind: its entries, and the names of the forms that follow "article" and "headline" in each entry."""

    entries: list[tuple[str, ...]]
    forms: tuple[str, ...] = ()


def slot_entries(text: str) -> list[tuple[str, ...]]:
    """Read "article form > headline form | ..."; an option without ">" reads the same on both sides."""
    entries: list[tuple[str, ...]] = []
    for option in text.split("|"):
        article, _, headline = (part.strip() for part in option.partition(">"))
        entries.append((" ".join(article.split()), " ".join((headline or article).split())))
    return entries


def _pairs(first: list[str], second: Sequence[str], headline: int) -> list[tuple[str, ...]]:
    """Names of two parts each. headline: the number of the part that stands in headlines."""
    return [(" ".join(parts), parts[headline]) for parts in itertools.product(first, second)]


_COUNTRIES = [line.split() for line in NAMES["countries"]]  # name, adjective, capital, another town
KINDS: dict[str, Kind] = {
    "country": Kind([(name, name, *others) for name, *others in _COUNTRIES], ("adj", "capital", "town")),
    "person": Kind(_pairs(words(NAMES["first names"]), words(NAMES["last names"]), headline=1)),
    "company": Kind(_pairs(words(NAMES["companies"]), COMPANY_ENDINGS, headline=0)),
    "club": Kind(_pairs(words(NAMES["clubs"]), CLUB_ENDINGS, headline=0)),
    **{name: Kind(slot_entries(" ".join(lines))) for name, lines in sections(TEXT / "words.txt").items()},
}

_FIRST, _MIDDLE = words(NAMES["first syllables"]), words(NAMES["middle syllables"])
_LAST = {
    "person": words(NAMES["last syllables of persons"]),
    "company": words(NAMES["last syllables of companies"]),
}
_GIVEN = sorted({entry[0].split()[0] for entry in KINDS["person"].entries})
_FIRMS = sorted({entry[0].split()[-1] for entry in KINDS["company"].entries})

KINDS_WITH_RARE_NAMES = tuple(_LAST)


def rare_name(random: Draw, kind: str) -> tuple[str, str]:
    """The article form and the headline form of a rare name of a person ("person") or a company ("company").

    It is composed of syllables, so most of these names occur only once. A model cannot know such a name from training.
    It has to copy it from the article piece by piece.
    """
    name = "".join(pick(random, syllables) for syllables in (_FIRST, _MIDDLE, _LAST[kind]))
    article = f"{pick(random, _GIVEN)} {name}" if kind == "person" else f"{name} {pick(random, _FIRMS)}"
    return article, name


def _wordings(lines: list[str]) -> dict[str, tuple[str, ...]]:
    entries = (line.partition(":") for line in lines)
    return {word: (word, *(other.strip() for other in others.split("|"))) for word, _, others in entries}


_CHOICES = sections(TEXT / "wording.txt")
ARTICLE_CHOICES, HEADLINE_CHOICES = _wordings(_CHOICES["articles"]), _wordings(_CHOICES["headlines"])


def reword(random: Draw, text: str, choices: Mapping[str, tuple[str, ...]]) -> str:
    """Replaces each word of the text that has choices by one of them, drawn uniformly and independently of all else.

    In an article, this means more words to learn for the same event. In a headline, no model can predict which choice
    was drawn, as with real headlines.
    """
    return " ".join(pick(random, choices.get(word, (word,))) for word in text.split())
