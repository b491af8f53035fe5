"""dnas_slack and dnas_slack_prefix: equal to their loops, and to softmax and dnas at their ends.

What every normalizer has to do is checked by the property suite, in test_testing.py.
"""

from functools import partial

import pytest
import reference
import torch
from reference import BATCH, HEADS, randn
from torch.testing import assert_close

from attnorm.attention import build_normalizer
from attnorm.attention.call_context import in_layer

pytestmark = pytest.mark.numerical

NAMES = ("dnas_slack", "dnas_slack_prefix")
VARIANTS = {f"{name}{' per_query' * each}": (name, each) for name in NAMES for each in (False, True)}


def make(variant, dtype=torch.float64, **options):
    """The normalizer, with a b of its own in each head, one above and one below 0."""
    name, per_query = VARIANTS[variant]
    module = in_layer(build_normalizer(name, per_query=per_query, heads=HEADS, **options).to(dtype))
    if not options:
        next(module.parameters()).data = torch.tensor([0.8, -0.5], dtype=dtype)
    return module


def by_hand(variant, b, *given):
    """The weights by loops, differentiable in b (H,), scores and log_prior."""
    name, per_query = VARIANTS[variant]
    formula = partial(reference.dnas_slice, prefix=name.endswith("prefix"), per_query=per_query)
    return reference.weights(formula, *given, numbers=[b])


@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_attend_and_their_gradients_equal_the_loop_written_formula(variant):
    module = make(variant)
    (b,) = module.parameters()
    reference.assert_formula(module, partial(by_hand, variant, b), shift=[*VARIANTS].index(variant))


@pytest.mark.parametrize("variant", VARIANTS)
def test_its_ends_are_softmax_to_the_bit_and_dnas_to_rounding(variant):
    name = variant.split()[0]
    for dtype in (torch.float32, torch.float64):
        scores, log_prior = randn(BATCH, HEADS, 6, 6, seed=3, dtype=dtype), randn(1, 1, 1, 6, seed=4, dtype=dtype)
        for mask in (None, torch.ones(6, 6, dtype=torch.bool).tril()):
            dnas = in_layer(build_normalizer(name.replace("_slack", "")))(scores, mask, log_prior=log_prior)
            low = make(variant, dtype, fixed=-1e4)(scores, mask, log_prior=log_prior)
            assert_close(low, dnas, rtol=0, atol=8 * torch.finfo(dtype).eps)  # scores up to about 4 are rounded twice
            high = make(variant, dtype, fixed=1e4)(scores, mask, log_prior=log_prior)
            softmax = build_normalizer("softmax")(scores, mask, log_prior=log_prior)
            if "per_query" not in variant:
                assert torch.equal(high, softmax)
            elif mask is None:  # N is the same for all keys
                assert_close(high, softmax, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-14)


@pytest.mark.parametrize("variant", VARIANTS)
def test_scores_of_ten_thousand_give_the_weights_of_float64(variant):
    for constant in (-1e4, 0.0, 1e4):
        scores = 1e3 * randn(BATCH, HEADS, 5, 6, seed=3, dtype=torch.float32) + constant
        found, expected = make(variant, torch.float32)(scores), make(variant)(scores.double())
        assert_close(found.double(), expected, rtol=0, atol=2e-3)


def test_lemma_1_holds_for_the_share_of_the_real_queries_and_not_without_it():
    """sum_i w_ij >= sigmoid(c_j - b) / M; dnas has 1 / M."""
    for seed, factor in enumerate((1.0, 5.0, 30.0)):
        scores = factor * randn(BATCH, HEADS, 6, 9, seed=seed)
        mass = build_normalizer("dnas_slack", fixed=0.5).double()(scores).sum(-2)
        assert (mass >= (scores.logsumexp(-2) - 0.5).sigmoid() / 9 - 1e-12).all()
    scores[..., 0] = -50.0  # a key that no query wants
    assert (build_normalizer("dnas_slack", fixed=0.5).double()(scores).sum(-2)[..., 0] < 1e-9).all()
