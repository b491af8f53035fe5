"""Images for a model: pixels that it looks at itself, or ready-made features of their regions; and labelled images."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import Field

from attnorm.data.cache import cached
from attnorm.data.image_features import ImageFeatures, MappedRows, coco_id, new_array
from attnorm.data.readers import text as files
from attnorm.data.sources.base import RowSchema, Source
from attnorm.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

# The pixels are not in the rows; `ImageSource.pixels` has them in the same order.
IMAGES = RowSchema("images", "image", ("id", "label"), ("id",), (), ())
PIXELS = "pixels.npy"
Side = Annotated[int, Field(ge=16)]  # pixels, of which the smallest things of the built-in scenes then have 1.3


@dataclass(frozen=True)
class ImageShape:
    """What a model has to know of its images before it is built.

    side:  the number of pixels per side, if the images are pixels; 0 for features.
    width: the number of features of a region; 0 for pixels.
    regions: the maximum number of regions of an image with features; 0 for pixels.
    """

    side: int = 0
    width: int = 0
    regions: int = 0

    def __post_init__(self) -> None:
        sizes = asdict(self)
        if any(type(size) is not int or size < 0 for size in sizes.values()):
            raise ValueError(f"expected whole numbers from 0, got {sizes}")
        if bool(self.side) == bool(self.width and self.regions):
            raise ValueError(f"expected either side, or width and regions, got {sizes}")


class Images(ABC):
    """The images of a split, which are read on demand."""

    shape: ImageShape

    @abstractmethod
    def check(self, images: Iterable[str]) -> None:
        """Raises ValueError that names the images that are missing."""

    @abstractmethod
    def read(self, images: Sequence[str]) -> "dict[str, Tensor]":
        """The tensors of some images.

        image:   uint8 (B, 3, side, side), or the features of regions, float32 (B, regions, width).
        present: bool (B, regions), the regions that an image has; for features only.
        """


class MappedPixels(MappedRows, Images):
    """Images in a folder written by `write_pixels`."""

    index, what = "images.json", "pixels"

    def __init__(self, folder: str | Path):
        super().__init__(folder)
        self.shape, self.files = ImageShape(side=self.about["side"]), [PIXELS]

    def read(self, images: Sequence[str]) -> "dict[str, Tensor]":
        [pixels] = self.tensors(images)
        return {"image": pixels.permute(0, 3, 1, 2)}


def write_pixels(folder: Path, side: int, images: Sequence[str], pixels: Iterable[np.ndarray]) -> None:
    """Writes the files that `MappedPixels` reads. pixels: uint8 (side, side, 3) for each image."""
    array = new_array(folder / PIXELS, "u1", (len(images), side, side, 3))
    for row, (_, image) in enumerate(zip(images, pixels, strict=True)):
        array[row] = image
    (folder / "images.json").write_text(json.dumps({"side": side, "images": list(images)}))


class RegionFeatures(Images):
    """Ready-made features of the regions of images: the first view of `views`.

    The features of an image "a.jpg" are stored as "a" or as "a.jpg", and those of an image of COCO also under its id.
    """

    def __init__(self, views: ImageFeatures):
        self.views = views.first(1)
        self.shape = ImageShape(width=self.views.widths[0], regions=self.views.boxes[0])

    def check(self, images: Iterable[str]) -> None:
        self.views.check(map(self._stored_as, images))

    def read(self, images: Sequence[str]) -> "dict[str, Tensor]":
        [(features, present, _)] = self.views.read(list(map(self._stored_as, images)))
        return {"image": features, "present": present}

    def _stored_as(self, image: str) -> str:
        """The name of an image in the files with features; its name without the extension if it is not there."""
        stem = Path(image).stem
        names = (stem, image, coco_id(stem))
        return next((name for name in names if name is not None and self.views.has(name)), stem)


def read_image(path: Path, side: int, *, height: int | None = None) -> np.ndarray:
    """An image file as uint8 (height, side, 3), turned upright as its EXIF data say: its largest part of this shape
    around the middle, scaled.

    height: by default `side`, for a square. Raises ValueError if the file is not a readable image.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise DataError("image files need the package pillow; pip install pillow") from error

    try:
        with Image.open(path) as file:
            image = ImageOps.exif_transpose(file)
            size = side, height or side
            scale = min(whole / part for whole, part in zip(image.size, size, strict=True))
            right, bottom = round(scale * size[0]), round(scale * size[1])
            left, top = (image.size[0] - right) // 2, (image.size[1] - bottom) // 2
            box = left, top, left + right, top + bottom
            return np.asarray(image.convert("RGB").resize(size, Image.Resampling.BILINEAR, box), np.uint8)
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such image: {path}") from error
    except Exception as error:  # for a damaged file, pillow raises SyntaxError, struct.error, zlib.error and others
        raise DataError(f"{path}: not a readable image: {path} ({error})") from error


class ImageSource(Source):
    """A source of images of one size, each with a label.

    labels: the names of the labels. Their order defines their numbers.
    shape:  height, width and channels of the images.

    A subclass implements `rows`, which gives the id and the label of each image, and `read`.
    """

    schema = IMAGES
    labels: tuple[str, ...]
    shape: ClassVar[tuple[int, int, int]]

    @abstractmethod
    def read(self, split: str) -> np.ndarray:
        """The pixels of the images of a split, uint8 (images, height, width, channels), in the order of `rows`."""

    def pixels(self, split: str, cache_dir: str | Path) -> np.ndarray:
        """As `read`, memory-mapped from the cache. They are read only once."""
        place = Path(cache_dir) / f"pixels-{files.digest(['images', 1, self.fingerprint(split)])}"
        folder = cached(place, lambda folder: np.save(folder / PIXELS, self.read(split)))
        return np.load(folder / PIXELS, mmap_mode="r")
