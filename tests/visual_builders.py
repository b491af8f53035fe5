"""Small models that answer questions about images, with questions and views for them."""

import math

import reference
import torch
from builders import PAD, roughen
from tolerance import tolerance

from attnorm.attention.normalizers.shared import key_bias
from attnorm.models.config import VqaModelConfig
from attnorm.models.initialize import initialize
from attnorm.models.vqa.fusion import Fusion

VISUAL_SITES = ("fusion", "encoder", "guided")
WIDTHS, MOST = [5, 3, 4], [4, 3, 5]  # of the features of each view, and its most boxes
HERE = [  # the present boxes of each view, image by image
    [[0, 1, 2, 3], [0, 2, 3], [1], []],
    [[0, 1, 2], [1, 2], [0, 2], [0]],
    [[0, 1, 2, 3, 4], [0, 4], [], [1, 2]],
]
LENGTHS = [5, 2, 4, 1]  # tokens of each question
VOCABULARY, ANSWERS, MAX_QUESTION = 9, 6, 6
SIZES = {"d_model": 8, "word_width": 6, "hidden": 10, "n_heads": 2, "ffn_dim": 12, "max_question": MAX_QUESTION}
TIGHT = {"rtol": 1e-10, "atol": 1e-10}
CLOSE = tolerance(
    torch.float32, depth=5, size=SIZES["ffn_dim"]
)  # a fusion and two layers for each of question and boxes


def visual_shape(**settings):
    return VqaModelConfig(**{"fusion": "attention", **SIZES, "dropout": 0.0, **settings})


def visual_tables(normalizer="softmax", priors=(), scorer="scaled_dot", options=None, only=None):
    """Attention tables with this normalizer, these priors and this scorer at every site, or at site `only`."""
    at = [site for site in VISUAL_SITES if only in (None, site)]
    return {
        **{site: normalizer if site in at else "softmax" for site in VISUAL_SITES},
        "prior": {site: list(priors) if site in at else [] for site in VISUAL_SITES},
        "scorer": {site: scorer if site in at else "scaled_dot" for site in VISUAL_SITES},
        "options": options or {},
    }


def visual_model(kind, normalizer="softmax", *, tables=None, widths=WIDTHS, most=MOST, seed=0, **settings):
    """A new float32 model with its initial parameters."""
    tables = tables or visual_tables(normalizer)
    return kind(visual_shape(**settings), tables, VOCABULARY, PAD, ANSWERS, widths, most, seed=seed)


def rough_visual(kind, normalizer="softmax", dtype=torch.float64, **settings):
    return roughen(visual_model(kind, normalizer, **settings), dtype=dtype, seed=7)


def rough_module(module, dtype=torch.float64, noise=0.3):
    """A part of a model with initial parameters and noise."""
    initialize(module, 0)
    return roughen(module, noise, dtype)


def rough_fusion(kind="attention", normalizer="softmax", dtype=torch.float64, tables=None, **settings):
    """The fusion of three views with initial parameters and noise."""
    shape = visual_shape(fusion=kind, **settings)
    return rough_module(Fusion(shape, tables or visual_tables(normalizer), WIDTHS, MOST), dtype)


