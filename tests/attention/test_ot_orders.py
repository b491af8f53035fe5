"""ot to second order and exactly: against the paper's problem (Eq. 37-45) written with loops, and solved on its own."""

import math
from itertools import product

import pytest
import reference
import torch
from reference import MASKS, WIDTH, case, randn
from torch.testing import assert_close

from attnorm.attention import build_normalizer
from attnorm.attention.normalizers.ot import OptimalTransport
from attnorm.attention.normalizers.shared import transport_orders as source
from attnorm.attention.testing import check_normalizer

pytestmark = pytest.mark.numerical

GAMMA, ALPHA = 0.7, 0.6


# ------------------------------------------------------------------------------------------ the problem, a second time


def distances(T):
    return torch.stack([torch.stack([(t - i).square().mean() for i in T]) for t in T])


def potential(lam, T, u, C, gamma):
    """gamma sum_i u_i log sum_t exp((t'l - C_ti) / gamma), the dual of the transport cost in Eq. 38."""
    total = 0
    for i, u_i in enumerate(u):
        if u_i > 0:
            total = (
                total
                + gamma * u_i * torch.stack([(t @ lam - C[j, i]) / gamma for j, t in enumerate(T)]).exp().sum().log()
            )
    return total


def weights_at(lam, T, u, C, gamma):
    """Eq. 37, source by source."""
    w = torch.zeros(len(T), dtype=T.dtype)
    for i, u_i in enumerate(u):
        if u_i > 0:
            carried = torch.stack([((t @ lam - C[j, i]) / gamma).exp() for j, t in enumerate(T)])
            w = w + u_i * carried / carried.sum()
    return w


def objective(lam, z, T, u, C, gamma, alpha):
    """What Eq. 38 maximizes."""
    mean = weights_at(torch.zeros_like(lam), T, u, C, gamma) @ T  # Eq. 40
    return (mean + z) @ lam - lam @ lam / (2 * alpha) - potential(lam, T, u, C, gamma)


def exact_lambda(z, T, u, C, gamma, alpha):
    """lambda* by Newton's method with derivatives by autograd, and steps that are halved until they gain."""
    lam = torch.zeros_like(z)

    def f(lam):
        return objective(lam, z, T, u, C, gamma, alpha)

    for _ in range(60):
        gradient = torch.autograd.functional.jacobian(f, lam)
        if gradient.norm() < 1e-12:
            break
        step, length = torch.linalg.solve(torch.autograd.functional.hessian(f, lam), -gradient), 1.0
        while f(lam + length * step) < f(lam) - 1e-14 and length > 1e-9:
            length /= 2
        lam = lam + length * step
    return lam


def second_order_lambda(z, T, u, C, gamma, alpha):
    """(I + alpha/gamma sum_t u_t Sigma_t)^-1 alpha z with the covariances of Eq. 44."""
    covariance = torch.zeros(len(z), len(z), dtype=T.dtype)
    for i, u_i in enumerate(u):
        q = (-C[:, i] / gamma).exp()
        q = q / q.sum()
        mean = sum(q[j] * T[j] for j in range(len(T)))
        for j in range(len(T)):
            covariance = covariance + u_i * q[j] * torch.outer(T[j] - mean, T[j] - mean)
    return torch.linalg.solve(torch.eye(len(z), dtype=T.dtype) + alpha / gamma * covariance, alpha * z)


LAMBDAS = {1: lambda z, T, u, C, gamma, alpha: alpha * z, 2: second_order_lambda, "exact": exact_lambda}


def reference_weights(order, q, k, allowed, log_prior, gamma, alpha, cost=distances):
    """The weights (B, H, N, A), row by row: masked templates are left out, and u = 0 for those that are no source."""
    result = torch.zeros(*q.shape[:-1], k.shape[-2], dtype=q.dtype)
    shape = result.shape
    allowed = torch.ones(shape, dtype=torch.bool) if allowed is None else allowed.expand(shape)
    log_prior = torch.zeros(shape, dtype=q.dtype) if log_prior is None else log_prior.expand(shape)
    for b in range(shape[0]):
        for h in range(shape[1]):
            for n in range(shape[2]):
                live = allowed[b, h, n].nonzero()[:, 0]
                if len(live) and log_prior[b, h, n, live].max() > -torch.inf:
                    T, u = k[b, h, live], log_prior[b, h, n, live].softmax(-1)
                    problem = (T, u, cost(T), gamma)
                    lam = LAMBDAS[order](q[b, h, n], *problem, alpha)
                    result[b, h, n, live] = weights_at(lam, *problem)
    return result


