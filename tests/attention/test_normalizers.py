"""softmax, dnas, sinkhorn, hnas and their prefix forms: each equals its loop-written formula, at any size.

What every normalizer has to do (masks, dead rows, permutations, priors, coupling, dtypes) is checked for each of them
by the property suite, in test_testing.py. Here are the formulas, and the properties that the suite does not know.
"""

import pytest
import reference
import torch
from reference import BATCH, HEADS, MASKS, ONE_OF_EACH, make, randn
from torch.testing import assert_close

from attnorm.attention import Mask, MultiHeadAttention, build_normalizer, build_scorer
from attnorm.attention.normalizers.base import LOWEST
from attnorm.attention.normalizers.shared.running_logsumexp import running_logsumexp
from attnorm.attention.registry import NORMALIZERS, build

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
FORMULAS = reference.VARIANTS | reference.PREFIX
SIXTEEN_BITS = (torch.bfloat16, torch.float16)
UNIT_ROUNDOFF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def scores_for(case, factor=1.5, dtype=torch.float64):
    return (factor * randn(BATCH, HEADS, case.n_queries, case.n_keys, seed=3)).to(dtype)


def difference(a, b):
    return (a - b).abs().max()


# ----------------------------------------------------------------------------------------- the formula and its gradient


@pytest.mark.parametrize("variant", FORMULAS)
def test_weights_attend_and_their_gradients_equal_the_loop_written_formula(variant):
    module, name = make(variant), FORMULAS[variant][0]
    v = reference.hybrid_weight_of(variant, module)
    shift = [*FORMULAS].index(variant)
    reference.assert_formula(
        module, lambda *given: reference.weights(name, *given, v), shift=shift, scales=(None, 0.2, 3.0)
    )


# -------------------------------------------------------------------------------------------------- numbers and dtypes


@pytest.mark.parametrize("variant", [*ONE_OF_EACH, "dnas_prefix"])
def test_scores_of_ten_thousand_give_the_right_weights_and_finite_gradients(variant):
    for mask in ("none", "both_sides", "causal_tall"):
        case = MASKS[mask]
        given = scores_for(case, factor=1e4, dtype=torch.float32)
        v = reference.hybrid_weight_of(variant, make(variant))
        expected = reference.exact_weights(FORMULAS[variant][0], given.double(), case.allowed, None, v)
        for dtype, error in ((torch.float64, 1e-9), (torch.float32, 5e-3)):
            module, (scores,) = make(variant, dtype), reference.leaves(given.to(dtype))
            w = module(scores, case.allowed)
            with reference.case(mask, dtype):
                assert_close(w.double(), expected, rtol=error, atol=error)
                assert all(g.isfinite().all() for g in reference.gradients(w, [scores, *module.parameters()]))


