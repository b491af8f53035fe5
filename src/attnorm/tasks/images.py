"""Image classification. The baseline always predicts the most frequent label."""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnorm.data.featurizer import Table
from attnorm.data.images import IMAGES, ImageSource, read_image
from attnorm.data.preprocess import Split
from attnorm.data.sampler import MicroBatch
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import DataError, Problem
from attnorm.models.interfaces import LabelModel
from attnorm.tasks.labels import LabelFeaturizer, LabelModule, SourceLabelTask, classified
from attnorm.tasks.module import Collator
from attnorm.tasks.results import hash_of, hash_of_image
from attnorm.tasks.task import Tokens

BRIGHTEST = 255


class ImageFeaturizer(LabelFeaturizer):
    """One row per image.

    cells: the number of patches of an image, which are what a batch is measured in.
    """

    schema = IMAGES

    def __init__(self, labels: Sequence[str], cells: int):
        super().__init__(labels)
        self.cells = cells

    def settings(self) -> list:
        return ["images", 1, self.labels]

    def columns(self) -> dict:
        """label, its number."""
        import pyarrow as pa

        return {"label": pa.int32()}

    def inputs(self, texts: dict[str, list[str]], tokenizer: Tokenizer) -> tuple[dict[str, list], dict[str, int]]:
        return {}, {}  # the pixels are read when a batch is made

    def lengths(self, ids: Table) -> np.ndarray:
        return np.full((len(ids), 1), self.cells, np.int32)

    def describe(self, counts: dict[str, int]) -> str:
        return f"{counts['kept']:,} images of {self.cells:,} patches ({self.shares(counts)})"


class ImageCollator(Collator):
    """Rows of `ImageFeaturizer` -> tensors.

    pixels: uint8 (images, height, width, channels), of which the first ones are those of the rows.
    """

    def __init__(self, rows: Table, pixels: np.ndarray):
        super().__init__(rows)
        self.pixels = pixels

    def tensors(self, table: dict[str, list], part: MicroBatch) -> dict[str, Tensor]:
        """Returns the tensors:

        pixels: float32 (B, height, width, channels) in [0, 1].
        labels: int64 (B,).
        """
        return {
            "pixels": torch.from_numpy(self.pixels[part.rows].astype(np.float32) / BRIGHTEST),
            "labels": torch.tensor(table["label"]),
        }


