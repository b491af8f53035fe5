"""The base class of models that write captions: an image encoder, and a decoder that attends to its templates.

The encoder is a small convolutional network whose grid of features gives one template per cell, f_CNN of the captioning
example in "Attention as Inference via Fenchel Duality", Fig. 2b. Ready-made features of regions take the place of the
network if the data has them.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from attnorm.models.generation import WithDecoder
from attnorm.models.initialize import initialize
from attnorm.schema import Count

STRIDE = 2  # of the convolutions that halve the grid
MARGIN = 1  # pixels of a kernel on each side of the square of stride x stride pixels that an output cell stands for


@dataclass(frozen=True, kw_only=True)
class ImageEncoderConfig:
    """The configuration of the part that reads the image.

    channels: for pixels, the number of channels of each convolution. Each of them halves the sides of the grid, so that
              three of them make 8 x 8 cells out of 64 x 64 pixels. Ignored for ready-made features.
    """

    channels: Annotated[tuple[Count, ...], Field(min_length=1)] = (32, 64, 96)


class Convolution(nn.Linear):
    """A convolution whose output cells stand for squares of stride x stride pixels, and see MARGIN more on each side.

    A cell is in the middle of what it sees, so that attention to a cell can be drawn where the cell is. With kernels of
    3 x 3 pixels and a stride of 2, three convolutions would shift what a cell sees by half a cell. The kernel is stored
    as a matrix, and is initialized and decayed like every other matrix.
    """

    def __init__(self, inputs: int, outputs: int, stride: int):
        side = stride + 2 * MARGIN
        super().__init__(inputs * side**2, outputs)
        self.kernel, self.stride = (outputs, inputs, side, side), stride

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, S, S) -> (B, C', S', S') with S' = S / stride, rounded up."""
        end = MARGIN + -x.shape[-1] % self.stride
        return F.conv2d(F.pad(x, (MARGIN, end) * 2), self.weight.view(self.kernel), self.bias, stride=self.stride)


class Surroundings(nn.Module):
    """Adds to each cell what a convolution sees in the cells around it: things may be larger than a cell."""

    def __init__(self, channels: int):
        super().__init__()
        self.network = nn.Sequential(Convolution(channels, channels, 1), nn.GroupNorm(1, channels), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, S, S) -> (B, C, S, S)."""
        return x + self.network(x)


class ImageEncoder(nn.Module):
    """Templates of an image, each of which also knows the image as a whole.

    The template of cell j is c_j + p_j + tanh(W mean_i(c_i + p_i)), where c_j are the features of the cell and p_j is
    an embedding of its place. A preference that is computed from the templates therefore sees the whole image
    ("Fenchel Duality", Sec. 7), and differs between cells.

    side: pixels per side of an image. width, regions: instead, the number of features of a region, and the maximum
          number of regions. The places of regions are not used.
    """

    def __init__(self, shape: ImageEncoderConfig, d_model: int, side: int, width: int, regions: int):
        super().__init__()
        self.side, channels = side, (3, *shape.channels)
        self.grid = side  # cells per side; 0 for regions
        layers: list[nn.Module] = []
        if side:
            for inputs, outputs in pairwise(channels):
                layers += [Convolution(inputs, outputs, STRIDE), nn.GroupNorm(1, outputs), nn.GELU()]
                self.grid = -(-self.grid // STRIDE)
            layers.append(Surroundings(channels[-1]))
        self.layers = nn.Sequential(*layers)
        self.templates = self.grid**2 if side else regions
        self.project = nn.Linear(channels[-1] if side else width, d_model)
        self.places = nn.Embedding(self.templates, d_model) if side else None
        self.whole = nn.Linear(d_model, d_model)

    def forward(self, image: Tensor, present: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Returns the templates (B, M, W), cell by cell along the rows, and which of them are real, bool (B, M).

        image: uint8 (B, 3, side, side), or the features of regions (B, M, width).
        present: bool (B, M), the regions that an image has; None: all.
        """
        if self.side:
            pixels = image.to(self.project.weight.dtype) / 127.5 - 1.0
            image = self.layers(pixels).flatten(2).transpose(1, 2)  # (B, M, C)
        if present is None:
            present = torch.ones(image.shape[:2], dtype=torch.bool, device=image.device)
        x = self.project(image.to(self.project.weight.dtype))  # (B, M, W)
        if self.places is not None:
            x = x + self.places.weight
        real = present[..., None].to(x.dtype)
        mean = (x * real).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)
        return (x + self.whole(mean).tanh()) * real, present

    def cells(self) -> list[str]:
        """A name for each template: "row,column" of its cell, from 0, or the number of its region."""
        if self.side:
            return [f"{row},{column}" for row in range(self.grid) for column in range(self.grid)]
        return [f"region {number}" for number in range(self.templates)]


class Captioner(WithDecoder, ABC):
    """An `ImageEncoder` that gives the templates, and a decoder that attends to them at the site `cross`.

    Config:    the configuration: an `ImageEncoderConfig` with `d_model`, `max_target` and `tie_embeddings`.
    sites:     the attention sites. Under teacher forcing, all of them are autoregressive.
    attention: resolved tables (`attnorm.attention.table_form`).
    side, width, regions: as in `ImageEncoder`.
    seed:      seed of the initial parameters, see `initialize`.
    """

    interface = "captioning"
    Config: ClassVar[type]
    sites: ClassVar[dict[str, bool]]

    def __init__(
        self,
        shape: Any,
        attention: dict,
        vocab_size: int,
        pad_id: int,
        side: int = 0,
        width: int = 0,
        regions: int = 0,
        seed: int = 0,
    ):
        super().__init__()
        self.shape, self.pad_id = shape, pad_id
        self.tokens = nn.Embedding(vocab_size, shape.d_model)
        # Initial values are drawn by the names of parameters, so this name is part of every result.
        self.eye = ImageEncoder(shape, shape.d_model, side, width, regions)
        self.decoder = self.build_decoder(attention)
        initialize(self, seed)
        if shape.tie_embeddings:
            self.decoder.tie()

    @abstractmethod
    def build_decoder(self, attention: dict) -> Any:
        """The decoder, with the token embedding `tokens` and as many templates as the eye gives."""

    def forward(self, image: Tensor, present: Tensor | None, target: Tensor, owner: Tensor | None = None) -> Tensor:
        """Returns the decoder's states (C, T, W) of C captions.

        image, present: as in `ImageEncoder.forward`.
        target: int (C, T), the tokens so far.
        owner:  int (C,), the row of the image of each caption; None: there is one caption per image.
        """
        memory, real = self.encode(image, present)
        return self.decode(target, *((memory, real) if owner is None else (memory[owner], real[owner])))

    def encode(self, image: Tensor, present: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The templates (B, M, W), and which of them are real, bool (B, M)."""
        return self.eye(image, present)