def qk(n_queries, n_keys, factor=1.5):
    return factor * randn(1, 2, n_queries, WIDTH, seed=11), randn(1, 2, n_keys, WIDTH, seed=12)


def weights(order, q, k, allowed=None, log_prior=None, gamma=GAMMA, alpha=ALPHA, **options):
    scores = alpha * q @ k.mT
    return OptimalTransport(gamma, order=order, **options)(scores, allowed, log_prior=log_prior, keys=k, scale=alpha)


# ---------------------------------------------------------------------------------------------------------------- value


@pytest.mark.long
@pytest.mark.parametrize("order", [2, "exact"])
def test_the_weights_are_those_of_the_papers_problem(order):
    masks, priors = ("none", "causal", "dead_rows"), ("none", "key_only", "with_holes")
    for mask, prior in product(masks, priors) if order == 2 else zip(masks, priors, strict=True):
        given = MASKS[mask]
        q, k = qk(*given.size)
        allowed = None if given.allowed is None else given.allowed[:1]
        log_prior = reference.make_log_prior(prior, *given.size)
        log_prior = log_prior[:1] if log_prior is not None and log_prior.dim() == 4 else log_prior
        expected = reference_weights(order, q, k, allowed, log_prior, GAMMA, ALPHA)
        with case(mask, prior):
            assert_close(weights(order, q, k, allowed, log_prior), expected, rtol=1e-8, atol=1e-9)


def test_the_second_order_is_within_two_percent_where_the_first_is_a_fifth_off():
    """|lambda - lambda*| / |lambda*| of what is computed, with lambda from T lambda = s, and lambda* by loops."""
    q, k = qk(4, 6, factor=0.2)
    T, gamma, alpha, log_u = 0.5 * k, 0.5, 0.6, torch.full((1, 1, 1, 6), math.log(1 / 6)).double()
    costs = torch.stack([distances(head) for head in T[0]])[None]
    s = alpha * q @ T.mT
    second = torch.linalg.lstsq(T, source.second_order_scores(s, log_u, costs, T, alpha, gamma).mT).solution.mT
    w = weights("exact", q, T, gamma=gamma, alpha=alpha)
    exact = alpha * (q + (OptimalTransport(gamma)(torch.zeros_like(w), keys=T) - w) @ T)
    loops = [
        exact_lambda(q[0, h, n], T[0, h], log_u[0, 0, 0].exp(), costs[0, h], gamma, alpha)
        for h in (0, 1)
        for n in range(4)
    ]
    assert_close(exact, torch.stack(loops).view_as(exact), rtol=1e-7, atol=1e-9)
    first, second = ((found - exact).norm(dim=-1) / exact.norm(dim=-1) for found in (alpha * q, second))
    assert 0.15 < first.mean() < 0.25 and second.max() < 0.02, (first, second)


@pytest.mark.parametrize("order", [2, "exact"])
def test_costs_beyond_the_range_of_products_are_solved_in_parts_with_the_same_result(order, monkeypatch):
    """Two rows at a time; the same costs, with a template that nobody can reach."""
    q, k = qk(5, 4)
    far = torch.cat([k, k[..., :1, :] + 3000.0], -2)
    log_prior = torch.cat([randn(5, 4, seed=13), torch.full((5, 1), -torch.inf).double()], -1)
    near = weights(order, q, k, log_prior=log_prior[:, :4])
    scores = torch.cat([ALPHA * q @ k.mT, torch.zeros(1, 2, 5, 1).double()], -1)
    monkeypatch.setattr(source, "BUFFER", 2 * 2 * 25)
    inputs = [x.requires_grad_() for x in (scores, far)]
    allowed = torch.ones(5, 5, dtype=torch.bool)
    allowed[4] = False
    w = OptimalTransport(GAMMA, order=order)(scores, allowed, log_prior=log_prior, keys=far, scale=ALPHA)
    assert_close(w[:, :, :4, :4], near[:, :, :4], rtol=1e-6, atol=1e-8)
    assert (w[:, :, 4] == 0).all()
    assert all(g.isfinite().all() for g in reference.gradients(w, inputs))


