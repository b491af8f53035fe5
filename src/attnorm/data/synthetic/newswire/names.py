"""Rare names: persons and companies whose names are composed of syllables, so that most of them occur only once.

A model cannot know such a name from training. It has to copy it from the article piece by piece.
"""

from collections.abc import Callable

from attnorm.data.synthetic.newswire.lexicon import KINDS, NAMES
from attnorm.data.synthetic.text_files import words

_FIRST, _MIDDLE = words(NAMES["first syllables"]), words(NAMES["middle syllables"])
_LAST = {
    "person": words(NAMES["last syllables of persons"]),
    "company": words(NAMES["last syllables of companies"]),
}
_GIVEN = sorted({entry[0].split()[0] for entry in KINDS["person"].entries})
_FIRMS = sorted({entry[0].split()[-1] for entry in KINDS["company"].entries})

KINDS_WITH_RARE_NAMES = tuple(_LAST)


def _pick(random: Callable[[], float], syllables: list[str]) -> str:
    return syllables[int(random() * len(syllables))]


def rare_name(random: Callable[[], float], kind: str) -> tuple[str, str]:
    """The article form and the headline form of a rare name of a person ("person") or a company ("company")."""
    name = "".join(_pick(random, syllables) for syllables in (_FIRST, _MIDDLE, _LAST[kind]))
    article = f"{_pick(random, _GIVEN)} {name}" if kind == "person" else f"{name} {_pick(random, _FIRMS)}"
    return article, name
