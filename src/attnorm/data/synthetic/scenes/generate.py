"""Drawing scenes: things of a shape, a colour and a size, at places where they do not overlap."""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from attnorm.data.synthetic import Draw, Entry, pick

SHAPES = ("circle", "ring", "square", "diamond", "star", "cross")
COLOURS = ("red", "green", "blue", "purple", "pink", "yellow", "orange", "brown")
SIDES = {"small": 0.09, "medium": 0.15, "large": 0.23}  # of a thing's box, in shares of the image's
VALUES = {"shape": SHAPES, "colour": COLOURS, "size": tuple(SIDES)}
THINGS = (4, 5, 6, 7, 8)  # of a scene
PALETTE = 4  # shapes, and colours, that a scene draws from, so that things have something in common
AT_BORDER = 0.5  # share of the medium things that touch the image's border; no other ones do
MARGIN = 0.05  # to the border, of all others
APART = 1.25  # boxes enlarged by this do not overlap
_TRIES = 60


class Thing(NamedTuple):
    """x, y: the middle of its box; side: of its box, which is a square. All in shares of the image's side."""

    shape: str
    colour: str
    size: str
    x: float
    y: float
    side: float

    @property
    def box(self) -> tuple[float, float, float, float]:
        """x1, y1, x2, y2."""
        half = self.side / 2
        return self.x - half, self.y - half, self.x + half, self.y + half

    @property
    def at_border(self) -> bool:
        """Whether its box is nearer to the image's border than half the margin of those in the middle."""
        return min(self.x, self.y, 1 - self.x, 1 - self.y) - self.side / 2 < MARGIN / 2


Scene = tuple[Thing, ...]


def stream(what: str, split: str, index: int, seed: int) -> Draw:
    """Random numbers for one purpose."""
    return Random(f"scenes {what} {seed} {split} {index}").random


def draw_distinct(random: Draw, entries: Sequence[Entry], count: int) -> list[Entry]:
    """`count` different entries, in random order."""
    left = list(entries)
    return [left.pop(int(random() * len(left))) for _ in range(count)]


def image_name(split: str, index: int) -> str:
    """The name of the image of scene number `index` of a split."""
    return f"{split}-{index}"


def scene(split: str, index: int, seed: int = 0) -> Scene:
    """Scene number `index` of a split."""
    random = stream("things", split, index, seed)
    shapes, colours = draw_distinct(random, SHAPES, PALETTE), draw_distinct(random, COLOURS, PALETTE)
    looks = [
        (pick(random, shapes), pick(random, colours), pick(random, list(SIDES))) for _ in range(pick(random, THINGS))
    ]
    looks.sort(key=lambda look: -SIDES[look[2]])  # the largest first: they are the hardest to place
    while True:
        things: list[Thing] = []
        for look in looks:
            if (thing := _placed(random, look, things)) is None:
                break
            things.append(thing)
        else:
            return tuple(things)


def _placed(random: Draw, look: tuple[str, str, str], others: list[Thing]) -> Thing | None:
    for _ in range(_TRIES):
        side = SIDES[look[2]] * (0.92 + 0.16 * random())
        low, high = MARGIN + side / 2, 1 - MARGIN - side / 2
        x, y = (low + random() * (high - low) for _ in range(2))
        if look[2] == "medium" and random() < AT_BORDER:
            edge = side / 2 + random() * MARGIN / 4
            x, y = pick(random, ((edge, y), (1 - edge, y), (x, edge), (x, 1 - edge)))
        if all(max(abs(x - other.x), abs(y - other.y)) >= APART * (side + other.side) / 2 for other in others):
            return Thing(*look, x, y, side)
    return None
