"""Writes captions of images. Training, `eval.py` and `generate.py` share this code."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from attnorm.data.images import Images
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
        found = {name: tensor.to(device) for name, tensor in images.read([names[row] for row in rows]).items()}
        written = write(model, tokenizer, found["image"], found.get("present"), decoding)
        captions |= {row: tokenizer.decode(ids) for row, ids in zip(rows, written, strict=True)}
    return ranks.gather_items(captions)
