"""Worked numbers and statements of the lecture "Neural Attention Mechanisms" that hold for whole normalizers."""

import pytest
import torch
from reference import randn
from scipy import optimize
from torch.testing import assert_close

from attnorm.attention import build_normalizer

pytestmark = pytest.mark.numerical

SCORES = torch.tensor([-0.3, -1.0, 1.8]).double()  # of the three words "United Nations elections"


def of_row(name, **options):
    """The normalizer as a function of one row of scores (M,)."""
    module = build_normalizer(name, **options)
    return lambda s, **more: module(s.view(1, 1, 1, -1), **more).view(-1)


def test_the_weights_of_the_three_words():
    """softmax(-.3, -1, 1.8) = .10, .05, .85."""
    assert_close(of_row("softmax")(SCORES), torch.tensor([0.10, 0.05, 0.85]).double(), rtol=0, atol=0.0051)


def test_the_largest_score_is_a_linear_program_over_the_simplex():
    """max_j s_j = max_{p in simplex} <p, s>, and argmax is its solution."""
    for row in randn(20, 6, seed=1):
        found = optimize.linprog(-row.numpy(), A_eq=[[1.0] * 6], b_eq=[1.0])
        module = build_normalizer("argmax").eval()
        assert_close(module(row.view(1, 1, 1, -1)).view(-1), torch.from_numpy(found.x), rtol=0, atol=1e-9)
        assert module.value(row.view(1, 1, 1, -1)).item() == row.max() and abs(found.fun + row.max()) < 1e-9


@pytest.mark.parametrize("name", ["constrained_softmax", "constrained_sparsemax"])
def test_fertility_is_used_up_over_the_target_words(name):
    """Bounds that are what earlier target words left of a source word's fertility: no source word exceeds it, and when
    as many target words are written as all fertilities sum to, every source word has been used up exactly."""
    fertility, scores = torch.tensor([1.5, 1.5, 1.0]).double(), 0.3 * randn(4, 3, seed=5) + 0.3 * SCORES
    used, between = torch.zeros(3).double(), 0
    for row in scores:
        p = of_row(name)(row, upper=(fertility - used).clamp(min=0.0))
        assert_close(p.sum(), torch.ones(()).double(), rtol=0, atol=1e-14)
        assert (p <= fertility - used + 1e-14).all()
        between += ((p > 0.05) & (p < fertility - used - 0.05)).sum()
        used = used + p
    assert_close(used, fertility, rtol=0, atol=1e-14)
    assert between > 4  # not only one source word per target word
    free = of_row(name.removeprefix("constrained_"))
    assert (sum(free(row) for row in scores) > fertility + 0.5).any()  # without bounds, one word gets too much
