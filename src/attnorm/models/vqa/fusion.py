"""Several views of an image, the boxes of one detector each, become one set of boxes."""

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
OCTAVES = 5  # waves that tell where a box is, each half as long as the one before


class Boxes(nn.Module):
    """norm(A f + B w(g)) of a box with the features f at the place g; w are `waves`."""

    def __init__(self, features: int, shape: VqaModelConfig):
        super().__init__()
        self.features = nn.Linear(features, shape.d_model)
        self.place = nn.Linear(8 * OCTAVES, shape.d_model, bias=False) if shape.geometry else None
        self.norm, self.dropout = nn.LayerNorm(shape.d_model), nn.Dropout(shape.dropout)

    def forward(self, features: Tensor, geometry: Tensor | None) -> Tensor:
        """features (B, M, D), geometry (B, M, 4) -> (B, M, W). ValueError where geometry counts and there is none."""
        x = self.features(features)
        if self.place is not None:
            if geometry is None:
                raise DataError("geometry=True: this view does not say where its boxes are; use geometry=False")
            x = x + self.place(waves(geometry))
        return self.dropout(self.norm(x))


def waves(geometry: Tensor) -> Tensor:
    """Sines and cosines of a box's middle and size, (B, M, 4) as x1 y1 x2 y2 -> (B, M, 8 OCTAVES), the longest wave
    four times the image. A product of queries and keys can so tell boxes at one place from others, as cos a cos b +
    sin a sin b = cos(a - b); from the numbers themselves it cannot."""
    first, last = upcast(geometry).chunk(2, dim=-1)
    frequencies = math.pi / 2 * 2 ** torch.arange(OCTAVES, dtype=first.dtype, device=first.device)
    angles = (torch.cat([(first + last) / 2, last - first], -1).unsqueeze(-1) * frequencies).flatten(-2)
    return torch.cat([angles.sin(), angles.cos()], -1).to(geometry.dtype)


class Fusion(nn.Module):
    """norm(x) of boxes x: "single": those of the first view, the primary one; "concat": those of all views; or, with
    "attention" ("Doubly-Normalized Attention", its visual question answering),

    norm(x_i + sum_j w_ij v_j) of the primary's boxes x_i, which attend to the boxes of all other views at once, at the
    site "fusion": as many boxes come out as the primary view has, and a column step is over those that are present.

    The three differ by this sum and by nothing else: every kind ends with the norm, and where no other box is present
    the sum is exactly 0, also the bias that projects it. So attention without other views is "single", bit for bit.

    attention: the tables of conf/attention/*.yaml. view_widths: of each view's features; view_boxes: the most boxes
    of each. ValueError where a kind has fewer views than it needs. The order of a view's boxes means nothing, except to
    a prior that asks for places (t5, alibi, learned), which sees the other views one after the other.
    """

    def __init__(self, shape: VqaModelConfig, attention: dict, view_widths: Sequence[int], view_boxes: Sequence[int]):
        super().__init__()
        kind, width, heads = shape.fusion, shape.d_model, shape.fusion_heads
        assert len(view_widths) == len(view_boxes) and kind != "none"
        least = 2 if kind == "attention" else 1
        if len(view_widths) < least:
            raise ValueError(
                f"fusion={kind!r}: needs {least} views of an image or more, the data has {len(view_widths)}"
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
        """The most boxes that come out."""
        return sum(self.view_boxes) if self.kind == "concat" else self.view_boxes[0]

    def forward(self, views: list[View]) -> tuple[Tensor, Tensor]:
        """The views, the primary one first -> states (B, M, W) and present, bool (B, M), M = `boxes`.

        A view may hold fewer boxes than its most: those that are not there are absent. Features and geometry have to be
        finite also where a box is absent; what they are there does not count.
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
        """States (B, most, W) and presence (B, most) of the boxes of each view that is used, padded to its most boxes:
        so the place of a box among those of all views does not depend on what else is in its batch."""
        if len(views) < len(self.views):
            raise DataError(f"fusion={self.kind!r}: expected {len(self.views)} views, got {len(views)}")
        states, present = [], []
        for number, (boxes, most) in enumerate(zip(self.views, self.view_boxes, strict=True)):
            features, here, geometry = views[number]
            missing = most - features.shape[1]
            if missing < 0:
                raise DataError(f"view {number} has {features.shape[1]} boxes, the model was made for {most}")
            states.append(F.pad(boxes(features, geometry), (0, 0, 0, missing)))
            present.append(F.pad(here, (0, missing)))
        return states, present
