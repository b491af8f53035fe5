"""Captions of scenes: several sentences per scene that name the things that stand out, and where they are.

A scene has 4 to 8 things, but its captions are about the two or three most prominent ones: large things before medium
ones before small ones, and among things of one size those nearer to the middle of the image. So what a caption names
depends on the whole scene, and each of its words on one place: that of the thing it describes. The authors of the
captions mostly agree on the order, and differ in their wording and in how much they say:

    a large red ring to the left of a blue star
    there is a blue star to the right of a big red ring
    a red ring at the top and a blue star in the middle
    a big red ring above a small green cross and a blue star in the middle
"""

from collections.abc import Sequence
from typing import NamedTuple

from attnorm.data.synthetic import Draw, pick
from attnorm.data.synthetic.scenes.generate import SIDES, Scene, Thing, scene, stream

PER_SCENE = 5
SIZE_SAID = 0.7  # share of the mentions of a small or large thing that name its size; those of a medium one do not
SIZE_WORDS = {"small": ("small", "little"), "medium": (), "large": ("large", "big")}
DISAGREE = 0.15  # share of the captions whose author exchanges the second and the third thing
FORMS = ("relation", "relation", "there", "relation and place", "relation and place", "places")
MIDDLE = 1 / 6  # a thing is in the middle if it is at most this far from it, in shares of the image's side


class Caption(NamedTuple):
    """things: for each word of the text, the number of the thing in the scene that it describes, or None.

    The words of a place ("at the top") and of a relation ("above") describe the thing before them.
    """

    text: str
    things: tuple[int | None, ...]


Said = list[tuple[str, int | None]]  # words, and the thing that each of them describes


def captions(split: str, index: int, seed: int = 0) -> list[Caption]:
    """The PER_SCENE captions of scene number `index` of a split."""
    things, random = scene(split, index, seed), stream("captions", split, index, seed)
    order = prominence(things)
    written = []
    for _ in range(PER_SCENE):
        first, second, third = order[:3]
        if random() < DISAGREE:
            second, third = third, second
        said = _sentence(random, things, (first, second, third), pick(random, FORMS))
        words, about = zip(*((word, thing) for words, thing in said for word in words.split()), strict=True)
        written.append(Caption(" ".join(words), about))
    return written


def prominence(things: Sequence[Thing]) -> list[int]:
    """The numbers of the things, the most prominent one first."""
    sizes = list(SIDES)  # from small to large

    def rank(number: int) -> tuple[int, float]:
        thing = things[number]
        return -sizes.index(thing.size), (thing.x - 0.5) ** 2 + (thing.y - 0.5) ** 2

    return sorted(range(len(things)), key=rank)


def relation(first: Thing, second: Thing) -> str:
    """The position of the first thing relative to the second, along the axis of their larger distance."""
    right, down = first.x - second.x, first.y - second.y
    if abs(right) >= abs(down):
        return "to the right of" if right > 0 else "to the left of"
    return "below" if down > 0 else "above"


def location(thing: Thing) -> str:
    """Where a thing is in the image: in the middle, at one of the four sides, or in one of the four corners."""
    right, down = thing.x - 0.5, thing.y - 0.5
    side = "" if abs(right) <= MIDDLE else "right" if right > 0 else "left"
    level = "" if abs(down) <= MIDDLE else "bottom" if down > 0 else "top"
    if side and level:
        return f"in the {level} {side} corner"
    if not side and not level:
        return "in the middle"
    return f"at the {level}" if level else f"on the {side}"


def _sentence(random: Draw, things: Scene, chosen: tuple[int, int, int], form: str) -> Said:
    first, second, third = (_mention(random, things, number) for number in chosen)
    one, two, three = (things[number] for number in chosen)
    if form == "places":
        return [*first, (location(one), chosen[0]), ("and", None), *second, (location(two), chosen[1])]
    related: Said = [*first, (relation(one, two), chosen[0]), *second]
    if form == "there":  # told from the other side
        related = [("there is", None), *second, (relation(two, one), chosen[1]), *first]
    if form == "relation and place":
        related += [("and", None), *third, (location(three), chosen[2])]
    return related


def _mention(random: Draw, things: Scene, number: int) -> Said:
    """A thing in words: "a large red ring"."""
    thing, words = things[number], []
    if (said := SIZE_WORDS[thing.size]) and random() < SIZE_SAID:
        words.append(pick(random, said))
    words += [thing.colour, thing.shape]
    article = "an" if words[0][0] in "aeiou" else "a"
    return [(" ".join([article, *words]), number)]
