"""Views of images: the boxes and features that one or more object detectors return for each image, loaded on demand.

A view has a number of boxes per image, padded to a maximum: features (M, width), a mask of the present boxes (M,), and,
if known, their geometry (M, 4), x1 y1 x2 y2 as fractions of the width and height of the image.
"""

import errno
import json
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, ClassVar

import numpy as np

from attnorm.data.sources.base import VISUAL, Source
from attnorm.errors import DataError
from attnorm.wording import counted

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 1 << 20  # bytes that are written at a time
NAMED = 10  # maximum number of images in a message
COCO = re.compile(r"(?:COCO_\w+_)?(\d{12})(?:\.jpg)?")  # the names of the images of COCO, which contain their id

View = tuple["Tensor", "Tensor", "Tensor | None"]
Boxes = tuple[np.ndarray, np.ndarray | None]  # features (n, width) and geometry (n, 4) of the present boxes


def coco_id(name: str) -> str | None:
    """The id of an image of COCO, such as "42" for COCO_val2014_000000000042.jpg. None for any other name."""
    match = COCO.fullmatch(name)
    return str(int(match[1])) if match else None


class ImageFeatures(ABC):
    """The views of a set of images. The first view is the primary one.

    names, widths, boxes, geometry: for each view, its name, the width of its features, its maximum number of boxes per
    image, and whether it has the geometry of boxes.
    """

    names: list[str]
    widths: list[int]
    boxes: list[int]
    geometry: list[bool]

    def first(self, count: int) -> "ImageFeatures":
        """The first `count` views. The others are neither read nor checked."""
        some = copy(self)
        some.names, some.widths = self.names[:count], self.widths[:count]
        some.boxes, some.geometry = self.boxes[:count], self.geometry[:count]
        return some

    @abstractmethod
    def has(self, image: str) -> bool:
        """Whether all views have features of an image."""

    @abstractmethod
    def check(self, images: Iterable[str]) -> None:
        """Raises ValueError that names the images without features and the place where they should be."""

    @abstractmethod
    def read(self, images: Sequence[str]) -> list[View]:
        """Reads the features of images. Returns, for each view:

        features: float32 (B, M, width), zeros for absent boxes.
        present:  bool (B, M).
        geometry: float32 (B, M, 4) in [0, 1], or None.

        Raises ValueError that names image and file if the features cannot be used.
        """


class VisualSource(Source):
    """A source of questions on images."""

    schema = VISUAL

    @abstractmethod
    def views(self, split: str, cache_dir: str | Path) -> ImageFeatures | None:
        """The views of a split's images, from the cache or newly built. None if there are only questions."""


def refuse_missing(missing: Mapping[Path, Sequence[str]], what: str = "features") -> None:
    """Raises DataError with a line for each place that lacks images. what: that which images have there."""
    problems = []
    for place, images in missing.items():
        more = ", ..." if len(images) > NAMED else ""
        named = f"{counted(len(images), 'image')}: {', '.join(images[:NAMED])}{more}"
        problems += [f"{place}: no {what} of {named}"] * bool(images)
    if problems:
        raise DataError("\n".join(problems))


def check_together(checks: Mapping[str, Callable[[], object]]) -> None:
    """Makes all checks. Raises one DataError with a line for each that raises one, beginning with its name."""
    problems = []
    for name, check in checks.items():
        try:
            check()
        except DataError as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise DataError("\n".join(problems))


def padded(images: Sequence[Boxes], boxes: int, width: int) -> View:
    """Stacks the boxes of several images into one view. Either all images have a geometry, or none has."""
    import torch

    features = np.zeros((len(images), boxes, width), np.float32)
    present = np.zeros((len(images), boxes), bool)
    geometry = np.zeros((len(images), boxes, 4), np.float32)
    for row, (vectors, corners) in enumerate(images):
        features[row, : len(vectors)], present[row, : len(vectors)] = vectors, True
        if corners is not None:
            geometry[row, : len(vectors)] = corners
    known = any(corners is not None for _, corners in images)
    return torch.from_numpy(features), torch.from_numpy(present), torch.from_numpy(geometry) if known else None


