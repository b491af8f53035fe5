"""Writes captions of images, of a split or named by the user. Training, `eval.py` and `generate.py` share this code."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnorm.data.images import Images, ImageShape, read_image
from attnorm.errors import DataError
from attnorm.models.generation import Decoding, search
from attnorm.tasks.ranks import Ranks
from attnorm.tasks.seq2seq.generate import special_tokens


@torch.no_grad()
def write(model: Any, tokenizer: Any, image: Tensor, present: Tensor | None, decoding: Decoding) -> list[list[int]]:
    """The tokens of one caption for each image of a batch, without special tokens. The arguments are those of
    `encode` of the model, and the model is put into evaluation mode."""
    model.eval()
    memory, real = model.encode(image, present)
    return search(model, memory, real, special_tokens(tokenizer), decoding)


def write_captions(
    model: Any,
    tokenizer: Any,
    images: Images,
    names: Sequence[str],
    decoding: Decoding,
    batch_tokens: int,
    progress: Callable[[list], Iterable] = iter,
) -> list[str]:
    """Writes one caption for each of these images, in their order.

    Images are decoded in batches of about `batch_tokens` tokens over all beams. `progress` wraps the list of batches.
    If several processes train together, each of them writes its share, and all have the captions.
    """
    device = next(model.parameters()).device
    size = max(1, batch_tokens // (decoding.beam_size * (decoding.max_length + 1)))
    batches = [range(start, min(start + size, len(names))) for start in range(0, len(names), size)]
    captions: dict[int, str] = {}
    ranks = Ranks.present()
    for rows in progress([rows for _, rows in ranks.share(batches)]):
        batch = {name: tensor.to(device) for name, tensor in images.read([names[row] for row in rows]).items()}
        written = write(model, tokenizer, batch["image"], batch.get("present"), decoding)
        captions |= {row: tokenizer.decode(ids) for row, ids in zip(rows, written, strict=True)}
    return ranks.gather_items(captions)


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
        return {name: torch.cat([tensors[name] for tensors in each]) for name in each[0]}

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
