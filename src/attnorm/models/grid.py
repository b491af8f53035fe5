"""Classifies an image by attention over its patches, followed by pooling with learned queries.

Source: "A Mathematical View of Attention Models", Sec. 5 (attention on an image by unfolding, with a grid of queries of
another size) and Eq. 4 (learned queries). Without position embeddings, the scores do not change when the patches are
reordered, because both kinds of attention have the symmetries of Theorem 1.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from attnorm.attention.grid import fold, unfold
from attnorm.attention.masking import Mask
from attnorm.attention.site import Site
from attnorm.models.config import EncoderConfig, Skip
from attnorm.models.initialize import initialize
from attnorm.models.layers import Residual, build_attention, feed_forward
from attnorm.models.pooling import SitePooling
from attnorm.schema import Count, Share

Grid = tuple[Count, Count]


@dataclass(frozen=True, kw_only=True)
class GridConfig:
    """The configuration of `GridClassifier`. Probabilities are in [0, 1).

    patch:      height and width of a patch in pixels; it must divide those of the image.
    d_model:    width of the states, a multiple of `n_heads`.
    layers:     layers of attention over the patches.
    query_grid: rows and columns of the queries of the last layer, each of which starts from the mean of its part of the
                grid; null: the grid of the patches.
    queries:    number of learned queries that pool the last grid.
    positions:  "learned" (an embedding per row and one per column), or "none".
    ffn_dim, norm_first, residual: as in `EncoderConfig`.
    dropout, attention_dropout: dropout probabilities of sublayers, and of attention weights.
    """

    patch: Count
    d_model: Count
    n_heads: Count
    ffn_dim: Count
    layers: Count
    query_grid: Grid | None = None
    queries: Count = 4
    positions: Literal["learned", "none"] = "learned"
    norm_first: bool = True
    residual: Skip = True
    dropout: Share = 0.0
    attention_dropout: Share = 0.0

    def transformer(self, cells: int) -> EncoderConfig:
        """The shape of the layers for a grid of so many cells."""
        return EncoderConfig(
            d_model=self.d_model,
            n_heads=self.n_heads,
            ffn_dim=self.ffn_dim,
            encoder_layers=self.layers,
            max_source=max(2, cells),
            norm_first=self.norm_first,
            residual=self.residual,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
        )


class GridLayer(nn.Module):
    """Attention over the cells of an array, and a feed-forward network, each in a residual.

    layer:      the index of the layer in the stack, from 0.
    query_grid: the size of the output. Its cells start from the means of the parts of the input, and attend to all
                cells of the input. None: self-attention, with an output of the size of the input.
    """

    def __init__(
        self, shape: EncoderConfig, attention: dict, site: str, layer: int = 0, query_grid: Grid | None = None
    ):
        super().__init__()
        self.attention, self.attention_residual = build_attention(shape, attention, site, layer), Residual(shape)
        self.feed_forward, self.feed_forward_residual = feed_forward(shape), Residual(shape)
        self.query_grid = query_grid

    def forward(self, x: Tensor, log_prior: Tensor | None = None) -> Tensor:
        """x (B, h, w, W) -> (B, *query_grid, W). log_prior: broadcastable to (B, H, N, M), for the unfolded cells."""
        start = x if self.query_grid is None else grid_means(x, self.query_grid)
        residual, keys = self.attention_residual, None
        if self.query_grid is not None:
            keys = residual.norm(unfold(x)) if residual.pre else unfold(x)  # as the residual does with the queries
        attended = residual(unfold(start), self.attention, keys, log_prior=log_prior)
        return fold(self.feed_forward_residual(attended, self.feed_forward), start.shape[1:-1])


def grid_means(x: Tensor, grid: Grid) -> Tensor:
    """The means over the parts of an array, in so many rows and columns: (B, h, w, W) -> (B, *grid, W).

    Parts overlap if the size is not a multiple of their number.
    """
    return F.adaptive_avg_pool2d(x.movedim(-1, 1), grid).movedim(1, -1)


def image_patches(pixels: Tensor, size: int) -> Tensor:
    """The pixels of each patch: (B, height, width, C) -> (B, height / size, width / size, size * size * C)."""
    rows, columns = (side // size for side in pixels.shape[1:3])
    return pixels.unflatten(2, (columns, size)).unflatten(1, (rows, size)).transpose(2, 3).flatten(3)


class GridClassifier(nn.Module):
    """Scores of labels from the pixels of an image.

    attention:   resolved tables (`attnorm.attention.table_form`) of the sites "grid" (attention over the patches,
                 `layers` layers) and "pool" (learned queries over the last grid). Neither is autoregressive.
    image_shape: height, width and channels of the images.
    labels:      the number of labels.
    seed:        seed of the initial parameters, see `initialize`.
    """

    interface = "images"
    Config = GridConfig
    sites = {"grid": False, "pool": False}  # noqa: RUF012
    stacks = {"layers": "grid"}  # noqa: RUF012 - the module of this name is the stack at the site "grid"

    def __init__(
        self, shape: GridConfig, attention: dict, image_shape: tuple[int, int, int], labels: int, seed: int = 0
    ):
        super().__init__()
        height, width, channels = image_shape
        rows, columns = height // shape.patch, width // shape.patch
        if height % shape.patch or width % shape.patch:
            raise ValueError(f"patch={shape.patch}: must divide the size of the images, {height} x {width} pixels")
        self.shape, cells = shape, rows * columns
        of_layers = shape.transformer(cells)
        self.patches = nn.Linear(shape.patch**2 * channels, shape.d_model)
        self.rows = nn.Embedding(rows, shape.d_model) if shape.positions == "learned" else None
        self.columns = nn.Embedding(columns, shape.d_model) if shape.positions == "learned" else None
        last = shape.layers - 1
        self.layers = nn.ModuleList(
            GridLayer(of_layers, attention, "grid", layer, shape.query_grid if layer == last else None)
            for layer in range(shape.layers)
        )
        self.prior = Site(attention, "grid").prior(
            heads=shape.n_heads, bidirectional=True, positions=cells, width=shape.d_model
        )
        self.norm = nn.LayerNorm(shape.d_model) if shape.norm_first else nn.Identity()
        pooled = cells if shape.query_grid is None else math.prod(shape.query_grid)
        self.pool = SitePooling(
            shape.d_model, shape.n_heads, shape.queries, attention, "pool", pooled, shape.attention_dropout
        )
        self.dropout = nn.Dropout(shape.dropout)
        self.classifier = nn.Linear(shape.queries * shape.d_model, labels)
        initialize(self, seed)

    @classmethod
    def self_sites_of(cls, settings: dict[str, Any]) -> tuple[str, ...]:
        """The site of self-attention; with a query grid, the queries of its last layer are not its keys."""
        return () if settings.get("query_grid") else ("grid",)

    @classmethod
    def site_layers(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """The number of layers at each site, from the keys of `GridConfig`."""
        return {"grid": settings.get("layers"), "pool": 1}

    def embed(self, pixels: Tensor) -> Tensor:
        """The state of each patch: pixels (B, height, width, C) -> (B, rows, columns, W)."""
        x = self.patches(image_patches(pixels, self.shape.patch))
        if self.rows is not None and self.columns is not None:
            x = x + self.rows.weight[:, None] + self.columns.weight
        return self.dropout(x)

    def classify(self, x: Tensor) -> Tensor:
        """States of patches (B, rows, columns, W) -> scores (B, labels)."""
        embedded = unfold(x)
        cells = embedded.shape[1]
        log_prior = None if self.prior is None else self.prior(cells, cells, 0, embedded, Mask())
        for layer in self.layers:
            assert isinstance(layer, GridLayer)
            if layer.query_grid is not None and self.prior is not None:  # it may depend on the number of queries
                log_prior = self.prior(math.prod(layer.query_grid), cells, 0, embedded, Mask())
            x = layer(x, log_prior)
        pooled = self.pool(unfold(self.norm(x)))  # (B, k, W)
        return self.classifier(self.dropout(pooled.flatten(1)))

    def forward(self, pixels: Tensor) -> Tensor:
        """pixels (B, height, width, C) in [0, 1] -> scores (B, labels)."""
        return self.classify(self.embed(pixels))