class MappedRows:
    """Arrays in a folder, each with one row per image. They are memory-mapped, and only the requested rows are read.

    index: a JSON file with the names of the images and whatever else a subclass needs.
    what:  what the arrays hold, for messages.
    files: the names of the files with the arrays.
    """

    index: ClassVar[str]
    what: ClassVar[str]
    files: list[str]

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.about = json.loads((self.folder / self.index).read_text())
        self.rows = {image: row for row, image in enumerate(self.about["images"])}

    def check(self, images: Iterable[str]) -> None:
        """Raises ValueError that names the images that are missing."""
        refuse_missing({self.folder: [image for image in images if image not in self.rows]}, self.what)

    def tensors(self, images: Sequence[str]) -> "list[Tensor]":
        """The rows of some images, of each array."""
        import torch

        self.check(images)
        rows = [self.rows[image] for image in images]
        return [torch.from_numpy(array[rows]) for array in self.arrays]

    @cached_property
    def arrays(self) -> list[np.ndarray]:
        """The arrays, mapped on first use."""
        return [np.load(self.folder / file, mmap_mode="r") for file in self.files]

    def __getstate__(self) -> dict:
        """The state without the arrays. A process that receives it maps them itself, instead of receiving a copy."""
        return {name: value for name, value in self.__dict__.items() if name != "arrays"}


class MappedFeatures(MappedRows, ImageFeatures):
    """Views in a folder written by `write_features`."""

    index, what = "views.json", "features"

    def __init__(self, folder: str | Path):
        super().__init__(folder)
        self.names, self.boxes, self.widths = (self.about[name] for name in ("names", "boxes", "widths"))
        self.geometry = [True] * len(self.names)
        self.files = [file for view in range(len(self.names)) for file in _files(view)]

    def has(self, image: str) -> bool:
        return image in self.rows

    def read(self, images: Sequence[str]) -> list[View]:
        views = zip(*[iter(self.tensors(images))] * 3, strict=True)
        return [(features.float(), present, geometry) for features, present, geometry in views]


def write_features(
    folder: Path,
    names: Sequence[str],
    widths: Sequence[int],
    boxes: Sequence[int],
    images: Sequence[str],
    views: Iterable[Sequence[Boxes]],
) -> None:
    """Writes the files that `MappedFeatures` reads.

    views: for each image, the boxes of each view with their geometry. Features are stored in half precision.
    """
    about = {"names": list(names), "widths": list(widths), "boxes": list(boxes), "images": list(images)}
    arrays = [
        [
            new_array(folder / file, dtype, (len(images), most, *shape))
            for file, dtype, shape in zip(_files(view), ("f2", "?", "f4"), ((width,), (), (4,)), strict=True)
        ]
        for view, (most, width) in enumerate(zip(boxes, widths, strict=True))
    ]
    for row, (_, image_views) in enumerate(zip(images, views, strict=True)):
        for (features, present, geometry), (vectors, corners) in zip(arrays, image_views, strict=True):
            here = (row, slice(len(vectors)))
            features[here], present[here], geometry[here] = vectors, True, corners
    (folder / "views.json").write_text(json.dumps(about))


def new_array(path: Path, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """A new .npy file of zeros, memory-mapped. Raises OSError that names the file if the disk has no room for it.

    Its blocks are allocated before it is mapped: writing to a mapped file that has holes, the process would be killed
    by SIGBUS when the disk is full.
    """
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
    try:
        with open(path, "wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            file.flush()
            allocate(file, math.prod(shape) * np.dtype(dtype).itemsize)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    return np.lib.format.open_memmap(path, "r+")


def allocate(file: BinaryIO, size: int) -> None:
    """Appends `size` bytes that are zero to a file, for which the disk then has room. Raises OSError if it has none."""
    try:
        os.posix_fallocate(file.fileno(), file.tell(), size)
    except (AttributeError, OSError) as error:  # macOS has no such function, and some file systems do not support it
        if isinstance(error, OSError) and error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        for start in range(0, size, CHUNK):
            file.write(bytes(min(CHUNK, size - start)))


def _files(view: int) -> tuple[str, str, str]:
    return f"view{view}.features.npy", f"view{view}.present.npy", f"view{view}.geometry.npy"
