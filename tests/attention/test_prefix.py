"""dnas_prefix and hnas_prefix: equal to their loop-written formula, blind to the future, the same step by step.

What every normalizer has to do is checked by the property suite, in test_testing.py.
"""

from decimal import Decimal

import pytest
import reference
import torch
from reference import BATCH, HEADS, MASKS, case, in_turn, randn
from torch.testing import assert_close

from attnorm.attention import build_normalizer
from attnorm.attention.normalizers._running import running_logsumexp
from attnorm.attention.normalizers.base import LOWEST

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
VARIANTS = {
    "dnas": ("dnas_prefix", {}),
    "hnas_sigmoid": ("hnas_prefix", {"start": 0.3}),
    "hnas_clamp": ("hnas_prefix", {"start": 0.7, "form": "clamp"}),
    "hnas_heads": ("hnas_prefix", {"per": "head", "heads": HEADS}),
}


def make(variant, dtype=torch.float64):
    name, options = VARIANTS[variant]
    module = build_normalizer(name, **options).to(dtype)
    if variant == "hnas_heads":
        with torch.no_grad():
            module.hybrid.copy_(torch.linspace(-1, 2, HEADS, dtype=dtype))
    return module


# ------------------------------------------------------------------------------------------------- a second writing


def prefix_slice(scores, allowed, log_prior):
    """xi_ij = exp(s_ij) / sum of exp(s_i'j) over allowed i' <= i; w_ij = u_j xi_ij / sum_j' u_j' xi_ij'."""
    n_queries, n_keys = len(scores), len(scores[0])
    weights = [[0] * n_keys for _ in range(n_queries)]
    for i in range(n_queries):
        numerators, row_sum = [0] * n_keys, 0
        for j in range(n_keys):
            if allowed[i][j]:
                so_far = sum(scores[earlier][j].exp() for earlier in range(i + 1) if allowed[earlier][j])
                numerators[j] = log_prior[i][j].exp() * scores[i][j].exp() / so_far
                row_sum = row_sum + numerators[j]
        if row_sum > 0:
            weights[i] = [numerator / row_sum for numerator in numerators]
    return weights


def prefix_weights(variant, module, scores, allowed=None, log_prior=None, number=lambda x: x):
    """The loop-written weights of a variant; `number` turns the entries into what the loops calculate with."""
    given = torch.tensor(True) if allowed is None else allowed
    prior = torch.zeros((), dtype=scores.dtype) if log_prior is None else log_prior
    given, prior = given.expand(scores.shape), prior.expand(scores.shape)
    entries = []
    for b in range(scores.shape[0]):
        for h in range(scores.shape[1]):
            s, u = ([[number(x) for x in row] for row in matrix[b, h]] for matrix in (scores, prior))
            entries += [x for row in prefix_slice(s, given[b, h].tolist(), u) for x in row]
    doubly = torch.stack([torch.as_tensor(x if torch.is_tensor(x) else float(x)).to(scores) for x in entries])
    doubly = doubly.reshape(scores.shape)
    if variant == "dnas":
        return doubly
    parameter = module.hybrid.reshape(-1)
    v = (parameter if variant == "hnas_clamp" else 1 / (1 + (-parameter).exp())).reshape(1, -1, 1, 1)
    softmax = reference.weights if number(torch.tensor(1.0)) is not Decimal else reference.exact_weights
    return v * doubly + (1 - v) * softmax("softmax", scores, allowed, log_prior)


@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_and_their_gradients_equal_the_loop_written_formula(variant):
    module = make(variant)
    for mask, prior in in_turn(shift=[*VARIANTS].index(variant)):
        size, allowed = MASKS[mask].size, MASKS[mask].allowed
        scores = (1.5 * randn(BATCH, HEADS, *size, seed=3)).requires_grad_()
        log_prior = reference.make_log_prior(prior, *size)
        inputs = [scores, *module.parameters()]
        if log_prior is not None:
            inputs.append(log_prior.requires_grad_())

        actual = module(scores, allowed, log_prior=log_prior)
        expected = prefix_weights(variant, module, scores, allowed, log_prior)

        with case(mask, prior):
            assert_close(actual, expected, **TIGHT)
            all_wanted = reference.gradients(expected, inputs)
            for found, wanted in zip(reference.gradients(actual, inputs), all_wanted, strict=True):
                assert_close(found, wanted, **TIGHT)


