"""Combines several views of an image, each with the boxes of one detector, into one set of boxes."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnorm.attention.masking import Mask
from attnorm.attention.multihead import MultiHeadAttention
from attnorm.attention.normalizers.base import upcast
from attnorm.attention.priors import Sum
from attnorm.attention.site import Site
from attnorm.errors import DataError
from attnorm.models.config import VqaModelConfig

View = tuple[Tensor, Tensor, Tensor | None]  # features (B, M, D), present bool (B, M), geometry (B, M, 4)
NUM_FREQUENCIES = 5  # of the encoding of a box position; each is twice the previous one


class Boxes(nn.Module):
    """norm(A f + B w(g)) of a box with the features f and the geometry g, where w is `sinusoidal_encoding`."""

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


def cross_attention(shape: VqaModelConfig, attention: dict, n_keys: int) -> tuple[MultiHeadAttention, Sum | None]:
    """Builds the attention of the primary's boxes to at most `n_keys` boxes of other views, and its prior, if any."""
    width, heads = shape.d_model, shape.fusion_heads
    prior = Site(attention, "fusion").prior(heads=heads, bidirectional=True, positions=n_keys, width=width)
    return Site(attention, "fusion").layer(width, heads), prior


class ViewAttention(nn.Module):
    """The attention of the primary's boxes to the boxes of one other view."""

    def __init__(self, shape: VqaModelConfig, attention: dict, n_keys: int):
        super().__init__()
        self.attention, self.prior = cross_attention(shape, attention, n_keys)

    def forward(self, x: Tensor, here: Tensor, others: Tensor, others_present: Tensor) -> Tensor:
        """What the boxes x find among `others`; see `_attend`."""
        return _attend(self.attention, self.prior, x, here, others, others_present)


class Fusion(nn.Module):
    """Combines the views and normalizes the result: norm(x) of boxes x.

    fusion="single" uses the boxes of the first view, the primary one. "concat" uses those of all views. "attention"
    ("Doubly-Normalized Attention", section on visual question answering) returns

    norm(x_i + sum_j w_ij v_j) of the primary's boxes x_i, which attend to the boxes of all other views at the site
    "fusion". The output has as many boxes as the primary view. A column step sums over the boxes that are present.

    With fusion_views="joint", one attention has the boxes of all other views as keys, and the sum is over all of them.
    With "per_view", each other view has an attention with parameters of its own, and the sums of all views are added.
    The paper does not say which one it used. Its Figure 1 shows a bound of 1/100 on the attention that a box receives.
    With 100 boxes per view, this is the bound of dnas with "per_view"; with two other views, that of "joint" is 1/200.

    The three variants differ only in this sum. All of them end with the norm. If no other box is present, the sum is
    exactly 0, including the bias of its projection. So attention without other views equals "single" bit for bit.

    attention:   the tables of conf/attention/*.yaml.
    view_widths: the width of each view's features.
    view_boxes:  the maximum number of boxes of each view.

    Raises ValueError if the variant requires more views. The order of the boxes in a view has no effect, except for a
    prior that depends on positions (t5, alibi, learned). Such a prior sees the keys of its attention: with "joint", the
    boxes of the other views one view after the other.
    """

    def __init__(self, shape: VqaModelConfig, attention: dict, view_widths: Sequence[int], view_boxes: Sequence[int]):
        super().__init__()
        kind, width = shape.fusion, shape.d_model
        assert len(view_widths) == len(view_boxes) and kind != "none"
        least = 2 if kind == "attention" else 1
        if len(view_widths) < least:
            raise ValueError(
                f"fusion={kind!r}: requires at least {least} views of an image, but the data has {len(view_widths)}"
            )
        used = 1 if kind == "single" else len(view_widths)
        self.kind, self.view_boxes = kind, list(view_boxes[:used])
        self.views = nn.ModuleList(Boxes(features, shape) for features in view_widths[:used])
        self.attention: MultiHeadAttention | None = None  # to all other views
        self.prior: Sum | None = None
        self.layers = nn.ModuleList()  # to one other view each
        if kind == "attention" and shape.fusion_views == "joint":
            self.attention, self.prior = cross_attention(shape, attention, sum(view_boxes[1:]))
        elif kind == "attention":
            self.layers.extend(ViewAttention(shape, attention, boxes) for boxes in view_boxes[1:])
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
            others, others_present = torch.cat(states[1:], 1), torch.cat(present[1:], 1)
            x = x + self.dropout(_attend(self.attention, self.prior, x, here, others, others_present))
        elif self.layers:
            each = zip(self.layers, states[1:], present[1:], strict=True)
            outputs = [layer(x, here, others, others_present) for layer, others, others_present in each]
            x = x + self.dropout(torch.stack(outputs).sum(0))
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


def _attend(
    attention: MultiHeadAttention, prior: Sum | None, x: Tensor, here: Tensor, others: Tensor, others_present: Tensor
) -> Tensor:
    """The attention of the boxes x (B, M, W) to `others` (B, M', W): (B, M, W), exactly 0 if no other box is present.

    here: bool (B, M), the present boxes; others_present: bool (B, M'), the present ones among the others.
    """
    mask = Mask(queries=here, keys=others_present)
    log_prior = None if prior is None else prior(x.shape[1], others.shape[1], 0, others, mask)
    output = attention(x, others, mask, log_prior=log_prior)
    fused = here & others_present.any(1, keepdim=True)
    return output.masked_fill(~fused.unsqueeze(-1), 0.0)
