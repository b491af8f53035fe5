"""What attention optimizes: the likelihoods and objectives of the papers against plain loops, and their optima."""

import math

import pytest
import reference
import torch
from reference import BATCH, HEADS, MASKS, WIDTH, case, randn
from scipy import optimize, stats
from torch.testing import assert_close

from attnorm.attention import build_normalizer
from attnorm.attention.likelihoods import (
    fenchel_deviation,
    key_log_likelihood,
    mixture_log_likelihood,
    query_log_likelihood,
    row_optimum,
    transport_objective,
    transport_optimum,
)

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-9, "atol": 1e-9}
PADDED = "both_sides"  # a mask that is padding only


def states(mask, seed=0):
    n_queries, n_keys = MASKS[mask].size
    return randn(BATCH, HEADS, n_queries, WIDTH, seed=seed), randn(BATCH, HEADS, n_keys, WIDTH, seed=seed + 1)


def by_loops(data, centers, allowed, log_weights):
    """log p(x) of each point, with the densities of scipy."""
    found = torch.full(data.shape[:-1], torch.nan, dtype=torch.float64)
    for place in torch.cartesian_prod(*map(torch.arange, data.shape[:-1])).tolist():
        b, h, i = place
        own = [j for j in range(centers.shape[-2]) if allowed[b, h, i, j]]
        if own:
            total = sum(math.exp(log_weights[b, h, j]) for j in own)
            density = [stats.multivariate_normal.pdf(data[b, h, i], centers[b, h, j], 1.0) for j in own]
            shares = [math.exp(log_weights[b, h, j]) / total for j in own]
            found[b, h, i] = math.log(sum(a * p for a, p in zip(shares, density, strict=True)))
    return found


@pytest.mark.parametrize("mask", ["none", "both_sides", "causal", "empty_example"])
def test_likelihoods_are_those_of_the_mixtures(mask):
    (q, k), scale = states(mask), 0.7
    allowed = MASKS[mask].allowed.expand(BATCH, HEADS, *MASKS[mask].size)
    root_q, root_k = (scale**0.5 * x for x in (q, k))
    expected = by_loops(root_q, root_k, allowed, root_k.square().sum(-1) / 2)
    assert_close(query_log_likelihood(q, k, MASKS[mask].allowed, scale), expected, equal_nan=True, **TIGHT)
    expected = by_loops(root_k, root_q, allowed.mT, root_q.square().sum(-1) / 2)
    assert_close(key_log_likelihood(q, k, MASKS[mask].allowed, scale), expected, equal_nan=True, **TIGHT)
    given = randn(BATCH, HEADS, k.shape[-2], seed=9)
    found = mixture_log_likelihood(q, k, MASKS[mask].allowed, given)
    assert_close(found, by_loops(q, k, allowed, given), equal_nan=True, **TIGHT)


@pytest.mark.parametrize("mask", ["none", PADDED])
def test_a_step_of_dnas_never_decreases_the_likelihood_of_the_keys(mask):
    """[D] Eq. 5-8: with the mixture weights kept, it is a step of expectation maximization in the queries."""
    for seed in range(20):
        q, k = states(mask, seed=3 * seed)
        allowed = MASKS[mask].allowed
        alive = allowed.expand(BATCH, HEADS, *MASKS[mask].size).any(-1, keepdim=True)
        kept = q.square().sum(-1) / 2
        moved = torch.where(alive, build_normalizer("dnas")(q @ k.mT, allowed) @ k, q)
        before, after = (mixture_log_likelihood(k, x, allowed.mT, kept).nansum() for x in (q, moved))
        assert after > before + 1e-6, seed
        wrong = mixture_log_likelihood(k, 2 * moved - q, allowed.mT, kept).nansum()  # a step twice as long
        assert wrong < after


# ----------------------------------------------------------------------------------------------------------- transport


@pytest.mark.parametrize("mask", ["none", "both_sides", "causal"])
@pytest.mark.parametrize("prior", [None, "pairwise"])
def test_softmax_attains_the_minimum_of_equation_9_and_no_other_rows_do_better(mask, prior):
    n_queries, n_keys = MASKS[mask].size
    allowed, scores = MASKS[mask].allowed, 2 * randn(BATCH, HEADS, *MASKS[mask].size)
    log_prior = None if prior is None else reference.make_log_prior(prior, n_queries, n_keys)
    least = row_optimum(scores, allowed, log_prior)
    weights = build_normalizer("softmax")(scores, allowed, log_prior=log_prior)
    assert_close(transport_objective(weights, scores, allowed, log_prior), least, **TIGHT)
    for seed in range(10):
        other = (weights + 1e-12).log() + 0.3 * randn(*weights.shape, seed=seed)
        other = build_normalizer("softmax")(other, allowed)
        with case(mask, prior, seed):
            assert (transport_objective(other, scores, allowed, log_prior) > least + 1e-6).all()


