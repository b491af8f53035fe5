"""Token, position and type embeddings."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnorm.errors import DataError
from attnorm.models.config import EncoderConfig, GPTConfig


class Embeddings(nn.Module):
    """Token embedding + position embedding (+ type embedding), an optional LayerNorm, then dropout.

    tokens: gives each token its state, (B, N) -> (B, N, W): nn.Embedding, or a module like it.
    limit: the key of `shape` with the number of positions, such as "max_source".
    shape.positions: "learned" (a table with so many rows) or "sinusoidal" ("Attention Is All You Need", Sec. 3.5).
    With sinusoidal positions, the token embedding is scaled by sqrt(width), so that both terms have a similar
    magnitude. With any other value, the embedding does not depend on positions.
    shape.type_vocab_size: number of token types; 0 for none.
    """

    waves: Tensor | None

    def __init__(self, tokens: nn.Module, limit: str, shape: EncoderConfig | GPTConfig):
        super().__init__()
        width = shape.d_model
        self.tokens: Any = tokens  # output layers may share the weight of an nn.Embedding
        self.limit, self.max_positions = limit, getattr(shape, limit)
        self.positions = nn.Embedding(self.max_positions, width) if shape.positions == "learned" else None
        self.scale = math.sqrt(width) if shape.positions == "sinusoidal" else 1.0
        waves = sinusoids(self.max_positions, width) if shape.positions == "sinusoidal" else None
        self.register_buffer("waves", waves, persistent=False)
        self.types = nn.Embedding(shape.type_vocab_size, width) if shape.type_vocab_size else None
        self.norm = nn.LayerNorm(width, shape.norm_eps) if shape.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(shape.dropout)

    def forward(
        self, ids: Tensor, offset: int = 0, positions: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor:
        """ids, int (B, N) -> states (B, N, W).

        positions: int (B, N), the position of each token. None: consecutive positions, starting at `offset`.
        types:     int (B, N), the type of each token. None: type 0.

        Raises DataError for a position beyond the table, and ValueError for types if the model has no token types.
        """
        x = self.tokens(ids) * self.scale
        table = self.waves if self.positions is None else self.positions.weight
        if table is not None:
            last = offset + ids.shape[1]
            if positions is not None:  # the values can only be too large if the row is longer than the table
                last = ids.shape[1] if ids.shape[1] <= self.max_positions else int(positions.max()) + 1
            if last > self.max_positions:
                key, least = f"model.{self.limit}={self.max_positions}", f"allowed: at least {last}"
                raise DataError(f"{key}: {least}, the tokens of a text of the data; or cut the texts")
            x = x + (table[offset:last] if positions is None else F.embedding(positions, table))
        if self.types is not None:
            x = x + (self.types.weight[0] if types is None else self.types(types))
        elif types is not None:
            raise ValueError("types: this model has no token types (model.type_vocab_size=0); allowed is None")
        return self.dropout(self.norm(x))


def sinusoids(count: int, width: int) -> Tensor:
    """sin and cos of position / 10000 ** (2 i / width), interleaved, float (count, width)."""
    angles = torch.arange(count)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]
