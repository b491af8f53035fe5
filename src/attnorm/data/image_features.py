"""Views of images: what one or several object detectors give for each, boxes by features, read as they are needed.

A view has so many boxes of an image, padded to the most that there may be: features (M, width), which boxes are
present (M,), and their geometry (M, 4), x1 y1 x2 y2 in shares of the image's width and height, where it is known.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attnorm.data.sources.base import VISUAL, Source
from attnorm.errors import DataError

NAMED = 10  # images that a message names

View = tuple[Tensor, Tensor, Tensor | None]
Boxes = tuple[np.ndarray, np.ndarray | None]  # features (n, width) and geometry (n, 4) of the boxes that are there


class Views(ABC):
    """The views of a set of images. names, widths, boxes, geometry: of each view, its name, the width of its features,
    the most boxes that it has of an image, and whether it says where they are; the first view is the primary one."""

    names: list[str]
    widths: list[int]
    boxes: list[int]
    geometry: list[bool]

    def first(self, count: int) -> "Views":
        """The first `count` views alone; the others are neither read nor checked."""
        some = copy(self)
        some.names, some.widths = self.names[:count], self.widths[:count]
        some.boxes, some.geometry = self.boxes[:count], self.geometry[:count]
        return some

    @abstractmethod
    def check(self, images: Iterable[str]) -> None:
        """Raise ValueError, naming them and where they were looked for, if some of these images have no features."""

    @abstractmethod
    def read(self, images: Sequence[str]) -> list[View]:
        """For each view: features, float32 (B, M, width), zeros where there is no box; present, bool (B, M); geometry,
        float32 (B, M, 4) in [0, 1], or None. Raises ValueError, naming image and file, for what cannot be used."""


class VisualSource(Source):
    """A source of questions on images."""

    schema = VISUAL

    @abstractmethod
    def views(self, split: str, cache_dir: str | Path) -> Views | None:
        """The views of a split's images, from the cache or made now; None: there are only questions."""


def refuse_missing(where: object, missing: Sequence[str]) -> None:
    """Raise ValueError if there are `missing` images."""
    if missing:
        more = ", ..." if len(missing) > NAMED else ""
        count = f"{len(missing):,} image{'s' * (len(missing) != 1)}"
        raise DataError(f"{where}: no features of {count}: {', '.join(missing[:NAMED])}{more}")


def padded(images: Sequence[Boxes], boxes: int, width: int) -> View:
    """The boxes of several images as one view. Either all of them have a geometry, or none."""
    features = np.zeros((len(images), boxes, width), np.float32)
    present = np.zeros((len(images), boxes), bool)
    geometry = np.zeros((len(images), boxes, 4), np.float32)
    for row, (found, places) in enumerate(images):
        features[row, : len(found)], present[row, : len(found)] = found, True
        if places is not None:
            geometry[row, : len(found)] = places
    known = any(places is not None for _, places in images)
    return torch.from_numpy(features), torch.from_numpy(present), torch.from_numpy(geometry) if known else None


class Arrays(Views):
    """Views in a folder that `write_arrays` made: arrays over all images, of which only the rows asked for are read."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        about = json.loads((self.folder / "views.json").read_text())
        self.names, self.boxes, self.widths = about["names"], about["boxes"], about["widths"]
        self.geometry = [True] * len(self.names)
        self.rows = {image: row for row, image in enumerate(about["images"])}

    def check(self, images: Iterable[str]) -> None:
        refuse_missing(self.folder, [image for image in images if image not in self.rows])

    def read(self, images: Sequence[str]) -> list[View]:
        self.check(images)
        rows = [self.rows[image] for image in images]
        views: list[View] = []
        for arrays in self.arrays:
            features, present, geometry = (torch.from_numpy(array[rows]) for array in arrays)
            views.append((features.float(), present, geometry))
        return views

    @cached_property
    def arrays(self) -> list[list[np.ndarray]]:
        """Features, presence and geometry of all images, for each view, mapped into memory on first use."""
        views = range(len(self.names))
        return [[np.load(self.folder / file, mmap_mode="r") for file in _files(view)] for view in views]

    def __getstate__(self) -> dict:
        """Without the arrays: a process that is sent this maps them itself, instead of being sent them whole."""
        return {name: value for name, value in self.__dict__.items() if name != "arrays"}


def write_arrays(
    folder: Path,
    names: Sequence[str],
    widths: Sequence[int],
    boxes: Sequence[int],
    images: Sequence[str],
    views: Iterable[Sequence[Boxes]],
) -> None:
    """Write what `Arrays` reads. views: for each image in turn, the boxes that each view has of it, with their
    geometry. Features are kept in half precision."""
    about = {"names": list(names), "widths": list(widths), "boxes": list(boxes), "images": list(images)}
    arrays = [
        [
            np.lib.format.open_memmap(folder / file, "w+", dtype, (len(images), most, *shape))
            for file, dtype, shape in zip(_files(view), ("f2", "?", "f4"), ((width,), (), (4,)), strict=True)
        ]
        for view, (most, width) in enumerate(zip(boxes, widths, strict=True))
    ]
    for row, (_, found) in enumerate(zip(images, views, strict=True)):
        for (features, present, geometry), (boxes_found, places) in zip(arrays, found, strict=True):
            here = (row, slice(len(boxes_found)))
            features[here], present[here], geometry[here] = boxes_found, True, places
    (folder / "views.json").write_text(json.dumps(about))


def _files(view: int) -> tuple[str, str, str]:
    return f"view{view}.features.npy", f"view{view}.present.npy", f"view{view}.geometry.npy"
