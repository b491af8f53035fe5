"""A Transformer decoder that attends to an image."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from attnorm.attention.build import build_site_prior
from attnorm.models.captioning.eye import Eye, EyeConfig
from attnorm.models.config import Positions, Skip, TransformerConfig
from attnorm.models.embeddings import Embeddings
from attnorm.models.initialize import initialize
from attnorm.models.layers import DecoderLayer
from attnorm.models.seq2seq import Seq2Seq
from attnorm.schema import Count, Share


@dataclass(frozen=True, kw_only=True)
class TransformerCaptionerConfig(EyeConfig):
    """The configuration of `TransformerCaptioner`: that of its eye, and the following of `TransformerConfig`."""

    d_model: Count
    n_heads: Count
    ffn_dim: Count
    decoder_layers: Count
    max_target: Positions
    positions: Literal["learned", "sinusoidal"] = "learned"
    norm_first: bool = True
    residual: Skip = True
    activation: Literal["gelu", "relu"] = "gelu"
    dropout: Share = 0.1
    attention_dropout: Share = 0.0
    tie_embeddings: bool = True

    def decoder(self) -> TransformerConfig:
        """The configuration of the decoder. Its encoder is the eye, so the options of an encoder have no meaning."""
        own = {name: value for name, value in vars(self).items() if name != "channels"}
        return TransformerConfig(**own, encoder_layers=1, max_source=2)


class TransformerCaptioner(Seq2Seq):
    """An `Eye` that gives the memory, and the decoder of `Seq2Seq`.

    sites:     self-attention and attention to the image. Under teacher forcing, both are autoregressive.
    attention: resolved tables (`attnorm.attention.tables`).
    side, width, regions: as in `Eye`.
    seed:      seed of the initial parameters, see `initialize`.
    """

    interface = "captioning"
    Config = TransformerCaptionerConfig
    sites = {"decoder": True, "cross": True}  # noqa: RUF012

    def __init__(
        self,
        shape: TransformerCaptionerConfig,
        attention: dict,
        vocab_size: int,
        pad_id: int,
        side: int = 0,
        width: int = 0,
        regions: int = 0,
        seed: int = 0,
    ):
        nn.Module.__init__(self)  # that of Seq2Seq would build an encoder of tokens
        self.shape, self.pad_id = shape, pad_id
        self.tokens = nn.Embedding(vocab_size, shape.d_model)
        self.eye = Eye(shape, shape.d_model, side, width, regions)
        decoder = shape.decoder()
        self.embeddings = Embeddings(self.tokens, shape.max_target, decoder)
        self.layers = nn.ModuleList(
            DecoderLayer(decoder, attention, "decoder", "cross", layer) for layer in range(shape.decoder_layers)
        )
        self.norm = nn.LayerNorm(shape.d_model, decoder.norm_eps) if shape.norm_first else nn.Identity()
        size = {"heads": shape.n_heads, "width": shape.d_model}
        self.prior = build_site_prior(attention, "decoder", bidirectional=False, positions=shape.max_target, **size)
        self.cross_prior = build_site_prior(
            attention, "cross", bidirectional=True, positions=self.eye.templates, **size
        )
        self.output = nn.Linear(shape.d_model, vocab_size)
        initialize(self, seed)
        if shape.tie_embeddings:
            self.output.weight = self.tokens.weight

    @classmethod
    def site_layers(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """The number of layers at each site."""
        return dict.fromkeys(cls.sites, settings.get("decoder_layers"))

    def forward(self, image: Tensor, present: Tensor | None, target: Tensor, owner: Tensor | None = None) -> Tensor:
        """Returns the decoder's states (C, T, W) of C captions. The arguments are those of `LSTMCaptioner.forward`."""
        memory, real = self.encode(image, present)
        return self.decode(target, *((memory, real) if owner is None else (memory[owner], real[owner])))

    def encode(self, image: Tensor, present: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The templates (B, M, W), and which of them are real, bool (B, M)."""
        return self.eye(image, present)
