"""An LSTM that attends to an image: the captioning example of "Attention as Inference via Fenchel Duality", Fig. 2b."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from attnorm.models.captioning.eye import Eye, EyeConfig
from attnorm.models.initialize import initialize
from attnorm.models.recurrent.config import DecoderConfig
from attnorm.models.recurrent.decoder import LSTMCache, LSTMDecoder


@dataclass(frozen=True, kw_only=True)
class LSTMCaptionerConfig(DecoderConfig, EyeConfig):
    """The configuration of `LSTMCaptioner`: that of its decoder and that of its eye."""


class LSTMCaptioner(nn.Module):
    """An `Eye` that gives the templates, and an `LSTMDecoder` that attends to them at the site `cross`.

    sites:     the only attention site. Under teacher forcing it is autoregressive.
    attention: resolved tables (`attnorm.attention.tables`).
    side, width, regions: as in `Eye`.
    seed:      seed of the initial parameters, see `initialize`.
    """

    interface = "captioning"
    Config = LSTMCaptionerConfig
    sites = LSTMDecoder.sites

    def __init__(
        self,
        shape: LSTMCaptionerConfig,
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
        self.eye = Eye(shape, shape.d_model, side, width, regions)
        self.decoder = LSTMDecoder(shape, attention, self.tokens, self.eye.templates, pad_id)
        initialize(self, seed)
        if shape.tie_embeddings:
            self.decoder.tie()

    @classmethod
    def site_layers(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """The number of layers at each site."""
        return dict.fromkeys(cls.sites, 1)

    def forward(self, image: Tensor, present: Tensor | None, target: Tensor, owner: Tensor | None = None) -> Tensor:
        """Returns the decoder's states (C, T, W) of C captions.

        image, present: as in `Eye.forward`. target: int (C, T), the tokens so far. owner: int (C,), the row of the
        image of each caption; None: there is one caption per image.
        """
        memory, real = self.encode(image, present)
        return self.decode(target, *((memory, real) if owner is None else (memory[owner], real[owner])))

    def encode(self, image: Tensor, present: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The templates (B, M, W), and which of them are real, bool (B, M)."""
        return self.eye(image, present)

    def decode(self, target: Tensor, memory: Tensor, real: Tensor, cache: LSTMCache | None = None) -> Tensor:
        """As `LSTMDecoder`: target, int (B, T); memory (B, M, W); real, bool (B, M) -> states (B, T, W)."""
        return self.decoder(target, memory, real, cache)

    def new_cache(self) -> LSTMCache:
        """An empty state of incremental decoding."""
        return LSTMCache()

    def logits(self, states: Tensor) -> Tensor:
        """states (..., W) -> scores of the next token (..., V)."""
        return self.decoder.logits(states)
