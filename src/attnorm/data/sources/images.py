"""Labelled images: the base class of their sources, and the pixels of a split."""

from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

import numpy as np

from attnorm.data.cache import cached
from attnorm.data.readers import text as files
from attnorm.data.sources.base import RowSchema, Source

# The pixels are not in the rows; `ImageSource.pixels` has them in the same order.
IMAGES = RowSchema("images", "image", ("id", "label"), ("id",), (), ())
FILE = "pixels.npy"


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

        def build(folder: Path) -> None:
            np.save(folder / FILE, self.read(split))

        folder = cached(Path(cache_dir) / f"pixels-{files.digest(['images', 1, self.fingerprint(split)])}", build)
        return np.load(folder / FILE, mmap_mode="r")
