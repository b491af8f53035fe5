"""Images with captions as rows of ids: one row per image, with all of its captions."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from attnorm.data.captions import CAPTIONS
from attnorm.data.featurizer import Featurizer, Table, cut, pad
from attnorm.data.images import Images
from attnorm.data.sampler import MicroBatch
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.tasks.collator import Collator


class CaptionFeaturizer(Featurizer):
    """One row per image: its captions one after the other, without special tokens, and where each of them begins.

    Captions are truncated to `max_target` tokens, including one special token.
    """

    schema = CAPTIONS

    def __init__(self, max_target: int):
        self.limit = max_target - 1

    def settings(self) -> list:
        return ["captions", 1, self.limit]

    def columns(self) -> dict:
        """ids of all captions of an image, and sizes, the number of them in each caption."""
        import pyarrow as pa

        return {"ids": pa.list_(pa.int32()), "sizes": pa.list_(pa.int32())}

    def encode(
        self, texts: dict[str, list[str]], first: int, tokenizer: Tokenizer
    ) -> tuple[Mapping[str, Sequence], dict[str, int]]:
        captions = [cell.split("\n") for cell in texts["captions"]]
        encoded, truncated = cut(tokenizer.encode([text for of_image in captions for text in of_image]), self.limit)
        ids, sizes, rest = [], [], iter(encoded)
        for of_image in captions:
            own = [next(rest) for _ in of_image]
            ids.append([token for caption in own for token in caption])
            sizes.append([len(caption) for caption in own])
        return {"ids": ids, "sizes": sizes}, {"captions": len(encoded), "truncated": truncated}

    def lengths(self, ids: Table) -> np.ndarray:
        """The number of captions of an image times the length of the longest one: the tokens that they take padded."""
        sizes = ids["sizes"]
        return np.array([[len(of_image) * (max(of_image) + 1)] for of_image in sizes], np.int32)

    def weights(self, ids: Table) -> np.ndarray:
        return np.array([sum(of_image) + len(of_image) for of_image in ids["sizes"]], np.int64)

    def describe(self, counts: dict[str, int]) -> str:
        return (
            f"{counts['kept']:,} images ({counts['empty']:,} without captions skipped) with {counts['captions']:,} "
            f"captions ({counts['truncated']:,} truncated)"
        )


class CaptionCollator(Collator):
    """Rows of `CaptionFeaturizer` -> tensors, with the captions padded to the longest one of the batch.

    texts:  the texts of the split, row by row, with the ids of the images.
    images: the images. Raises ValueError that names those that are missing.
    """

    def __init__(self, rows: Table, texts: Table, images: Images, pad_id: int, bos_id: int, eos_id: int):
        super().__init__(rows, pad_id)
        self.images = images
        self.names = texts.select_columns(["id"])
        self.bos_id, self.eos_id = bos_id, eos_id
        images.check(self.names["id"])

    def tensors(self, table: dict[str, list], part: MicroBatch) -> dict[str, Tensor]:
        """Returns the tensors of a batch of B images with C captions:

        image:   uint8 (B, 3, side, side), or float32 (B, M, width) features.
        present: bool (B, M), for features only.
        target:  int64 (C, T + 1), with the begin and end tokens.
        owner:   int64 (C,), the row of the image of each caption.
        """
        captions, owner = [], []
        for row, (ids, sizes) in enumerate(zip(table["ids"], table["sizes"], strict=True)):
            start = 0
            for size in sizes:
                captions.append([self.bos_id, *ids[start : start + size], self.eos_id])
                owner.append(row)
                start += size
        return {
            **self.images.read(self.names[part.rows]["id"]),
            "target": pad(captions, self.pad_id),
            "owner": torch.tensor(owner),
        }
