"""HNAS from one matrix of exponentials equals its formula, with all derivatives."""

import pytest
import torch
from reference import HEADS, make_qkv, randn
from torch.testing import assert_close

from attnorm.attention import Mask, build_normalizer
from attnorm.attention.normalizers.hnas import HNAS
from attnorm.attention.normalizers.shared import hybrid_attention

pytestmark = pytest.mark.numerical

REAL = torch.arange(6) < torch.tensor([[4], [6]])
MASKS = {
    "none": None,
    "padding": Mask(REAL, REAL),
    "nothing real": Mask(*(torch.zeros(2, 6, dtype=torch.bool),) * 2),
    "pairs per head": torch.arange(2 * HEADS * 36).reshape(2, HEADS, 6, 6) % 5 > 0,
    "pairs": torch.arange(36).reshape(6, 6) % 7 > 1,
}


def both(q, k, v, mask, monkeypatch, options):
    """Output and gradients as a layer computes them, and by the formula."""
    inputs, found = [x.detach().requires_grad_() for x in (q, k, v)], []
    module = build_normalizer("hnas", start=0.3, **options).to(q.dtype)
    fast = HNAS.attend_at_once
    for way in (fast, lambda *_: None):
        monkeypatch.setattr(HNAS, "attend_at_once", way)
        out = module.attend(*inputs, mask, ordered=False)
        found.append(
            (out, *torch.autograd.grad(out, [*inputs, *module.parameters()], randn(*out.shape, seed=7).to(out)))
        )
    monkeypatch.setattr(HNAS, "attend_at_once", fast)
    return found


def is_fast(out):
    return "HybridAttention" in out.grad_fn.name()


@pytest.mark.parametrize("at_once", [1, 100, 2**17], ids=["a head", "some heads", "all"])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_output_and_gradients_equal_those_of_the_formula(mask, at_once, monkeypatch):
    monkeypatch.setattr(hybrid_attention, "AT_ONCE", at_once)
    q, k, v = make_qkv(6, 6)
    for options in ({}, {"per": "head", "heads": HEADS}):
        ours, formula = both(q, k, v, mask, monkeypatch, options)
        assert_close(ours, formula)
        assert is_fast(ours[0]) and not is_fast(formula[0])


def test_layouts_of_layers_and_values_of_another_width(monkeypatch):
    q, k, v = (randn(2, n, HEADS, width, seed=width).transpose(1, 2) for n, width in ((3, 4), (5, 4), (5, 7)))
    assert_close(*both(q, k, v, None, monkeypatch, {}))


@pytest.mark.parametrize(("largest", "fast"), [(1, True), (20, True), (22, False), (200, False), (torch.nan, False)])
def test_scores_that_are_too_large_for_exponentials_are_left_to_the_formula(largest, fast, monkeypatch):
    q, k, v = (x.float() for x in make_qkv(6, 6))
    q = q * (largest / (q @ k.mT * q.shape[-1] ** -0.5).abs().max())
    ours, formula = both(q, k, v, MASKS["pairs"], monkeypatch, {})
    assert_close(ours, formula, atol=1e-5, rtol=1e-5, equal_nan=True)
    assert is_fast(ours[0]) == fast


def test_first_and_second_derivatives_equal_finite_differences():
    module = build_normalizer("hnas", start=0.3).double()
    inputs = [x[:1, :1].requires_grad_() for x in make_qkv(3, 3)]
    inputs += [*module.parameters()]
    loss = lambda q, k, v, _: module.attend(q, k, v, MASKS["pairs"][:3, :3], ordered=False)  # noqa: E731
    assert torch.autograd.gradcheck(loss, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(loss, inputs, fast_mode=True)
    anew, by_hand = (torch.autograd.grad(loss(*inputs).sum(), inputs, create_graph=graph) for graph in (True, False))
    assert_close(anew, by_hand)
