"""A stack of encoder layers."""

from torch import Tensor, nn

from attnorm.attention.build import build_site_prior
from attnorm.attention.masking import Mask
from attnorm.models.embeddings import Embeddings
from attnorm.models.layers import EncoderLayer
from attnorm.models.shape import Shape


class Encoder(nn.Module):
    """Embeddings, `encoder_layers` layers, and a final norm when the layers are pre-norm."""

    def __init__(self, shape: Shape, attention: dict, tokens: nn.Embedding, site: str = "encoder"):
        super().__init__()
        self.embeddings = Embeddings(tokens, shape.max_source, shape)
        self.layers = nn.ModuleList(EncoderLayer(shape, attention, site) for _ in range(shape.encoder_layers))
        self.norm = nn.LayerNorm(shape.width) if shape.norm == "pre" else nn.Identity()
        self.prior = build_site_prior(
            attention, site, heads=shape.heads, bidirectional=True, positions=shape.max_source, width=shape.width
        )

    def forward(self, ids: Tensor, real: Tensor) -> Tensor:
        """ids, int (B, N); real, bool (B, N), False at padding -> states (B, N, W)."""
        mask = Mask(queries=real, keys=real)
        x = self.embeddings(ids)
        log_prior = site_log_prior(self.prior, ids.shape[1], 0, x, mask)
        for layer in self.layers:
            x = layer(x, mask, log_prior)
        return self.norm(x)


def site_log_prior(
    prior: nn.Module | None, n_queries: int, query_offset: int, key_states: Tensor, mask: Mask
) -> Tensor | None:
    """log u of a stack's prior, computed once for all its layers from the states (B, M, W) behind its keys."""
    return None if prior is None else prior(n_queries, key_states.shape[1], query_offset, key_states, mask)