def test_the_objective_is_the_sum_over_pairs_for_each_query():
    scores, weights = randn(1, 1, 3, 4), randn(1, 1, 3, 4, seed=1).softmax(-1)
    expected = sum(
        -w * s + w * math.log(w) for w, s in zip(weights.flatten().tolist(), scores.flatten().tolist(), strict=True)
    )
    assert transport_objective(weights, scores).item() == pytest.approx(expected / 3)


@pytest.mark.parametrize("prior", [None, "pairwise"])
def test_the_minimum_of_equation_10_is_that_of_a_general_solver(prior):
    scores = randn(1, 1, 3, 4)
    log_prior = None if prior is None else randn(1, 1, 3, 4, seed=1)
    s = (scores if log_prior is None else scores + log_prior)[0, 0].flatten().numpy()

    def objective(w):
        return float((w * (torch.tensor(w).log().numpy() - s)).sum()) / 3

    rows = [{"type": "eq", "fun": lambda w, i=i: w.reshape(3, 4)[i].sum() - 1} for i in range(3)]
    columns = [{"type": "eq", "fun": lambda w, j=j: w.reshape(3, 4)[:, j].sum() - 3 / 4} for j in range(3)]
    found = optimize.minimize(
        objective, [0.25] * 12, bounds=[(1e-9, 1)] * 12, constraints=rows + columns, options={"ftol": 1e-12}
    )
    assert found.success
    assert transport_optimum(scores, log_prior=log_prior).item() == pytest.approx(found.fun, abs=1e-6)


def test_texts_that_share_a_row_have_the_mean_of_their_minima():
    scores, segments = randn(1, HEADS, 5, 5), torch.tensor([0, 0, 1, 1, 1])
    allowed = segments[:, None] == segments
    first, second = (transport_optimum(scores[..., part, part]) for part in (slice(0, 2), slice(2, 5)))
    assert_close(transport_optimum(scores, allowed), (2 * first + 3 * second) / 5, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mask", ["none", PADDED])
def test_sinkhorn_converges_to_the_minimum_of_equation_10_from_dnas_on(mask):
    scores, allowed = 2 * randn(BATCH, HEADS, *MASKS[mask].size), MASKS[mask].allowed
    best, least = transport_optimum(scores, allowed), row_optimum(scores, allowed)
    assert (best > least).all()  # it has one more constraint
    gaps = []
    for n_iters in (1, 3, 10, 100):
        weights = build_normalizer("sinkhorn", n_iters=n_iters)(scores, allowed)
        gaps.append((transport_objective(weights, scores, allowed) - best).abs().max().item())
    assert gaps == sorted(gaps, reverse=True) and gaps[0] > 0.01 and gaps[-1] < 1e-5
    dnas = build_normalizer("dnas")(scores, allowed)
    assert (transport_objective(dnas, scores, allowed) > least).all()  # it has not the rows of Eq. 9 either


def test_a_causal_mask_has_no_weights_with_equal_columns():
    mask = MASKS["causal"]
    assert transport_optimum(randn(BATCH, HEADS, *mask.size), mask.allowed).isnan().all()


# ------------------------------------------------------------------------------------------------------------- Fenchel


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_the_deviation_is_that_of_the_maximizer_of_equation_8(alpha):
    z, t = randn(1, 1, 4, WIDTH), randn(1, 1, 5, WIDTH, seed=1)
    allowed = torch.ones(1, 1, 4, 5, dtype=torch.bool)
    allowed[..., 2, 3:], allowed[..., 3, :] = False, False
    log_prior = randn(1, 1, 1, 5, seed=2)
    found = fenchel_deviation(z, t, allowed, log_prior, alpha)[0, 0]
    for i in range(3):
        own = allowed[0, 0, i]
        u, T, evidence = log_prior[0, 0, 0][own].softmax(0), t[0, 0][own], z[0, 0, i]

        def negative(point, u=u, T=T, evidence=evidence):
            x = torch.tensor(point, dtype=torch.float64)
            value = (u @ T + evidence) @ x - x @ x / (2 * alpha) - (u.log() + T @ x).logsumexp(0)
            return -value.item()

        best = torch.tensor(optimize.minimize(negative, [0.0] * WIDTH, options={"gtol": 1e-9}).x)
        expected = (best - alpha * evidence).norm() / best.norm()
        assert found[i].item() == pytest.approx(expected.item(), rel=1e-5)
    assert found[3].isnan()  # no key is allowed