@pytest.mark.parametrize("variant", [*ONE_OF_EACH, "dnas_prefix", "hnas_prefix_heads"])
def test_a_constant_added_to_all_scores_changes_nothing_however_large(variant):
    """A masked pair adds nothing to its column, not even where the scores of all others are as low as this."""
    for case in (MASKS["both_sides"], MASKS["random"]):
        module, scores = make(variant), scores_for(case)
        for constant in (-1e4, 1e4):
            assert_close(module(scores + constant, case.allowed), module(scores, case.allowed), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("variant", ONE_OF_EACH)
def test_a_float32_prior_is_not_rounded_to_sixteen_bits(variant):
    """A constant of 100 changes nothing, but rounded to bfloat16 along with the prior it would cost a quarter."""
    module, log_prior = make(variant, torch.float32), randn(1, HEADS, 6, 7, seed=8, dtype=torch.float32)
    for dtype in SIXTEEN_BITS:
        for of_inputs in (dtype, torch.float32):  # those in float32 are rounded by autocast
            q, k, v = reference.make_qkv(6, 7, width=8, dtype=of_inputs)
            with torch.autocast("cpu", dtype, enabled=of_inputs == torch.float32):
                plain, shifted = (module.attend(q, k, v, log_prior=prior) for prior in (log_prior, log_prior + 100))
            assert difference(shifted.double(), plain.double()) <= 4 * UNIT_ROUNDOFF[dtype] * v.abs().max()


@pytest.mark.parametrize("variant", ONE_OF_EACH)
def test_attend_under_autocast_is_within_rounding_of_float64(variant):
    module, exact = make(variant, torch.float32), make(variant)
    for mask, prior in (("none", "key_only"), ("none", "none"), ("both_sides", "key_only"), ("causal", "none")):
        case = MASKS[mask]
        q, k, v = reference.make_qkv(case.n_queries, case.n_keys, width=8)
        log_prior = reference.make_log_prior(prior, case.n_queries, case.n_keys)
        expected = exact.attend(q, k, v, case.argument_of(module), log_prior=log_prior)
        q, k, v, log_prior = (None if x is None else x.float() for x in (q, k, v, log_prior))
        with torch.autocast("cpu", torch.bfloat16):
            out = module.attend(q, k, v, case.argument_of(module), log_prior=log_prior)
        with reference.case(mask, prior):
            assert difference(out.double(), expected) <= 16 * UNIT_ROUNDOFF[torch.bfloat16] * v.abs().max()


# ------------------------------------------------------------------------------------------------------ causal masks


@pytest.mark.parametrize("masked", [{}, {"queries": torch.ones(BATCH, 5, dtype=torch.bool)}], ids=["alone", "padded"])
def test_a_causal_mask_is_refused_exactly_by_normalizers_that_couple_all_queries(masked):
    """`attend`, the weights and a layer refuse it, and name the form for autoregressive sites."""
    q, k, v = reference.make_qkv(5, 5)
    states, mask = randn(BATCH, 5, HEADS * 2), Mask(causal=True, **masked)
    bounded = {f"constrained_{form}": {"upper": 0.5} for form in ("softmax", "sparsemax")}
    few: dict[str, dict] = {"fusedmax": {"lam": 0.3}, **bounded}
    refusing = []
    for name in NORMALIZERS:
        facts = {"heads": HEADS, "width": 2, "state_width": HEADS * 2}
        module = build("normalizer", name, few.get(name, {}), facts).double().eval()
        own = {} if module.needs_states == "none" else {"features": module.features_of(states)}
        to_forward = {"queries": q, **own} if module.needs_queries else own
        layer = MultiHeadAttention(HEADS * 2, HEADS, module, build_scorer("scaled_dot")).double().eval()
        calls = [
            lambda m=module, own=own: m.attend(q, k, v, mask, **own),
            lambda m=module, own=to_forward: m(q @ k.mT, mask, keys=k, scale=1.0, **own),
            lambda m=layer: m(states, states, mask),
        ]
        if module.couples_queries != "all":
            for call in calls:
                assert call().isfinite().all()
            continue
        refusing.append(name)
        instead = f"use softmax or {name}_prefix" if f"{name}_prefix" in NORMALIZERS else "use softmax"
        for call in calls:
            with pytest.raises(
                ValueError, match=rf"Mask\(causal=True\): {type(module).__name__} couples .*; {instead}$"
            ):
                call()
    assert {"dnas", "hnas", "sinkhorn", "em_routing"} <= {*refusing}


def test_a_bank_under_a_causal_mask_is_refused_if_all_queries_are_coupled():
    module = build_normalizer("ot")
    module.couples_queries = "all"
    layer = MultiHeadAttention(8, 2, module, build_scorer("scaled_dot"), bank=build("bank", "templates", {"width": 8}))
    states = torch.randn(2, 3, 8)
    assert layer(states, states).isfinite().all()
    with pytest.raises(ValueError, match=r"Mask\(causal=True\): OptimalTransport couples queries"):
        layer(states, states, Mask(causal=True))


# -------------------------------------------------------------------------------------------------------------- hnas


@pytest.mark.parametrize("start, end", [(0, "softmax"), (1, "dnas")])
def test_hnas_at_its_ends_is_softmax_and_dnas_to_the_bit(start, end):
    hnas = build_normalizer("hnas", start=start, form="clamp").double()
    for mask, prior in (("none", "none"), ("both_sides", "with_holes"), ("dead_rows", "with_holes")):
        case = MASKS[mask]
        scores, log_prior = scores_for(case), reference.make_log_prior(prior, case.n_queries, case.n_keys)
        expected = make(end)(scores, case.allowed, log_prior=log_prior)
        assert torch.equal(hnas(scores, case.allowed, log_prior=log_prior), expected)
        q, k, v = reference.make_qkv(case.n_queries, case.n_keys)
        expected = make(end).attend(q, k, v, case.allowed, log_prior=log_prior)
        assert_close(hnas.attend(q, k, v, case.allowed, log_prior=log_prior), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", [{"start": 0, "form": "clamp"}, {"start": 1, "form": "clamp"}, {"start": 0.5}])
def test_the_hybrid_weight_receives_the_exact_gradient_even_at_its_ends(options):
    hnas = build_normalizer("hnas", **options).double()
    (parameter,) = hnas.parameters()
    q, k, v = reference.make_qkv(4, 5)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    gap = make("dnas")(scores) - make("softmax")(scores)
    slope = 1.0 if options.get("form") == "clamp" else 0.25  # of the sigmoid at 1/2
    for output, gap_of_it in ((hnas(scores), gap), (hnas.attend(q, k, v), gap @ v)):
        (found,) = reference.gradients(output, [parameter])
        wanted = slope * (gap_of_it * randn(*gap_of_it.shape, seed=5)).sum()
        assert wanted.abs() > 1e-3
        assert_close(found.reshape(()), wanted, **TIGHT)


# ------------------------------------------------------------------------------------------------------ prefix forms


@pytest.mark.parametrize("spread", [1, 1e4])
def test_the_running_logsumexp_and_its_gradient_equal_those_of_torch(spread):
    s = (spread * randn(BATCH, HEADS, 7, 5, seed=8)).masked_fill(torch.ones(7, 5, dtype=torch.bool).triu(1), LOWEST)
    s.requires_grad_()
    g = randn(BATCH, HEADS, 7, 5, seed=9).tril()  # nothing uses the sum of a key that no query has seen so far
    actual, expected = running_logsumexp(s), s.logcumsumexp(-2)
    assert_close(actual, expected, **TIGHT)
    found, wanted = (torch.autograd.grad(c, s, g)[0] for c in (actual, expected))
    assert_close(found, wanted, **TIGHT)
