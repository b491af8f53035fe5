"""A stack of encoder layers."""

from typing import Any

from torch import Tensor, nn

from attnorm.attention.banks import share_vocabulary
from attnorm.attention.masking import Mask
from attnorm.attention.priors import positions_in
from attnorm.attention.site import Site
from attnorm.models.config import EncoderConfig
from attnorm.models.embeddings import Embeddings
from attnorm.models.layers import EncoderLayer


class Encoder(nn.Module):
    """Embeddings, `encoder_layers` layers, and a final norm if the layers are pre-norm.

    sites:     the only attention site, which is bidirectional. token_sites: those with a vocabulary for banks.
    self_sites: those of self-attention, for exclusive attention.
    attention: resolved tables (`attnorm.attention.table_form`).
    tokens:    the token embedding, which other modules may share.
    """

    interface = "encoder"
    Config = EncoderConfig
    sites = {"encoder": False}  # noqa: RUF012
    token_sites = ("encoder",)
    self_sites = ("encoder",)

    def __init__(self, shape: EncoderConfig, attention: dict, tokens: nn.Module):
        super().__init__()
        self.embeddings = Embeddings(tokens, "max_source", shape)
        layers = range(shape.encoder_layers)
        self.layers = nn.ModuleList(EncoderLayer(shape, attention, "encoder", layer) for layer in layers)
        share_vocabulary(self.layers, tokens)
        self.norm = nn.LayerNorm(shape.d_model, shape.norm_eps) if shape.norm_first else nn.Identity()
        self.prior = Site(attention, "encoder").prior(
            heads=shape.n_heads, bidirectional=True, positions=shape.max_source, width=shape.d_model
        )

    @classmethod
    def site_layers(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """The number of layers at each site, from the keys of `TransformerConfig`."""
        return {"encoder": settings.get("encoder_layers")}

    def forward(
        self,
        ids: Tensor,
        real: Tensor,
        segments: Tensor | None = None,
        types: Tensor | None = None,
        **facts: Tensor | None,
    ) -> Tensor:
        """ids, int (B, N) -> states (B, N, W).

        real:     bool (B, N), False at padding.
        segments: int (B, N), one run of equal numbers for each text in a packed row. Attention stays within a text, and
                  positions restart at 0 in each text, so the states are the same as if each text were encoded alone.
        types:    int (B, N), the token types. None: all 0.
        facts:    what else the caller knows of the input, for the priors that need it (`attnorm.attention.priors`).
        """
        mask = Mask(queries=real, keys=real, segments=segments)
        positions = None if segments is None else positions_in(segments, real)
        x = self.embeddings(ids, positions=positions, types=types)
        length = ids.shape[1]
        log_prior = None if self.prior is None else self.prior(length, length, 0, x, mask, **facts)
        for layer in self.layers:
            x = layer(x, mask, log_prior)
        return self.norm(x)
