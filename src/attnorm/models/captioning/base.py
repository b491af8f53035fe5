"""The base class of models that write captions: an image encoder, and a decoder that attends to its templates."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor, nn

from attnorm.models.captioning.image_encoder import ImageEncoder
from attnorm.models.initialize import initialize


class Captioner(nn.Module, ABC):
    """An `ImageEncoder` that gives the templates, and a decoder that attends to them at the site `cross`.

    Config:    the configuration: an `ImageEncoderConfig` with `d_model`, `max_target` and `tie_embeddings`.
    sites:     the attention sites. Under teacher forcing, all of them are autoregressive.
    attention: resolved tables (`attnorm.attention.tables`).
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

    @abstractmethod
    def decode(self, target: Tensor, memory: Tensor, real: Tensor, cache: Any = None) -> Tensor:
        """target, int (B, T); memory (B, M, W); real, bool (B, M) -> states (B, T, W).

        With a cache, `target` holds only the newest token, (B, 1), and the cache advances by one position.
        """

    @abstractmethod
    def new_cache(self) -> Any:
        """An empty state of incremental decoding."""

    def logits(self, states: Tensor) -> Tensor:
        """states (..., W) -> scores of the next token (..., V)."""
        return self.decoder.logits(states)
