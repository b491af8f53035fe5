"""Images that a user names, by the path of a file or by an id of the data."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from attnorm.data.images import Images, ImageShape, read_image
from attnorm.errors import DataError


class NamedImages(Images):
    """Images of which each is an image file or one of the images of some splits.

    shape:  the shape that the model expects. splits: the names of the splits in which ids are looked up, in order.
    open_split: returns the images of a split. It is called for the first id that no earlier split has.
    """

    def __init__(self, shape: ImageShape, splits: Iterable[str], open_split: Callable[[str], Images]):
        self.shape, self.splits, self.open_split = shape, list(splits), cache(open_split)

    def check(self, images: Iterable[str]) -> None:
        for image in images:
            self._one(image)

    def read(self, images: Sequence[str]) -> dict[str, Tensor]:
        each = [self._one(image) for image in images]
        return {name: torch.cat([it[name] for it in each]) for name in each[0]}

    def _one(self, image: str) -> dict[str, Tensor]:
        if self.shape.side and Path(image).is_file():
            pixels = read_image(Path(image), self.shape.side)
            return {"image": torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None]}
        unread = ""
        for split in self.splits:
            try:
                images = self.open_split(split)
            except (DataError, OSError) as error:
                unread += f"; {split} cannot be read: {error}"
                continue
            try:
                images.check([image])
            except DataError:
                continue
            return images.read([image])
        file = "neither an image file nor" if self.shape.side else "not"
        splits = ", ".join(self.splits)
        raise DataError(f"{image}: {file} the id of an image of the data (looked up in {splits}{unread})")
