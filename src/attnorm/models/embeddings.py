"""Token and position embeddings."""

import math

import torch
from torch import Tensor, nn

from attnorm.models.shape import Shape


class Embeddings(nn.Module):
    """Token embedding + position embedding, then dropout.

    shape.positions: "learned" (a table of `max_positions`) or "sinusoidal" ("Attention Is All You Need", Sec. 3.5; the
    token embedding is then scaled by sqrt(width), so that neither drowns the other).
    """

    def __init__(self, tokens: nn.Embedding, max_positions: int, shape: Shape):
        super().__init__()
        width = tokens.embedding_dim
        self.tokens, self.max_positions = tokens, max_positions
        if shape.positions == "learned":
            self.positions, self.scale = nn.Embedding(max_positions, width), 1.0
        else:
            self.positions, self.scale = None, math.sqrt(width)
            self.register_buffer("waves", sinusoids(max_positions, width), persistent=False)
        self.norm = nn.LayerNorm(width) if shape.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, ids: Tensor, offset: int = 0) -> Tensor:
        """ids, int (B, N), the first at position `offset` -> states (B, N, W)."""
        last = offset + ids.shape[1]
        assert last <= self.max_positions, f"{last} positions, the model has {self.max_positions}"
        table = self.waves if self.positions is None else self.positions.weight
        return self.dropout(self.norm(self.tokens(ids) * self.scale + table[offset:last]))


def sinusoids(count: int, width: int) -> Tensor:
    """sin and cos of position / 10000 ** (2 i / width), interleaved: float (count, width)."""
    angles = torch.arange(count)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]
