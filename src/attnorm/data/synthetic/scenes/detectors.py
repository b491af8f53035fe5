"""Three simulated detectors: what each of them gives for a scene, 36 boxes with features and places.

detector    things that it misses    shapes it takes for one another           colours it takes for one another
outlines    small                    none                                      red/green, blue/purple, ...
colours     at the border            circle/ring, square/diamond, star/cross   none
details     large                    circle/square, ring/star, diamond/cross   red/brown, green/blue, ...

Only things of medium size lie at the border, so two detectors see each thing at least; and two classes of shapes, or of
colours, have one in common at most. So any two detectors together can name a thing that both see, and none can alone.

A box's features are its code times the detector's fixed random projection, plus noise. The code is one-hot for each
attribute, times a confidence; clutter has a random code and a low confidence, and fills up the 36 boxes. A missed thing
has such a box of clutter, as detectors propose regions that they then cannot name. Some things are found twice, and
each detector finds things that are not there.
"""

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from attnorm.data.synthetic import Draw, pick
from attnorm.data.synthetic.scenes.generate import COLOURS, SHAPES, SIDES, Thing, scene, stream

BOXES = 36
TWICE = 0.25  # share of the things found that are found twice
FALSE = (0, 1, 2)  # things found that are not there
SURE, UNSURE = (0.7, 1.0), (0.05, 0.35)  # confidence of what is found, and of clutter
SHIFT, STRETCH = 0.08, 0.1  # of a box against the thing's: its middle, in shares of its side, and its sides
NOISE = 0.5  # standard deviation, where the features of a certain thing have about 1

Box = tuple[float, float, float, float]  # x1, y1, x2, y2
Kinds = tuple[tuple[str, ...], ...]  # the values of an attribute, those that are taken for one another together


@dataclass(frozen=True)
class Detector:
    name: str
    width: int
    shapes: Kinds
    colours: Kinds
    misses: Callable[[Thing], bool]

    @property
    def kinds(self) -> tuple[Kinds, ...]:
        """What it tells apart: shapes, colours, sizes."""
        return self.shapes, self.colours, _each(SIDES)

    @lru_cache  # noqa: B019 - there are three detectors
    def projection(self, seed: int) -> np.ndarray:
        """float (1 + shapes + colours + sizes, width): a code's first entry says how sure the detector is."""
        entries = 1 + sum(map(len, self.kinds))
        return _normals(f"{seed} {self.name}").standard_normal((entries, self.width)) / 2

    def code(self, shape: str, colour: str, size: str) -> np.ndarray:
        """(1 + shapes + colours + sizes,): 1, and one 1 for each attribute."""
        look = zip((shape, colour, size), self.kinds, strict=True)
        return np.array([True, *(value in kind for value, kinds in look for kind in kinds)], float)


def _each(values: Iterable[str]) -> Kinds:
    return tuple((value,) for value in values)


DETECTORS = (
    Detector(
        "outlines",
        48,
        _each(SHAPES),
        (("red", "green"), ("blue", "purple"), ("pink", "yellow"), ("orange", "brown")),
        lambda thing: thing.size == "small",
    ),
    Detector(
        "colours",
        64,
        (("circle", "ring"), ("square", "diamond"), ("star", "cross")),
        _each(COLOURS),
        lambda thing: thing.at_border,
    ),
    Detector(
        "details",
        40,
        (("circle", "square"), ("ring", "star"), ("diamond", "cross")),
        (("red", "brown"), ("green", "blue"), ("purple", "pink"), ("yellow", "orange")),
        lambda thing: thing.size == "large",
    ),
)


class Detections(NamedTuple):
    """features: float (36, width); places: float (36, 4), x1 y1 x2 y2 in [0, 1]; sure: bool (36,), not clutter."""

    features: np.ndarray
    places: np.ndarray
    sure: np.ndarray


def detect(split: str, index: int, seed: int = 0) -> tuple[Detections, ...]:
    """What each detector gives for scene number `index` of a split."""
    things = scene(split, index, seed)
    random = stream("boxes", split, index, seed)
    taken = [thing.box for thing in things]  # no two detectors find the same thing that is not there
    views = []
    for detector in DETECTORS:
        boxes = []  # (confidence range, look, box)
        for thing in things:
            if detector.misses(thing):
                boxes.append((UNSURE, _look(random), _jittered(random, thing)))
                continue
            for _ in range(1 + (random() < TWICE)):
                boxes.append((SURE, thing[:3], _jittered(random, thing)))
        for _ in range(pick(random, FALSE)):
            look, box = _look(random), _free_box(random, taken)
            taken.append(box)
            boxes.append((SURE, look, box))
        while len(boxes) < BOXES:
            x, y, width, height = random(), random(), 0.06 + 0.24 * random(), 0.06 + 0.24 * random()
            box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
            boxes.append((UNSURE, _look(random), box))
        confidence = [low + random() * (high - low) for (low, high), _, _ in boxes]
        codes = np.stack([sure * detector.code(*look) for sure, (_, look, _) in zip(confidence, boxes, strict=True)])
        normals = _normals(f"{seed} {split} {index} {detector.name}")
        order = normals.permutation(BOXES)
        noise = NOISE * normals.standard_normal((BOXES, detector.width))
        features = codes[order] @ detector.projection(seed) + noise
        places = np.array([box for _, _, box in boxes])[order].clip(0.0, 1.0)
        views.append(Detections(features, places, np.array([kind is SURE for kind, _, _ in boxes])[order]))
    return tuple(views)


def _look(random: Draw) -> tuple[str, str, str]:
    return pick(random, SHAPES), pick(random, COLOURS), pick(random, list(SIDES))


def _jittered(random: Draw, thing: Thing) -> Box:
    x, y = (middle + thing.side * SHIFT * (2 * random() - 1) for middle in (thing.x, thing.y))
    width, height = (thing.side * (1 + STRETCH * (2 * random() - 1)) / 2 for _ in range(2))
    return x - width, y - height, x + width, y + height


def _free_box(random: Draw, taken: list[Box]) -> Box:
    """A box that overlaps none of those taken."""
    while True:
        half = (0.08 + 0.12 * random()) / 2
        x, y = (half + random() * (1 - 2 * half) for _ in range(2))
        box = (x - half, y - half, x + half, y + half)
        if all(min(box[2], b[2]) <= max(box[0], b[0]) or min(box[3], b[3]) <= max(box[1], b[1]) for b in taken):
            return box


def _normals(name: str) -> np.random.RandomState:
    """NumPy documents the stream of RandomState as frozen."""
    return np.random.RandomState(zlib.crc32(f"scenes {name}".encode()))
