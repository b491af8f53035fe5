"""The words that fill the slots: a kind (country, person, ...) is a list of entries, an entry a tuple of forms.

The first two forms of an entry are how it reads in an article and how it reads in a headline. The words are in
text/words.txt, and the parts of names in text/names.txt.
"""

from pathlib import Path
from typing import NamedTuple

from attnorm.data.synthetic.text_files import sections, words

TEXT = Path(__file__).with_name("text")
COMPANY_ENDINGS = ("group", "corp.", "holdings", "international", "industries", "inc.")
CLUB_ENDINGS = ("united", "rovers", "athletic")
NAMES = sections(TEXT / "names.txt")


class Kind(NamedTuple):
    """One slot kind: its entries, and the names of the forms that follow "article" and "headline" in each entry."""

    entries: list[tuple[str, ...]]
    forms: tuple[str, ...] = ()


def options(text: str) -> list[tuple[str, ...]]:
    """Read "article form > headline form | ..."; an option without ">" reads the same on both sides."""
    entries: list[tuple[str, ...]] = []
    for option in text.split("|"):
        article, _, headline = (part.strip() for part in option.partition(">"))
        entries.append((" ".join(article.split()), " ".join((headline or article).split())))
    return entries


def _named(section: str, endings: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [(f"{name} {ending}", name) for name in words(NAMES[section]) for ending in endings]


def _countries() -> list[tuple[str, ...]]:
    entries = (line.split() for line in NAMES["countries"])
    return [(name, name, adjective, capital, town) for name, adjective, capital, town in entries]


def _people() -> list[tuple[str, ...]]:
    last_names = words(NAMES["last names"])
    return [(f"{first} {last}", last) for first in words(NAMES["first names"]) for last in last_names]


KINDS: dict[str, Kind] = {
    "country": Kind(_countries(), ("adj", "capital", "town")),
    "person": Kind(_people()),
    "company": Kind(_named("companies", COMPANY_ENDINGS)),
    "club": Kind(_named("clubs", CLUB_ENDINGS)),
    **{name: Kind(options(" ".join(lines))) for name, lines in sections(TEXT / "words.txt").items()},
}