def boxes_by_formula(fusion, views):
    """The states of the boxes of each view, by their formula."""
    found = []
    for boxes, (features, _, place) in zip(fusion.views, views, strict=False):
        x1, y1, x2, y2 = place.unbind(-1)
        numbers = [(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1]
        turns = [number * math.pi * turn for number in numbers for turn in (0.5, 1, 2, 4, 8)]
        place = torch.stack([turn.sin() for turn in turns] + [turn.cos() for turn in turns], -1)
        x = features @ boxes.features.weight.T + boxes.features.bias + place @ boxes.place.weight.T
        found.append(normed(x, boxes.norm))
    return found


def questions():
    """int (4, 5), padded at the end."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(PAD + 1, VOCABULARY, (len(LENGTHS), max(LENGTHS)), generator=generator)
    return ids.masked_fill(torch.arange(max(LENGTHS)) >= torch.tensor(LENGTHS)[:, None], PAD)


def image_views(dtype=torch.float64, here=HERE):
    """features, present, geometry of each view; what is at absent boxes is not 0."""
    found = []
    for number, (width, most, images) in enumerate(zip(WIDTHS, MOST, here, strict=True)):
        generator = torch.Generator().manual_seed(number)
        features = torch.randn(len(images), most, width, generator=generator, dtype=torch.float64)
        corners = torch.rand(len(images), most, 4, generator=generator, dtype=torch.float64)
        geometry = torch.cat([corners[..., :2] / 2, (1 + corners[..., 2:]) / 2], -1)
        present = torch.zeros(len(images), most, dtype=torch.bool)
        for row, boxes in enumerate(images):
            present[row, boxes] = True
        found.append((features.to(dtype), present, geometry.to(dtype)))
    return found


def chosen(views, row, boxes=None):
    """One image, of each view only the present boxes, or those of `boxes` (a list of indices a view)."""
    boxes = boxes or [present[row].nonzero().flatten() for _, present, _ in views]
    return [tuple(part[row : row + 1, which] for part in view) for view, which in zip(views, boxes, strict=True)]


def rows_of(views, rows):
    return [tuple(part[rows] for part in view) for view in views]


def reordered(views, only=None, seed=0):
    """The same boxes in another order, with the order of each view; `only`: of this view, else of all."""
    orders = []
    for number, (_, present, _) in enumerate(views):
        generator = torch.Generator().manual_seed(seed + number)
        order = torch.randperm(present.shape[1], generator=generator)
        orders.append(order if only in (None, number) else torch.arange(present.shape[1]))
    return [tuple(part[:, order] for part in view) for view, order in zip(views, orders, strict=True)], orders


def masked(views, from_view=1):
    """The same, where every box of the later views is absent."""
    return [*views[:from_view], *((x, torch.zeros_like(here), place) for x, here, place in views[from_view:])]


def as_floats(views):
    return [(x.float(), here, place.float()) for x, here, place in views]


def attend_by_loops(layer, name, x, memory, queries, keys):
    """A MultiHeadAttention on x (B, N, W) and memory (B, M, W), by the loops of `reference`."""

    def split(y):
        return y.unflatten(-1, (layer.heads, -1)).transpose(1, 2)

    q = split(x @ layer.query.weight.T + layer.query.bias)
    k, v = (split(y) for y in (memory @ layer.key_value.weight.T + layer.key_value.bias).chunk(2, -1))
    allowed = reference.allowed_pairs(len(x), x.shape[1], memory.shape[1], queries, keys)
    v_mix = layer.normalizer.hybrid_weight() if name == "hnas" else None
    context = reference.attend(name, q, k, v, allowed, hybrid_weight=v_mix).transpose(1, 2).flatten(2)
    return context @ layer.output.weight.T + layer.output.bias


def normed(x, layer):
    """A LayerNorm by its formula."""
    x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + layer.eps).sqrt() * layer.weight + layer.bias


def gru_by_loops(gru, vectors):
    """The states (B, T, W) of a GRU of one layer, word by word: torch's formula."""
    (w_r, w_z, w_n), (b_r, b_z, b_n) = gru.weight_ih_l0.chunk(3), gru.bias_ih_l0.chunk(3)
    (u_r, u_z, u_n), (c_r, c_z, c_n) = gru.weight_hh_l0.chunk(3), gru.bias_hh_l0.chunk(3)
    h, states = vectors.new_zeros(len(vectors), gru.hidden_size), []
    for x in vectors.unbind(1):
        reset = (x @ w_r.T + b_r + h @ u_r.T + c_r).sigmoid()
        update = (x @ w_z.T + b_z + h @ u_z.T + c_z).sigmoid()
        new = (x @ w_n.T + b_n + reset * (h @ u_n.T + c_n)).tanh()
        h = (1 - update) * new + update * h
        states.append(h)
    return torch.stack(states, 1)


def average_by_loops(states, logits, real):
    """sum_i w_i x_i with w the softmax over the real i, and w; 0 where none is real."""
    vectors, weights = [], []
    for row in range(len(states)):
        each = [logit.exp() if here else logit * 0 for logit, here in zip(logits[row], real[row].tolist(), strict=True)]
        total = sum(each) if real[row].any() else 1
        weights.append(torch.stack([one / total for one in each]))
        vectors.append(sum(w * x for w, x in zip(weights[-1], states[row], strict=True)))
    return torch.stack(vectors), torch.stack(weights)


def dense_from(number, monkeypatch):
    """From so many pairs of a query and a key on, attention takes its linear-memory path."""
    monkeypatch.setitem(key_bias.DENSE_UP_TO, "cpu", number)