def test_groups_share_the_weight_of_their_source_at_every_order():
    """Sec. 9: cost 0 within a group and infinite between groups; templates of a group are alike: w_t = u_i / |G|."""
    groups = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
    cost = torch.where(groups[:, None] == groups[None], 0.0, torch.inf).double()
    log_prior = torch.full((8,), -torch.inf).double()
    log_prior[0], log_prior[3] = math.log(0.3), math.log(0.7)
    k, q = randn(1, 1, 3, WIDTH, seed=3)[..., groups, :], randn(1, 1, 4, WIDTH, seed=4)
    expected = torch.tensor([0.1, 0.1, 0.1, 0.35, 0.35, 0, 0, 0], dtype=torch.float64).expand(1, 1, 4, 8)
    for order in (1, 2, "exact"):
        w = weights(order, q, k, None, log_prior, cost=lambda targets, sources: cost[None, None])
        assert_close(w, expected, rtol=0, atol=1e-12)


# ------------------------------------------------------------------------------------------------------------ gradients


@pytest.mark.long
@pytest.mark.parametrize("order", [2, "exact"])
@pytest.mark.parametrize("gamma", [0.7, 0.004], ids=["products", "log domain"])
def test_gradients_are_those_of_the_solution(order, gamma):
    k = randn(1, 1, 4, WIDTH, seed=5) * min(1.0, gamma**0.5)
    if gamma < 0.1:
        k[..., 3, :] += 3.0  # costs more than WIDEST gamma
    scores, log_prior, alpha = randn(1, 1, 3, 4, seed=6) * gamma, randn(3, 4, seed=7), torch.tensor(0.5).double()
    allowed = torch.ones(3, 4, dtype=torch.bool).tril(1)
    inputs = [x.requires_grad_() for x in (scores, k, log_prior, alpha)]

    def forward(scores, keys, log_prior, alpha):
        normalizer = OptimalTransport(gamma, order=order, tolerance=1e-13)
        return normalizer(scores, allowed, log_prior=log_prior, keys=keys, scale=alpha)

    assert torch.autograd.gradcheck(forward, inputs, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"order": 2}, {"order": "exact"}, {"cost": "learned", "heads": 2, "width": 8}], ids=str
)
def test_each_order_and_the_learned_cost_pass_the_property_suite(options):
    lengths = [(33, 65)]  # the defaults are checked at all lengths
    assert check_normalizer(lambda: build_normalizer("ot", **options), lengths=lengths, print_report=False).passed


def test_a_learned_cost_starts_as_the_squared_distance_and_learns_what_is_near():
    q, k = qk(4, 5)
    learned = OptimalTransport(GAMMA, cost="learned", heads=2, width=WIDTH).double()
    scores = q @ k.mT
    assert_close(learned(scores, keys=k), OptimalTransport(GAMMA)(scores, keys=k))
    (gradient,) = reference.gradients(learned(scores, keys=k), [learned.cost.weight])
    assert gradient.abs().amax((-2, -1)).min() > 1e-3  # of every head
    with torch.no_grad():
        learned.cost.weight[1] = 0  # all templates of head 1 are near: softmax
    w = learned(scores, keys=k)
    assert_close(w[:, 1], (scores[:, 1] / GAMMA).softmax(-1))


def test_rows_that_do_not_converge_are_reported():
    q, k = qk(4, 5)
    with pytest.warns(RuntimeWarning, match=r"ot: 8 of 8 rows did not converge in max_steps=1 steps"):
        weights("exact", 10 * q, k, max_steps=1)


def test_alpha_is_needed_beyond_the_first_order():
    q, k = qk(4, 5)
    for scale, message in ((None, "ot: scale=None: alpha is the scale"), (0.0, "ot: scale=0.0: alpha is the scale")):
        with pytest.raises(ValueError, match=message):
            OptimalTransport(order=2)(q @ k.mT, keys=k, scale=scale)
