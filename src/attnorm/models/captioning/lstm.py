"""An LSTM that attends to an image: the captioning example of "Attention as Inference via Fenchel Duality", Fig. 2b."""

from dataclasses import dataclass

from attnorm.models.captioning.base import Captioner, ImageEncoderConfig
from attnorm.models.config import LSTMDecoderConfig
from attnorm.models.recurrent.decoder import LSTMDecoder


@dataclass(frozen=True, kw_only=True)
class LSTMCaptionerConfig(LSTMDecoderConfig, ImageEncoderConfig):
    """The configuration of `LSTMCaptioner`: that of its decoder and that of its image encoder."""


class LSTMCaptioner(Captioner):
    """A `Captioner` with an `LSTMDecoder`. Its only attention site is `cross`."""

    Config = LSTMCaptionerConfig
    sites, site_layers = LSTMDecoder.sites, LSTMDecoder.site_layers

    def build_decoder(self, attention: dict) -> LSTMDecoder:
        return LSTMDecoder(self.shape, attention, self.tokens, self.eye.templates, self.pad_id)