class ImageModule(LabelModule):
    """Cross-entropy over the labels of images; accuracy. cells: the number of patches of an image."""

    cells: int

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Scores (B, labels)."""
        return self.model(batch["pixels"].to(next(self.model.parameters()).dtype)).float()

    def tokens(self, batch: dict[str, Tensor]) -> Tensor:
        return torch.tensor(self.cells * len(batch["rows"]))


class ImageTask(SourceLabelTask[ImageModule]):
    """task=image_classification.

    The model has the options `patch`, `queries` and `query_grid` of `attnorm.models.grid.GridConfig`.
    """

    interface, schema, unit = "images", IMAGES, "images"

    @cached_property
    def data_properties(self) -> dict[str, Any]:
        """The names of the labels, and the height, width and channels of the images."""
        source: Any = self.source()
        return {**super().data_properties, "shape": list(source.shape)}

    @property
    def grid(self) -> tuple[int, int]:
        """The rows and columns of patches of an image."""
        height, width, _ = self.data_properties["shape"]
        patch = self.cfg.model.patch
        return height // patch, width // patch

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        height, width, _ = self.data_properties["shape"]
        patch = self.cfg.model.patch
        if height % patch or width % patch:
            yield Problem("model.patch", f"must divide the size of the images, {height} x {width} pixels", patch)
        else:
            yield from self.budget_problems(math.prod(self.grid), "the patches of an image")

    def notes(self) -> str:
        height, width, channels = self.data_properties["shape"]
        rows, columns = self.grid
        many = "" if channels == 1 else "s"
        return f"images of {height} x {width} pixels with {channels} channel{many}, in {rows} x {columns} patches"

    def featurizer(self) -> ImageFeaturizer:
        return ImageFeaturizer(self.labels, math.prod(self.grid))

    def model(self, tokenizer: Tokenizer) -> nn.Module:
        return self.build_model(tokenizer, image_shape=tuple(self.data_properties["shape"]), labels=len(self.labels))

    def module(self, model: LabelModel, tokenizer: Tokenizer, validation: Split) -> ImageModule:
        module = ImageModule(model, tokenizer, validation.texts, self.labels, self.class_weights())
        module.cells = math.prod(self.grid)
        return module

    def collator(self, split: Split) -> ImageCollator:
        return ImageCollator(split.rows, self.pixels(split.name))

    def pixels(self, split: str) -> np.ndarray:
        """The pixels of a split. Raises DataError if the images are not of the size that the model was trained on."""
        source = self.source()
        assert isinstance(source, ImageSource)
        if list(source.shape) != self.data_properties["shape"]:
            raise DataError(
                f"data: images of shape {list(source.shape)}, but the model reads {self.data_properties['shape']}"
            )
        return source.pixels(split, self.cache())

    def input_hashes(self, split: Split) -> list[str]:
        pixels = self.pixels(split.name)
        return [
            f"{hash_of(row)}-{hash_of_image(torch.from_numpy(image.copy()))}"
            for row, image in zip(split.texts, pixels, strict=False)
        ]

    def row_hashes(self, split: Split) -> list[str]:
        """Hashes of the images."""
        return [hashed.rpartition("-")[2] for hashed in self.input_hashes(split)]

    def generate(self, model: LabelModel, tokenizer: Tokenizer, texts: list[str]) -> list[str]:
        """As `classified`. texts: paths of image files, of which the middle is scaled to the size of the images of the
        data, or ids of images of the data."""
        height, width, channels = self.data_properties["shape"]
        paths = [text for text in texts if channels in (1, 3) and Path(text).is_file()]
        images = {path: read_image(Path(path), width, height=height) for path in paths}
        if channels == 1:
            images = {path: image.mean(-1, keepdims=True).round().astype(np.uint8) for path, image in images.items()}
        source: Any = self.source()
        for split in source.splits if len(images) < len(set(texts)) else ():
            ids = (name for name, _ in source.rows(split))
            images = {id_: image for id_, image in zip(ids, self.pixels(split), strict=True) if id_ in texts} | images
        if missing := [text for text in texts if text not in images]:
            raise DataError(f"{missing[0]}: neither an image file nor the id of an image of the data")
        pixels = np.stack([images[text] for text in texts])
        rows = {"id": texts, "label": self.labels[:1] * len(texts)}
        collator = lambda split: ImageCollator(split.rows, pixels)  # noqa: E731
        return classified(self, model, tokenizer, rows, collator, labels=self.labels)

    def attended_example(self, model: LabelModel, split: Split, row: int) -> tuple[tuple, Tokens]:
        """The model reads an image. Patches are named by row and column, learned queries by their number."""
        batch = self.collator(split)[MicroBatch([row], 1)]
        options = self.cfg.model
        grids = [self.grid] * options.layers + [tuple(options.query_grid or self.grid)]

        def tokens(layer: str) -> tuple[list[str], list[str]]:
            if layer == "pool":
                return [f"query {number}" for number in range(options.queries)], _cells_of(grids[-1])
            number = int(layer.rpartition("/")[2])
            return _cells_of(grids[number + 1]), _cells_of(grids[number])

        return (batch["pixels"],), tokens


def _cells_of(grid: tuple[int, ...]) -> list[str]:
    """The names of the cells of a grid in the order in which it is unfolded: "0,0", "0,1", ..."""
    rows, columns = grid
    return [f"{row},{column}" for row in range(rows) for column in range(columns)]
