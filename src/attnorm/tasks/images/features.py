"""Labelled images as rows: the number of the label. The pixels are read when a batch is made."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from attnorm.data import validation as checks
from attnorm.data.featurizer import Featurizer, Table
from attnorm.data.sampler import MicroBatch
from attnorm.data.sources.images import IMAGES
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import DataError

BRIGHTEST = 255


class ImageFeaturizer(Featurizer):
    """One row per image.

    labels: the names of the labels, whose order defines their numbers. cells: the number of patches of an image, which
    are what a batch is measured in.
    """

    schema = IMAGES

    def __init__(self, labels: Sequence[str], cells: int):
        self.labels, self.cells = list(labels), cells

    def settings(self) -> list:
        return ["images", 1, self.labels]

    def columns(self) -> dict:
        """label, its number."""
        import pyarrow as pa

        return {"label": pa.int32()}

    def encode(
        self, texts: dict[str, list[str]], first: int, tokenizer: Tokenizer
    ) -> tuple[Mapping[str, Sequence], dict[str, int]]:
        numbers = {name: number for number, name in enumerate(self.labels)}
        if unknown := sorted(set(texts["label"]) - numbers.keys()):
            message = f"data: label {unknown[0]!r} is not one that the model was trained on"
            raise DataError(checks.unknown(message, unknown[0], self.labels))
        counts = Counter(texts["label"])
        return {"label": [numbers[name] for name in texts["label"]]}, {
            f"label {name}": counts[name] for name in self.labels
        }

    def lengths(self, ids: Table) -> np.ndarray:
        return np.full((len(ids), 1), self.cells, np.int32)

    def weights(self, ids: Table) -> np.ndarray:
        return np.ones(len(ids), np.int64)

    def describe(self, counts: dict[str, int]) -> str:
        shares = ", ".join(f"{name} {counts[f'label {name}'] / counts['kept']:.1%}" for name in self.labels)
        return f"{counts['kept']:,} images of {self.cells:,} patches ({shares})"


class ImageCollator(Dataset):
    """`MicroBatch` -> tensors. rows: a table of `ImageFeaturizer`. pixels: uint8 (images, height, width, channels), of
    which the first ones are those of the rows."""

    def __init__(self, rows: Table, pixels: np.ndarray):
        self.rows, self.pixels = rows, pixels

    def __getitem__(self, part: MicroBatch) -> dict[str, Tensor]:
        """Returns the tensors of a batch.

        pixels: float32 (B, height, width, channels) in [0, 1]. labels: (B,). rows: (B,). divisor: (), the number of
                rows of the update.
        """
        return {
            "pixels": torch.from_numpy(self.pixels[part.rows].astype(np.float32) / BRIGHTEST),
            "labels": torch.tensor(self.rows[part.rows]["label"]),
            "rows": torch.tensor(part.rows),
            "divisor": torch.tensor(part.divisor),
        }
