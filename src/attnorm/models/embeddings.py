"""Token, position and type embeddings."""

import math
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnorm.models.config import EncoderConfig


class TokenTable(Protocol):
    """What gives each token its state: nn.Embedding, or a module like it."""

    embedding_dim: int

    def __call__(self, ids: Tensor, /) -> Tensor: ...


class Embeddings(nn.Module):
    """Token embedding + position embedding (+ type embedding), perhaps a LayerNorm, then dropout.

    shape.positions: "learned" (a table of `max_positions`) or "sinusoidal" ("Attention Is All You Need", Sec. 3.5; the
    token embedding is then scaled by sqrt(width), so that neither drowns the other).
    shape.type_vocab_size: token types; 0 for none.
    """

    waves: Tensor

    def __init__(self, tokens: TokenTable, max_positions: int, shape: EncoderConfig):
        super().__init__()
        width = tokens.embedding_dim
        self.tokens: Any = tokens  # output layers may share the weight of an nn.Embedding
        self.max_positions = max_positions
        if shape.positions == "learned":
            self.positions: nn.Embedding | None = nn.Embedding(max_positions, width)
            self.scale = 1.0
        else:
            self.positions, self.scale = None, math.sqrt(width)
            self.register_buffer("waves", sinusoids(max_positions, width), persistent=False)
        self.types = nn.Embedding(shape.type_vocab_size, width) if shape.type_vocab_size else None
        self.norm = nn.LayerNorm(width, shape.norm_eps) if shape.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(shape.dropout)

    def forward(
        self, ids: Tensor, offset: int = 0, positions: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor:
        """ids, int (B, N) -> states (B, N, W).

        positions: int (B, N), of each token; where None the first is at `offset` and the others follow.
        types:     int (B, N), of each token; where None all are of type 0. ValueError in a model without types.
        """
        length, table = ids.shape[1], self.waves if self.positions is None else self.positions.weight
        if positions is None:
            last = offset + length
        else:  # only a row that is longer than the table has to be looked into
            last = length if length <= self.max_positions else int(positions.max()) + 1
        assert last <= self.max_positions, f"{last} positions, the model has {self.max_positions}"
        places = table[offset:last] if positions is None else F.embedding(positions, table)
        x = self.tokens(ids) * self.scale + places
        if self.types is not None:
            x = x + (self.types.weight[0] if types is None else self.types(types))
        elif types is not None:
            raise ValueError("types: this model has no token types (model.type_vocab_size=0); allowed is None")
        return self.dropout(self.norm(x))


def sinusoids(count: int, width: int) -> Tensor:
    """sin and cos of position / 10000 ** (2 i / width), interleaved: float (count, width)."""
    angles = torch.arange(count)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]
