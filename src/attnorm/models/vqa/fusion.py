"""Combines several views of an image, each with the boxes of one detector, into one set of boxes."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnorm.attention.build import build_site_normalizer, build_site_prior, build_site_scorer
from attnorm.attention.masking import Mask
from attnorm.attention.multihead import MultiHeadAttention
from attnorm.attention.normalizers.base import upcast
from attnorm.errors import DataError
from attnorm.models.encoder import site_log_prior
from attnorm.models.vqa.config import VqaModelConfig

View = tuple[Tensor, Tensor, Tensor | None]  # features (B, M, D), present bool (B, M), geometry (B, M, 4)
NUM_FREQUENCIES = 5  # of the encoding of a box position; each is twice the previous one


class Boxes(nn.Module):
    """norm(A f + B w(g)) of a box with the features f and the geometry g, where w is `waves`."""

    def __init__(self, features: int, shape: VqaModelConfig):
        super().__init__()
        self.features = nn.Linear(features, shape.d_model)
        self.place = nn.Linear(8 * NUM_FREQUENCIES, shape.d_model, bias=False) if shape.geometry else None
        self.norm, self.dropout = nn.LayerNorm(shape.d_model), nn.Dropout(shape.dropout)

    def forward(self, features: Tensor, geometry: Tensor | None) -> Tensor:
        """features (B, M, D), geometry (B, M, 4) -> (B, M, W). Raises ValueError if geometry is used but missing."""
        x = self.features(features)
        if self.place is not None:
            if geometry is None:
                raise DataError("geometry=True: this view has no box positions; use geometry=False")
            x = x + self.place(sinusoidal_encoding(geometry))
        return self.dropout(self.norm(x))


def sinusoidal_encoding(geometry: Tensor) -> Tensor:
    """Sines and cosines of the centers and sizes of boxes, (B, M, 4) as x1 y1 x2 y2 -> (B, M, 8 NUM_FREQUENCIES).

    The longest wavelength is four times the image size. With this encoding, a dot product of queries and keys can
    compare the positions of boxes, because cos a cos b + sin a sin b = cos(a - b). With the coordinates themselves it
    cannot.
    """
    first, last = upcast(geometry).chunk(2, dim=-1)
    frequencies = math.pi / 2 * 2 ** torch.arange(NUM_FREQUENCIES, dtype=first.dtype, device=first.device)
    angles = (torch.cat([(first + last) / 2, last - first], -1).unsqueeze(-1) * frequencies).flatten(-2)
    return torch.cat([angles.sin(), angles.cos()], -1).to(geometry.dtype)


class Fusion(nn.Module):
    """Combines the views and normalizes the result: norm(x) of boxes x.

    fusion="single" uses the boxes of the first view, the primary one. "concat" uses those of all views. "attention"
    ("Doubly-Normalized Attention", section on visual question answering) returns

    norm(x_i + sum_j w_ij v_j) of the primary's boxes x_i, which attend to the boxes of all other views at the site
    "fusion". The output has as many boxes as the primary view. A column step sums over the boxes that are present.

    The three variants differ only in this sum. All of them end with the norm. If no other box is present, the sum is
    exactly 0, including the bias of its projection. So attention without other views equals "single" bit for bit.

    attention:   the tables of conf/attention/*.yaml.
    view_widths: the width of each view's features.
    view_boxes:  the maximum number of boxes of each view.

    Raises ValueError if the variant requires more views. The order of the boxes in a view has no effect, except for a
    prior that depends on positions (t5, alibi, learned). Such a prior sees the other views concatenated.
    """

    def __init__(self, shape: VqaModelConfig, attention: dict, view_widths: Sequence[int], view_boxes: Sequence[int]):
        super().__init__()
        kind, width, heads = shape.fusion, shape.d_model, shape.fusion_heads
        assert len(view_widths) == len(view_boxes) and kind != "none"
        least = 2 if kind == "attention" else 1
        if len(view_widths) < least:
            raise ValueError(
                f"fusion={kind!r}: requires at least {least} views of an image, but the data has {len(view_widths)}"
            )
        used = 1 if kind == "single" else len(view_widths)
        self.kind, self.view_boxes = kind, list(view_boxes[:used])
        self.views = nn.ModuleList(Boxes(features, shape) for features in view_widths[:used])
        self.attention: MultiHeadAttention | None = None
        self.prior: nn.Module | None = None
        if kind == "attention":
            normalizer = build_site_normalizer(attention, "fusion", heads)
            scorer = build_site_scorer(attention, "fusion", heads, width // heads)
            self.attention = MultiHeadAttention(width, heads, normalizer, scorer)
            positions = sum(view_boxes[1:])
            self.prior = build_site_prior(
                attention, "fusion", heads=heads, bidirectional=True, positions=positions, width=width
            )
        self.dropout, self.norm = nn.Dropout(shape.dropout), nn.LayerNorm(width)

    @property
    def boxes(self) -> int:
        """The maximum number of boxes of the output."""
        return sum(self.view_boxes) if self.kind == "concat" else self.view_boxes[0]

    def forward(self, views: list[View]) -> tuple[Tensor, Tensor]:
        """The views, the primary one first -> states (B, M, W) and present, bool (B, M), with M = `boxes`.

        A view may hold fewer boxes than its maximum; the missing ones are absent. Features and geometry of absent boxes
        must be finite, but their values have no effect.
        """
        states, present = self.read(views)
        if self.kind == "concat":
            return self.norm(torch.cat(states, 1)), torch.cat(present, 1)
        x, here = states[0], present[0]
        if self.attention is not None:
            others, there = torch.cat(states[1:], 1), torch.cat(present[1:], 1)
            mask = Mask(queries=here, keys=there)
            log_prior = site_log_prior(self.prior, x.shape[1], 0, others, mask)
            found = self.attention(x, others, mask, log_prior=log_prior)
            fused = here & there.any(1, keepdim=True)
            x = x + self.dropout(found.masked_fill(~fused.unsqueeze(-1), 0.0))
        return self.norm(x), here

    def read(self, views: list[View]) -> tuple[list[Tensor], list[Tensor]]:
        """Returns the states (B, M, W) and presence (B, M) of each used view, padded to its maximum number of boxes M.

        Because of the padding, the index of a box among those of all views does not depend on the rest of the batch.
        """
        if len(views) < len(self.views):
            raise DataError(f"fusion={self.kind!r}: expected {len(self.views)} views, but got {len(views)}")
        states, present = [], []
        for number, (boxes, most) in enumerate(zip(self.views, self.view_boxes, strict=True)):
            features, here, geometry = views[number]
            missing = most - features.shape[1]
            if missing < 0:
                raise DataError(f"view {number} has {features.shape[1]} boxes, but the model was built for {most}")
            states.append(F.pad(boxes(features, geometry), (0, 0, 0, missing)))
            present.append(F.pad(here, (0, missing)))
        return states, present
