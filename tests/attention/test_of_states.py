"""forgetting, stick_breaking, selective, asentmax: their formulas, and layers with padding, packed texts and a cache.

The formulas are written a second time as loops over causal self-attention. What every normalizer has to do is checked
by the property suite, in test_testing.py.
"""

import math

import pytest
import torch
from reference import assert_same, leaves, observed, randn
from torch.nn import functional as F
from torch.testing import assert_close

from attnorm.attention import Mask, build_normalizer, build_scorer
from attnorm.attention.multihead import Cache, MultiHeadAttention
from attnorm.attention.normalizers.base import Normalizer
from attnorm.attention.normalizers.entmax import Entmax
from attnorm.attention.normalizers.forgetting import Forgetting
from attnorm.attention.registry import build
from attnorm.attention.site import Site

pytestmark = pytest.mark.numerical

BATCH, HEADS, WIDTH, LENGTH = 2, 2, 8, 6
TIGHT = {"rtol": 1e-9, "atol": 1e-10}
NAMES = ("forgetting", "stick_breaking", "selective", "asentmax")
MIXED = {"members": ["forgetting", "selective", "softmax"], "per": "head"}


def make(name, options=None):
    torch.manual_seed(3)
    module = build(
        "normalizer", name, options or {}, {"heads": HEADS, "width": WIDTH // HEADS, "state_width": WIDTH}
    ).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module


# ------------------------------------------------------------------------------ the formulas at a causal site, as loops


def linear(module, states, count):
    """The linear maps of the states, for each head and position: (B, H, L, count)."""
    return (states @ module.weight.T + module.bias).reshape(*states.shape[:2], HEADS, count).permute(0, 2, 1, 3)


def forgetting(module, scores, states):
    gates = 1 / (1 + (-linear(module.gate, states, 1)[..., 0]).exp())  # (B, H, L)
    rows = []
    for i in range(LENGTH):
        terms = [scores[..., i, j].exp() * gates[..., j + 1 : i + 1].prod(-1) for j in range(i + 1)]
        rows.append([term / sum(terms) for term in terms])
    return rows


def stick_breaking(module, scores, states):
    rows = []
    for i in range(LENGTH):
        left, row = torch.ones_like(scores[..., 0, 0]), [0 * scores[..., 0, 0]]
        for j in reversed(range(i)):
            share = 1 / (1 + (-scores[..., i, j]).exp())
            row.insert(0, share * left)
            left = left * (1 - share)
        rows.append(row)
    return rows


def selective(module, scores, states):
    rows = []
    for i in range(LENGTH):
        masking = [
            sum(
                (scores[:, :1, before, j].clamp(min=0) for before in range(i) if 0 < j < before),
                0 * scores[:, :1, 0, 0],
            )
            for j in range(i + 1)
        ]
        terms = [(scores[..., i, j] - masking[j]).exp() for j in range(i + 1)]
        rows.append([term / sum(terms) for term in terms])
    return rows


def asentmax(module, scores, states):
    raw = linear(module.scale, states, 2)
    beta, gamma = (1 + raw[..., 0].exp()).log(), 2 * raw[..., 1].tanh()
    rows = []
    for i in range(LENGTH):
        factor = 1 + beta[..., i] * math.log(i + 2) ** gamma[..., i]
        x = factor[..., None] * scores[..., i, : i + 1] / 2
        low, high = x.detach().amax(-1, keepdim=True) - 1, x.detach().amax(-1, keepdim=True)
        for _ in range(80):  # the tau with which max(x - tau, 0)^2 sums to 1
            middle = (low + high) / 2
            above = (x.detach() - middle).clamp(min=0).square().sum(-1, keepdim=True) > 1
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        tau = (low + high) / 2
        for _ in range(2):  # steps of Newton's method, for the gradient of tau
            open_ = (x - tau).clamp(min=0)
            tau = tau + (open_.square().sum(-1, keepdim=True) - 1) / (2 * open_.sum(-1, keepdim=True)).detach()
        rows.append((x - tau).clamp(min=0).square().unbind(-1))
    return rows


FORMULAS = {"forgetting": forgetting, "stick_breaking": stick_breaking, "selective": selective, "asentmax": asentmax}


def by_loops(name, module, scores, states):
    rows = FORMULAS[name](module, scores, states)
    padded = [[*row, *[0 * scores[..., 0, 0]] * (LENGTH - len(row))] for row in rows]
    return torch.stack([torch.stack(list(row), -1) for row in padded], -2)


def given_to(module, states):
    return {} if module.needs_states == "none" else {"features": module.features_of(states)}


@pytest.mark.parametrize("name", NAMES)
def test_weights_and_gradients_equal_the_loops(name):
    module = make(name)
    scores, states = leaves(1.5 * randn(BATCH, HEADS, LENGTH, LENGTH, seed=1), randn(BATCH, LENGTH, WIDTH, seed=2))
    weights = module(scores, Mask(causal=True), **given_to(module, states))
    inputs = [scores, states, *module.parameters()]
    assert_same(weights, by_loops(name, module, scores, states), inputs, rtol=0, atol=1e-9)


def test_a_mix_uses_features_that_another_instance_has_made():
    options = {"members": ["forgetting", "forgetting", "softmax"], "per": "head"}
    states = randn(1, LENGTH, WIDTH, seed=2)
    scores, (first, second) = randn(1, HEADS, LENGTH, LENGTH, seed=1), (make("mix", options) for _ in range(2))
    weights = [module(scores, Mask(causal=True), features=first.features_of(states)) for module in (second, first)]
    assert_close(*weights, rtol=0, atol=0)


# ----------------------------------------------------------------------------------------------------------- in a layer


def layer_of(name, options=None):
    layer = MultiHeadAttention(WIDTH, HEADS, make(name.split()[0], options), build_scorer("scaled_dot")).double().eval()
    for number, parameter in enumerate(layer.parameters()):
        with torch.no_grad():
            parameter.copy_(randn(*parameter.shape, seed=20 + number) / 2)
    return layer


LAYERS = {**dict.fromkeys(NAMES, None), "mix": MIXED, "stick_breaking with a value": {"remainder": "value"}}


@pytest.mark.parametrize("name", LAYERS)
def test_cached_decoding_equals_the_full_pass_also_after_beams_are_reordered(name):
    layer, states, order = layer_of(name, LAYERS[name]), randn(3, LENGTH, WIDTH, seed=5), torch.tensor([2, 0, 2])
    moved = torch.cat([states[order, :3], states[:, 3:]], 1)  # the rows are reordered after three steps
    expected, cache = layer(moved, moved, Mask(causal=True)), Cache(grows=True)
    for place in range(LENGTH):
        if place == 3:
            cache.select(order)
        state = (states if place < 3 else moved)[:, place : place + 1]
        out = layer(state, state, cache=cache)
        if place >= 3:
            assert_close(out, expected[:, place : place + 1], **TIGHT)


@pytest.mark.parametrize("name", ["forgetting", "asentmax"])
def test_cached_cross_attention_computes_the_features_of_the_memory_once(name):
    layer, states, memory = layer_of(name), randn(2, 3, WIDTH, seed=5), randn(2, 5, WIDTH, seed=6)
    expected, cache = layer(states, memory), Cache(grows=False)
    for place in range(3):
        out = layer(states[:, place : place + 1], memory if place == 0 else torch.nan * memory, cache=cache)
        assert_close(out, expected[:, place : place + 1], **TIGHT)


@pytest.mark.parametrize("name", LAYERS)
def test_padded_texts_and_packed_texts_are_computed_as_if_they_were_alone(name):
    layer, texts = layer_of(name, LAYERS[name]), [randn(1, length, WIDTH, seed=7 + length) for length in (5, 3, 4)]
    alone = [layer(text, text, Mask(causal=True)) for text in texts]
    packed = torch.cat(texts, 1)
    segments = torch.tensor([[0] * 5 + [1] * 3 + [2] * 4])
    assert_close(layer(packed, packed, Mask(causal=True, segments=segments)), torch.cat(alone, 1), **TIGHT)
    lengths = torch.tensor([5, 3, 4])
    padded = torch.cat([F.pad(text, (0, 0, 0, 5 - text.shape[1]), value=7.0) for text in texts])
    real = torch.arange(5) < lengths[:, None]
    out = layer(padded, padded, Mask(real, real, causal=True))
    assert_close(out[real], torch.cat(alone, 1)[0], **TIGHT)


@pytest.mark.parametrize("name", LAYERS)
def test_observed_weights_make_the_output(name):
    """Without an observer, the layer may take another way to it."""
    layer, states = layer_of(name, LAYERS[name]), randn(2, LENGTH, WIDTH, seed=5)
    seen = observed(layer, states, states, Mask(causal=True))
    context = seen.weights @ seen.v
    if name == "stick_breaking with a value":
        assert_close(seen.outside, 1 - seen.weights.sum(-1, keepdim=True), **TIGHT)
        context = context + seen.outside * layer.normalizer.value[:, None]
    expected = layer(states, states, Mask(causal=True))
    assert_close(layer.output(context.transpose(1, 2).flatten(2)), expected, **TIGHT)


# ------------------------------------------------------------------------------------- the remainder of stick_breaking


def test_the_remainder_goes_to_the_learned_value_also_in_its_gradient():
    layer, states = layer_of("stick_breaking", {"remainder": "value"}), randn(2, LENGTH, WIDTH, seed=5).requires_grad_()
    q, k, v = (
        x.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for x in (layer.query(states), *layer.key_value(states).chunk(2, -1))
    )
    weights = layer.normalizer(q @ k.mT * (WIDTH // HEADS) ** -0.5, Mask(causal=True))
    context = weights @ v + (1 - weights.sum(-1, keepdim=True)) * layer.normalizer.value[:, None]
    expected = layer.output(context.transpose(1, 2).flatten(2))
    out = layer(states, states, Mask(causal=True))
    assert_same(out, expected, [states, *layer.parameters()], rtol=0, atol=1e-9)


def test_a_new_value_changes_nothing_and_dropout_leaves_its_weight_alone():
    plain, layer = (layer_of("stick_breaking", it) for it in (None, {"remainder": "value"}))
    states = randn(1, 4, WIDTH)
    plain.load_state_dict({name: x for name, x in layer.state_dict().items() if name != "normalizer.value"})
    with torch.no_grad():
        layer.normalizer.value.zero_()
    assert torch.equal(layer(states, states, Mask(causal=True)), plain(states, states, Mask(causal=True)))
    torch.nn.init.normal_(layer.normalizer.value)
    layer.train().dropout = plain.train().dropout = 1.0
    value = layer.normalizer.value.flatten()
    outside = observed(layer, states, states, Mask(causal=True)).outside
    expected = layer.output((outside * value.unflatten(0, (HEADS, 1, -1))).transpose(1, 2).flatten(2))
    assert_close(layer(states, states, Mask(causal=True)), expected, **TIGHT)


def test_the_remainder_with_two_maps_and_a_gate():
    """Each map has a value of its own, and they are subtracted like the outputs."""
    torch.manual_seed(0)
    tables = {
        "decoder": "stick_breaking",
        "scorer": {},
        "prior": {},
        "differential": {"decoder": True},
        "gate": {"decoder": "headwise"},
        "options": {"stick_breaking": {"remainder": "value"}},
    }
    layer = Site(tables, "decoder").layer(WIDTH, HEADS).double()
    torch.nn.init.normal_(layer.normalizer.value)
    states = randn(2, LENGTH, WIDTH, seed=5)
    expected = layer(states, states, Mask(causal=True))
    seen = observed(layer, states, states, Mask(causal=True))
    context = seen.weights @ seen.v + seen.outside * layer.normalizer.value[:, None]
    context = context[:, ::2] - 0.5 * context[:, 1::2]  # the initial lambda
    assert_close(layer.output(context.transpose(1, 2).flatten(2)), expected, **TIGHT)


@pytest.mark.parametrize("autocast", [False, True])
def test_long_causal_forgetting_never_builds_the_weights(autocast, monkeypatch):
    """Float32 rounds the sum of the gates of one text, and autocast rounds nothing that float32 does not."""
    module, states = make("forgetting").float(), randn(2, 300, WIDTH, seed=5).float()
    q, k, v = (randn(2, HEADS, 300, 4, seed=seed).float() for seed in (1, 2, 3))
    real, position = torch.arange(300)[None] < 280, torch.arange(300)[None]
    texts = [position // 20, position % 15, position // 250]  # short, with gaps, and a long one
    masks = [Mask(causal=True), Mask(real, real, causal=True)]
    masks += [Mask(real, real, causal=True, segments=segments) for segments in texts]
    masks += [Mask(causal=True, segments=(position >= 250).expand(2, -1))]
    features = module.features_of(states)
    expected = [
        Normalizer.attend(module.double(), *(x.double() for x in (q, k, v)), mask, features=features.double())
        for mask in masks
    ]
    monkeypatch.setattr(Forgetting, "weights", None)
    largest = -features.min() * torch.tensor([300, 280, 20, 20, 250, 250])  # at least the sum of the gates of a text
    tolerances = 4 * torch.finfo(torch.float32).eps * largest * v.abs().max()
    for mask, wanted, atol in zip(masks, expected, tolerances.tolist(), strict=True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = module.float().attend(q, k, v, mask, features=features)
        assert_close(out.double(), wanted, rtol=0, atol=atol)


# -------------------------------------------------------------------------------------------------------- learned alpha


@pytest.mark.parametrize("per", ["layer", "head"])
def test_a_learned_alpha_has_the_weights_of_the_fixed_one_and_the_gradient_of_differences(per):
    module, scores = (
        build_normalizer("entmax", alpha=1.3, learn=per, heads=HEADS).double(),
        randn(1, HEADS, 4, 6, seed=1),
    )
    assert_close(module(scores), Entmax(1.3)(scores), rtol=0, atol=1e-6)  # the parameter begins in float32
    cotangent, count = randn(1, HEADS, 4, 6, seed=2), HEADS if per == "head" else 1
    assert module.a.shape == (count,) == module.learned_scalars()["alpha"].shape
    [found] = torch.autograd.grad(module(scores), module.a, cotangent)
    for head in range(count):
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                module.a[head] += sign * 1e-5
                values.append(float((module(scores) * cotangent).sum()))
                module.a[head] -= sign * 1e-5
        assert abs((values[0] - values[1]) / 2e-5 - float(found[head])) < 1e-6 * max(1, abs(float(found[head])))


def test_float32_is_sufficient_for_every_alpha_that_is_learned():
    scores, cotangent = randn(1, 1, 64, 32, seed=1), randn(1, 1, 64, 32, seed=2)
    for a in (-12.0, -5.0, 0.0):
        exact = build_normalizer("entmax", learn="layer").double()
        torch.nn.init.constant_(exact.a, a)
        wanted = exact(scores)
        [expected] = torch.autograd.grad(wanted, exact.a, cotangent)
        module = exact.float()
        weights = module(scores.float())
        [found] = torch.autograd.grad(weights, module.a, cotangent.float())
        assert_close(weights.double(), wanted, rtol=0, atol=1e-5)
        assert_close(found.double(), expected, rtol=1e-2, atol=0)


def test_gates_over_thousands_of_positions_keep_the_precision_of_float32():
    """The sums of their logarithms reach thousands, where float32 has an absolute error of 1e-4."""
    module = build("normalizer", "forgetting", {}, {"heads": HEADS, "state_width": WIDTH})
    torch.nn.init.constant_(module.gate.bias, -1.0)
    q, k, v = (randn(1, HEADS, 1000, WIDTH, seed=seed, dtype=torch.float32) for seed in range(3))
    features = module.features_of(randn(1, 1000, WIDTH, seed=3, dtype=torch.float32))
    expected = module.attend(q.double(), k.double(), v.double(), Mask(causal=True), features=features.double())
    found = module.attend(q, k, v, Mask(causal=True), features=features)
    assert_close(found.double(), expected, rtol=0, atol=64 * torch.finfo(torch.float32).eps)
