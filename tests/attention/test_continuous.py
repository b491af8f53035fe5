"""Continuous attention: the closed form for a Gaussian preference, and the same problem on grids of templates."""

import math

import pytest
import torch
from reference import BATCH, HEADS, MASKS, case, in_turn, make_log_prior, make_qkv, randn
from torch.testing import assert_close

from attnorm.attention import Mask, build_normalizer
from attnorm.attention.normalizers.continuous import gaussian_estimate

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-9, "atol": 1e-10}


def gaussian_grid(mu, factor, points=41, reach=7.0):
    """Templates (P, D) on a grid around mu, and log u, the density of N(mu, factor factor') at each of them."""
    steps = torch.linspace(-reach, reach, points, dtype=torch.float64)
    standard = torch.cartesian_prod(*[steps] * len(mu)).reshape(-1, len(mu))
    return mu + standard @ factor.mT, -standard.square().sum(-1) / 2


@pytest.mark.parametrize("alpha", [0.1, 0.5, 2.0])
def test_the_closed_form_is_the_solution_for_a_discretized_gaussian(alpha):
    """On a grid of templates the solver knows nothing of Gaussians. The trapezoidal rule is exact to many digits."""
    mu, z = torch.tensor([0.4, -0.3], dtype=torch.float64), randn(3, 2, seed=2)
    for factor in (torch.eye(2), torch.tensor([[0.9, 0.0], [0.5, 0.6]])):
        factor = factor.double()
        templates, log_u = gaussian_grid(mu, factor)
        scores = (alpha * z @ templates.mT)[None, None]
        keys = templates[None, None]
        expected = gaussian_estimate(z, mu, alpha, factor @ factor.mT)
        for order in (2, "exact"):  # the second order is exact there
            normalizer = build_normalizer("fenchel", order=order, tolerance=1e-12)
            weights = normalizer(scores, log_prior=log_u[None, None, None], keys=keys, scale=alpha)
            assert_close(weights[0, 0] @ templates, expected, rtol=1e-7, atol=1e-8)
    assert_close(gaussian_estimate(z, mu, alpha), (mu + alpha * (mu + z)) / (1 + alpha), **TIGHT)
    assert_close(gaussian_estimate(z, mu, alpha), gaussian_estimate(z, mu, alpha, torch.eye(2).double()), **TIGHT)


def test_the_mean_of_the_templates_is_the_closed_form_for_their_mean_and_covariance():
    """Loops for the mean and the covariance of each row, with masks and priors."""
    module, alpha = build_normalizer("continuous"), 0.6
    for mask, prior in in_turn():
        n, m = MASKS[mask].size
        q, k, _ = make_qkv(n, m)
        log_prior = make_log_prior(prior, n, m)
        u = torch.ones(BATCH, HEADS, n, m).double() * (1.0 if log_prior is None else log_prior.exp())
        u = u if MASKS[mask].allowed is None else u * MASKS[mask].allowed
        weights = module(alpha * q @ k.mT, MASKS[mask].allowed, log_prior=log_prior, keys=k, scale=alpha)
        with case(mask, prior):
            for b, h, i in torch.cartesian_prod(*map(torch.arange, u.shape[:-1])).tolist():
                row = u[b, h, i].tolist()
                if sum(row) == 0:
                    assert not weights[b, h, i].any()
                    continue
                row = [share / sum(row) for share in row]
                mean = sum(share * k[b, h, j] for j, share in enumerate(row))
                apart = k[b, h] - mean
                covariance = sum(share * torch.outer(t, t) for share, t in zip(row, apart, strict=True))
                expected = gaussian_estimate(q[b, h, i], mean, alpha, covariance)
                assert_close(weights[b, h, i] @ k[b, h], expected, **TIGHT)
                assert math.isclose(weights[b, h, i].sum().item(), 1.0, rel_tol=1e-9)


def test_attend_builds_no_table_of_queries_times_keys(monkeypatch):
    module = build_normalizer("continuous")
    q, k, v = make_qkv(40, 30)
    mask = Mask(queries=torch.arange(40)[None] < 35, keys=torch.arange(30)[None] < 22)
    expected = module(0.5 * q @ k.mT, mask, keys=k, scale=0.5) @ v
    monkeypatch.setattr(type(module), "forward", None)
    assert_close(module.attend(q, k, v, mask, scale=0.5), expected, **TIGHT)


@pytest.mark.parametrize("scale", [None, 0.0, -1.0])
def test_an_alpha_that_is_not_positive_is_refused(scale):
    q, k, _ = make_qkv(4, 6)
    with pytest.raises(ValueError, match=f"continuous: scale={scale}: alpha is the scale of the scores"):
        build_normalizer("continuous")(q @ k.mT, keys=k, scale=scale)
