"""A Transformer decoder that attends to an image."""

from dataclasses import dataclass
from typing import Any, Literal

from attnorm.models.captioning.base import Captioner, ImageEncoderConfig
from attnorm.models.config import Positions, Skip, TransformerConfig
from attnorm.models.decoder import TransformerDecoder
from attnorm.schema import Count, Share


@dataclass(frozen=True, kw_only=True)
class TransformerCaptionerConfig(ImageEncoderConfig):
    """The configuration of `TransformerCaptioner`: its image encoder, and the following of `TransformerConfig`."""

    d_model: Count
    n_heads: Count
    ffn_dim: Count
    decoder_layers: Count
    max_target: Positions
    positions: Literal["learned", "sinusoidal"] = "learned"
    norm_first: bool = True
    residual: Skip = True
    activation: Literal["gelu", "gelu_new", "relu"] = "gelu"
    dropout: Share = 0.1
    attention_dropout: Share = 0.0
    tie_embeddings: bool = True

    def decoder(self) -> TransformerConfig:
        """The configuration of the decoder. Its encoder is the eye, so the options of an encoder have no meaning."""
        options = {name: value for name, value in vars(self).items() if name != "channels"}
        return TransformerConfig(**options, encoder_layers=1, max_source=2)


class TransformerCaptioner(Captioner):
    """A `Captioner` with a `TransformerDecoder`. Its sites are self-attention and attention to the image."""

    Config = TransformerCaptionerConfig
    sites = TransformerDecoder.sites
    self_sites = TransformerDecoder.self_sites

    @classmethod
    def site_layers(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """The number of layers at each site."""
        return dict.fromkeys(cls.sites, settings.get("decoder_layers"))

    def build_decoder(self, attention: dict) -> TransformerDecoder:
        return TransformerDecoder(self.shape.decoder(), attention, self.tokens, self.eye.templates, self.pad_id)
