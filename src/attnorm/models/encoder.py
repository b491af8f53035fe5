"""A stack of encoder layers."""

import torch
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
        self.prior = build_site_prior(attention, site, shape.heads, bidirectional=True)

    def forward(self, ids: Tensor, real: Tensor) -> Tensor:
        """ids, int (B, N); real, bool (B, N), False at padding -> states (B, N, W)."""
        mask = Mask(queries=real, keys=real)
        x = self.embeddings(ids)
        log_prior = site_log_prior(self.prior, ids.shape[1], ids.shape[1], 0, ids.device)
        for layer in self.layers:
            x = layer(x, mask, log_prior)
        return self.norm(x)


def site_log_prior(
    prior: nn.Module | None, n_queries: int, n_keys: int, query_offset: int, device: torch.device
) -> Tensor | None:
    """log u of a stack's prior, computed once for all its layers."""
    return None if prior is None else prior(n_queries, n_keys, query_offset, device)
