"""dnas_prefix and hnas_prefix: equal to their loop-written formula, blind to the future, the same step by step."""

from decimal import Decimal

import pytest
import reference
import torch
from reference import BATCH, HEADS, MASKS, PRIORS, randn
from torch.testing import assert_close

from attnorm.attention import build_normalizer

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


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_and_their_gradients_equal_the_loop_written_formula(variant, mask, prior):
    case, module = MASKS[mask], make(variant)
    scores = (1.5 * randn(BATCH, HEADS, case.n_queries, case.n_keys, seed=3)).requires_grad_()
    log_prior = reference.make_log_prior(prior, case.n_queries, case.n_keys)
    inputs = [scores, *module.parameters()]
    if log_prior is not None:
        inputs.append(log_prior.requires_grad_())

    actual = module(scores, case.allowed, log_prior=log_prior)
    expected = prefix_weights(variant, module, scores, case.allowed, log_prior)

    assert_close(actual, expected, **TIGHT)
    for found, wanted in zip(reference.gradients(actual, inputs), reference.gradients(expected, inputs), strict=True):
        assert_close(found, wanted, **TIGHT)


@pytest.mark.parametrize("mask", ["none", "causal", "random"])
def test_weights_are_right_where_exponentials_overflow(mask):
    case, module = MASKS[mask], make("dnas", torch.float32)
    scores = 500 * randn(BATCH, HEADS, case.n_queries, case.n_keys, seed=6, dtype=torch.float32)
    expected = prefix_weights("dnas", module, scores.double(), case.allowed, number=lambda x: Decimal(x.item()))
    assert_close(module(scores, case.allowed).double(), expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("mask", ["none", "causal", "dead_rows", "dead_columns"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_gradcheck(variant, mask):
    case, module = MASKS[mask], make(variant)
    scores = randn(1, HEADS, case.n_queries, case.n_keys, seed=8).requires_grad_()
    log_prior = randn(1, HEADS, case.n_queries, case.n_keys, seed=9).requires_grad_()
    allowed = case.allowed[:1]
    assert torch.autograd.gradcheck(
        lambda s, u, *_: module(s, allowed, log_prior=u), (scores, log_prior, *module.parameters())
    )


# --------------------------------------------------------------------------------------------------------- the future


@pytest.mark.parametrize("mask", ["none", "causal", "random"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_row_depends_on_a_later_query(variant, mask):
    case, module = MASKS[mask], make(variant)
    scores = randn(BATCH, HEADS, case.n_queries, case.n_keys, seed=3)
    allowed = case.allowed.expand(scores.shape)
    weights = module(scores, allowed)
    for t in range(1, case.n_queries):
        changed_scores, changed_mask = scores.clone(), allowed.clone()
        changed_scores[..., t:, :] = 9 * randn(*scores[..., t:, :].shape, seed=t)
        changed_mask[..., t:, :] = ~changed_mask[..., t:, :]
        changed = module(changed_scores, changed_mask)
        assert torch.equal(changed[..., :t, :], weights[..., :t, :])
        assert not torch.allclose(changed[..., t:, :], weights[..., t:, :])


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_row_depends_on_earlier_queries(variant):
    module, scores = make(variant), randn(1, HEADS, 4, 5).requires_grad_()
    (gradient,) = torch.autograd.grad(module(scores)[..., 3, 0].sum(), scores)
    assert (gradient[..., :3, :].abs().sum(-1) > 1e-6).all()


def test_the_diagonal_of_causal_dnas_prefix_is_the_largest_weight_of_its_row():
    weights = make("dnas")(3 * randn(BATCH, HEADS, 6, 6), torch.ones(6, 6, dtype=torch.bool).tril())
    assert torch.equal(weights.argmax(-1), torch.arange(6).expand(BATCH, HEADS, 6))


# ------------------------------------------------------------------------------------------------------ step by step

ORDERS = {"kept": None, "reordered": torch.tensor([1, 0]), "one_twice": torch.tensor([1, 1])}


def reorder(rows, *tensors):
    return tensors if rows is None else tuple(tensor[rows] for tensor in tensors)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("prior", ["none", "with_holes"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("variant", ["dnas", "hnas_heads"])
def test_steps_over_fixed_keys_equal_the_full_pass(variant, mask, prior, order):
    """Cross-attention: whatever the order that the rows took before, a step continues their history."""
    case, module = MASKS[mask], make(variant)
    scores = randn(BATCH, HEADS, case.n_queries, case.n_keys, seed=3)
    allowed = case.allowed.expand(scores.shape)
    log_prior = reference.make_log_prior(prior, case.n_queries, case.n_keys)
    log_prior = torch.zeros_like(scores) if log_prior is None else log_prior.expand(scores.shape)
    state = None
    for t in range(case.n_queries):
        if t == 2:
            scores, allowed, log_prior, state = reorder(ORDERS[order], scores, allowed, log_prior, state)
        now = slice(t, t + 1)
        weights, state = module.step(scores[..., now, :], allowed[..., now, :], state, log_prior=log_prior[..., now, :])
        full = module(scores[..., : t + 1, :], allowed[..., : t + 1, :], log_prior=log_prior[..., : t + 1, :])
        assert_close(weights, full[..., now, :], **TIGHT)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("variant", VARIANTS)
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


# ------------------------------------------------------------------------------------------------------ what is dead


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_dead_row_gets_no_weight_and_takes_no_part_in_the_column_step(variant):
    module, scores = make(variant), randn(BATCH, HEADS, 5, 4).requires_grad_()
    allowed = torch.ones(5, 4, dtype=torch.bool)
    allowed[2] = False
    weights, others = module(scores, allowed), [0, 1, 3, 4]
    assert not weights[..., 2, :].any()
    assert_close(weights[..., others, :], module(scores[..., others, :]), **TIGHT)
    (gradient,) = reference.gradients(weights, [scores])
    assert gradient.isfinite().all() and not gradient[..., 2, :].any()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_dead_column_gets_no_weight_and_the_other_keys_are_as_without_it(variant):
    module, scores = make(variant), randn(BATCH, HEADS, 4, 5).requires_grad_()
    allowed = torch.ones(4, 5, dtype=torch.bool)
    allowed[:, 3] = False
    weights, others = module(scores, allowed), [0, 1, 2, 4]
    assert not weights[..., 3].any()
    assert_close(weights[..., others], module(scores[..., others]), **TIGHT)
    (gradient,) = reference.gradients(weights, [scores])
    assert gradient.isfinite().all() and not gradient[..., 3].any()
