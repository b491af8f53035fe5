"""Rare names: persons and companies whose names are composed of syllables, so that most of them occur only once.

A model cannot know such a name from training. It has to copy it from the article piece by piece.
"""

from collections.abc import Callable

from attnorm.data.synthetic.newswire.lexicon import KINDS

_FIRST = """
bal bren cor dal dor fal gar gel hal hol jar kal kel kor lan lor mal mar mer nal nor pal per ral ren sal sel tal tor val
ver zan
"""
_MIDDLE = "a an ar di en er i il in la le li ma me mi na ne ni o ol or ra re ri si ta ti u va vi"
_LAST = """
berg ca cek dan das dero dini dov fan gast go ham kas ki kov lin lis los man mond nis no rak ros sen ska son stad ten
tin ton tti vic win zi
"""
_COMPANY = "base cell com cor dyne lab line link mark net plan soft star tech tel tron ware way"


def _pick(random: Callable[[], float], syllables: list[str]) -> str:
    return syllables[int(random() * len(syllables))]


_SYLLABLES = {name: text.split() for name, text in (("first", _FIRST), ("middle", _MIDDLE), ("last", _LAST))}
_ENDINGS = {"person": _SYLLABLES["last"], "company": _COMPANY.split()}
_GIVEN = sorted({entry[0].split()[0] for entry in KINDS["person"].entries})
_FIRMS = sorted({entry[0].split()[-1] for entry in KINDS["company"].entries})

KINDS_WITH_RARE_NAMES = tuple(_ENDINGS)


def rare_name(random: Callable[[], float], kind: str) -> tuple[str, str]:
    """The article form and the headline form of a rare name of a person ("person") or a company ("company")."""
    parts = (_SYLLABLES["first"], _SYLLABLES["middle"], _ENDINGS[kind])
    name = "".join(_pick(random, syllables) for syllables in parts)
    article = f"{_pick(random, _GIVEN)} {name}" if kind == "person" else f"{name} {_pick(random, _FIRMS)}"
    return article, name
