"""An LSTM that attends to an image: the captioning example of "Attention as Inference via Fenchel Duality", Fig. 2b."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from attnorm.models.captioning.base import Captioner
from attnorm.models.captioning.image_encoder import ImageEncoderConfig
from attnorm.models.recurrent.config import DecoderConfig
from attnorm.models.recurrent.decoder import LSTMCache, LSTMDecoder


@dataclass(frozen=True, kw_only=True)
class LSTMCaptionerConfig(DecoderConfig, ImageEncoderConfig):
    """The configuration of `LSTMCaptioner`: that of its decoder and that of its image encoder."""


class LSTMCaptioner(Captioner):
    """A `Captioner` with an `LSTMDecoder`. Its only attention site is `cross`."""

    Config = LSTMCaptionerConfig
    sites = LSTMDecoder.sites

    @classmethod
    def site_layers(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """The number of layers at each site."""
        return dict.fromkeys(cls.sites, 1)

    def build_decoder(self, attention: dict) -> LSTMDecoder:
        return LSTMDecoder(self.shape, attention, self.tokens, self.eye.templates, self.pad_id)

    def decode(self, target: Tensor, memory: Tensor, real: Tensor, cache: LSTMCache | None = None) -> Tensor:
        return self.decoder(target, memory, real, cache)

    def new_cache(self) -> LSTMCache:
        return LSTMCache()