def test_weights_are_right_where_exponentials_overflow():
    module = make("dnas", torch.float32)
    for mask in ("none", "causal", "random"):
        allowed = MASKS[mask].allowed
        scores = 500 * randn(BATCH, HEADS, *MASKS[mask].size, seed=6, dtype=torch.float32)
        expected = prefix_weights("dnas", module, scores.double(), allowed, number=lambda x: Decimal(x.item()))
        with case(mask):
            assert_close(module(scores, allowed).double(), expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("variant", ["dnas", "hnas_heads"])
def test_a_constant_added_to_all_scores_changes_nothing_however_large(variant):
    """A masked pair adds nothing to its column, not even where the scores of all others are as low as this."""
    module, allowed = make(variant), MASKS["random"].allowed
    scores = randn(BATCH, HEADS, *MASKS["random"].size, seed=3)
    for constant in (-1e4, 1e4):
        assert_close(module(scores + constant, allowed), module(scores, allowed), rtol=1e-9, atol=1e-9)


# --------------------------------------------------------------------------------------------------------- the future


@pytest.mark.parametrize("variant", ["dnas", "hnas_heads"])
def test_no_row_depends_on_the_scores_or_the_mask_of_a_later_query(variant):
    module = make(variant)
    for mask in ("none", "causal", "random"):
        scores = randn(BATCH, HEADS, *MASKS[mask].size, seed=3)
        allowed = MASKS[mask].allowed.expand(scores.shape)
        weights = module(scores, allowed)
        for t in range(1, scores.shape[-2]):
            changed_scores, changed_mask = scores.clone(), allowed.clone()
            changed_scores[..., t:, :] = 9 * randn(*scores[..., t:, :].shape, seed=t)
            changed_mask[..., t:, :] = ~changed_mask[..., t:, :]
            changed = module(changed_scores, changed_mask)
            with case(mask, t):
                assert torch.equal(changed[..., :t, :], weights[..., :t, :])
                assert not torch.allclose(changed[..., t:, :], weights[..., t:, :])


def test_the_diagonal_of_causal_dnas_prefix_is_the_largest_weight_of_its_row():
    weights = make("dnas")(3 * randn(BATCH, HEADS, 6, 6), torch.ones(6, 6, dtype=torch.bool).tril())
    assert torch.equal(weights.argmax(-1), torch.arange(6).expand(BATCH, HEADS, 6))


# ------------------------------------------------------------------------------------------------------ step by step

ORDERS = {"kept": None, "reordered": torch.tensor([1, 0]), "one_twice": torch.tensor([1, 1])}


def reorder(rows, *tensors):
    return tensors if rows is None else tuple(tensor[rows] for tensor in tensors)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("variant", ["dnas", "hnas_heads"])
def test_steps_over_fixed_keys_equal_the_full_pass(variant, order):
    """Cross-attention: whatever the order that the rows took before, a step continues their history."""
    module = make(variant)
    for mask, prior in in_turn(priors=["none", "with_holes"], shift=order == "reordered"):
        scores = randn(BATCH, HEADS, *MASKS[mask].size, seed=3)
        allowed = MASKS[mask].allowed.expand(scores.shape)
        log_prior = reference.make_log_prior(prior, *MASKS[mask].size)
        log_prior = torch.zeros_like(scores) if log_prior is None else log_prior.expand(scores.shape)
        state = None
        for t in range(scores.shape[-2]):
            if t == 2:
                scores, allowed, log_prior, state = reorder(ORDERS[order], scores, allowed, log_prior, state)
            now, past = (..., slice(t, t + 1), slice(None)), (..., slice(t + 1), slice(None))
            weights, state = module.step(scores[now], allowed[now], state, log_prior=log_prior[now])
            full = module(scores[past], allowed[past], log_prior=log_prior[past])
            with case(mask, prior, t):
                assert_close(weights, full[now], **TIGHT)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("variant", ["dnas", "hnas_heads"])
def test_steps_over_a_growing_key_set_equal_the_causal_full_pass(variant, order):
    """Self-attention: a key enters with its own query; one key of each example is padding for all queries."""
    module, n = make(variant), 6
    scores, log_prior = randn(BATCH, HEADS, n, n, seed=3), randn(BATCH, HEADS, n, n, seed=4)
    allowed = torch.ones(n, n, dtype=torch.bool).tril().repeat(BATCH, HEADS, 1, 1)
    allowed[0, ..., 1] = False
    allowed[1, ..., 0] = False  # so the first query of this example sees nothing
    state = None
    for t in range(n):
        if t == 3:
            scores, allowed, log_prior, state = reorder(ORDERS[order], scores, allowed, log_prior, state)
        row = (..., slice(t, t + 1), slice(t + 1))
        weights, state = module.step(scores[row], allowed[row], state, log_prior=log_prior[row])
        assert state.shape == (BATCH, HEADS, 1, t + 1)
        full = module(scores, allowed, log_prior=log_prior)[..., t : t + 1, :]
        assert_close(weights, full[..., : t + 1], **TIGHT)
        assert not full[..., t + 1 :].any()


@pytest.mark.parametrize("spread", [1, 1e4])
def test_the_running_logsumexp_and_its_gradient_equal_those_of_torch(spread):
    s = (spread * randn(BATCH, HEADS, 7, 5, seed=8)).masked_fill(torch.ones(7, 5, dtype=torch.bool).triu(1), LOWEST)
    s.requires_grad_()
    g = randn(BATCH, HEADS, 7, 5, seed=9).tril()  # nothing uses the sum of a key that no query has seen so far
    actual, expected = running_logsumexp(s), s.logcumsumexp(-2)
    assert_close(actual, expected, **TIGHT)
    found, wanted = (torch.autograd.grad(c, s, g)[0] for c in (actual, expected))
    assert_close(found, wanted, **TIGHT)
