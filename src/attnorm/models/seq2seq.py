"""The encoder-decoder Transformer."""

from typing import Any

from torch import Tensor, nn

from attnorm.models.config import TransformerConfig
from attnorm.models.decoder import TransformerDecoder
from attnorm.models.encoder import Encoder
from attnorm.models.initialize import initialize


class Seq2Seq(TransformerDecoder):
    """An encoder and a causal decoder with cross-attention and a shared vocabulary. It maps texts to texts.

    sites:     the attention sites, each with whether it is autoregressive. Under teacher forcing, cross-attention is.
    token_sites: those with a vocabulary for banks. self_sites: those of self-attention, for exclusive attention.
    attention: resolved tables (`attnorm.attention.table_form`).
    seed:      seed of the initial parameters, see `initialize`.
    """

    interface = "seq2seq"
    Config = TransformerConfig
    sites = {"encoder": False, "decoder": True, "cross": True}  # noqa: RUF012
    token_sites = ("encoder", "decoder", "cross")
    self_sites = ("encoder", "decoder")
    stacks = {"layers": "decoder"}  # noqa: RUF012 - the name of the decoder's layers in curves and figures

    def __init__(self, shape: TransformerConfig, attention: dict, vocab_size: int, pad_id: int, seed: int = 0):
        nn.Module.__init__(self)  # the decoder is built behind the encoder
        if not (shape.decoder_layers and shape.max_target):
            raise ValueError(
                f"model.decoder_layers={shape.decoder_layers}, model.max_target={shape.max_target}: "
                "a decoder requires both; allowed: whole numbers from 1"
            )
        self.shape, self.pad_id = shape, pad_id
        self.tokens = nn.Embedding(vocab_size, shape.d_model)
        self.encoder = Encoder(shape, attention, self.tokens)
        self.build_decoder(shape, attention, shape.max_source)
        initialize(self, seed)
        if shape.tie_embeddings:
            self.tie()

    @classmethod
    def site_layers(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """The number of layers at each site, from the keys of `TransformerConfig`."""
        decoder = settings.get("decoder_layers")
        return {"encoder": settings.get("encoder_layers"), "decoder": decoder, "cross": decoder}

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Returns the decoder's states (B, T, W). source: int (B, N), padded; target: int (B, T), the tokens so far."""
        real = source != self.pad_id
        return self.decode(target, self.encoder(source, real), real)

    def encode(self, source: Tensor) -> Tensor:
        """source, int (B, N) -> memory (B, N, W)."""
        return self.encoder(source, source != self.pad_id)
