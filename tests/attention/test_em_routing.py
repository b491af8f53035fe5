"""em_routing and the cluster priors of dnas: equal to EM written with loops, and the likelihood never decreases."""

import itertools
import math

import pytest
import reference
import torch
from reference import BATCH, HEADS, MASKS, WIDTH, case, randn
from torch.testing import assert_close

from attnorm.attention import Mask, build_normalizer
from attnorm.attention.call_context import in_layer
from attnorm.attention.normalizers.dnas import DNAS
from attnorm.attention.normalizers.em_routing import EMRouting
from attnorm.attention.testing import check_normalizer
from attnorm.errors import UserError

pytestmark = pytest.mark.numerical

SCALE = 0.6


# ----------------------------------------------------------------------------------------------- EM, a second time


def em(scores, keys, n_iters, beta, sigma, allowed=None, log_prior=None, log_b=None, min_sigma=0.1, scale=SCALE):
    """Weights (N, M) of one head after n_iters updates, and their mixture, query by query and key by key."""
    n, m, d = *scores.shape, keys.shape[-1]
    allowed = torch.ones(n, m, dtype=torch.bool) if allowed is None else allowed
    u = torch.ones(n, m, dtype=scores.dtype) if log_prior is None else log_prior.expand(n, m).exp()
    b = [1.0] * n if log_b is None else [x.exp() for x in log_b]
    k = [math.sqrt(scale) * key for key in keys]
    zero = scores.new_zeros(())
    joint = [[b[i] * scores[i, j].exp() if allowed[i, j] else zero for j in range(m)] for i in range(n)]
    for _ in range(n_iters):
        xi, w = [[zero] * m for _ in range(n)], [[zero] * m for _ in range(n)]
        for j in range(m):
            total = sum(joint[i][j] for i in range(n))
            for i in range(n):
                xi[i][j] = joint[i][j] / total if total > 0 else zero
        for i in range(n):
            mass = sum(u[i, j] * xi[i][j] for j in range(m))
            for j in range(m):
                w[i][j] = u[i, j] * xi[i][j] / mass if mass > 0 else zero
        centers = [sum(w[i][j] * k[j] for j in range(m)) for i in range(n)]
        live = [i for i in range(n) if sum(w[i]) > 0]
        betas, variances = [zero] * n, [zero + 1] * n
        for i in live:
            if sigma == "estimated":
                spread = sum(w[i][j] * ((k[j] - centers[i]) ** 2).sum() for j in range(m)) / d
                variances[i] = spread if spread > min_sigma**2 else zero + min_sigma**2
            if beta == "estimated":
                betas[i] = sum(u[i, j] * xi[i][j] for j in range(m))
            else:
                betas[i] = b[i] * ((centers[i] ** 2).sum() / 2).exp() if beta in ("norm", "learned") else zero + 1
        total = sum(betas)
        betas = [x / total if total > 0 else x for x in betas]
        for i in range(n):
            for j in range(m):
                if allowed[i, j]:
                    distance = ((k[j] - centers[i]) ** 2).sum()
                    joint[i][j] = betas[i] * (-distance / (2 * variances[i])).exp() / variances[i] ** (d / 2)
    return torch.stack([torch.stack(row) for row in w]), (centers, betas, variances)


def likelihood(keys, mixture, u=None):
    """Eq. 5: sum_j u_j log sum_i beta_i N(k_j | q_i, sigma_i^2)."""
    centers, betas, variances = mixture
    d, total = keys.shape[-1], 0.0
    for j, key in enumerate(keys):
        density = 0.0
        for q, b, v in zip(centers, betas, variances, strict=True):
            density += (
                float(b)
                * math.exp(-float(((math.sqrt(SCALE) * key - q) ** 2).sum() / (2 * v)))
                / (2 * math.pi * float(v)) ** (d / 2)
            )
        total += (1.0 if u is None else float(u[j])) * math.log(density)
    return total


def reference_weights(scores, keys, *settings, allowed=None, log_prior=None, log_b=None, **options):
    shape = scores.shape
    allowed = None if allowed is None else allowed.expand(shape)
    log_prior = None if log_prior is None else log_prior.expand(shape)
    rows = []
    for b in range(shape[0]):
        for h in range(shape[1]):
            given = {"allowed": allowed, "log_prior": log_prior}
            given = {name: None if x is None else x[b, h] for name, x in given.items()}
            given["log_b"] = None if log_b is None else log_b[h]
            rows.append(em(scores[b, h], keys[b, h], *settings, **given, **options)[0])
    return torch.stack(rows).view(shape)


def problem(n_queries, n_keys, factor=1.3):
    q, k = factor * randn(BATCH, HEADS, n_queries, WIDTH, seed=21), factor * randn(BATCH, HEADS, n_keys, WIDTH, seed=22)
    return SCALE * q @ k.mT, k


ARMS = [
    ("norm", "fixed"),
    ("uniform", "fixed"),
    ("estimated", "fixed"),
    ("norm", "estimated"),
    ("estimated", "estimated"),
]


# ---------------------------------------------------------------------------------------------------------------- value


@pytest.mark.parametrize(("beta", "sigma"), ARMS)
def test_weights_and_gradients_are_those_of_em_written_with_loops(beta, sigma):
    cases = [
        ("none", "none", 3),
        ("both_sides", "key_only", 2),
        ("dead_rows", "pairwise", 2),
        ("random", "none", 2),
        ("none", "alone", 2),
    ]
    for mask, prior, n_iters in cases:
        given = MASKS[mask]
        scores, keys = problem(*given.size)
        log_prior = None if prior == "alone" else reference.make_log_prior(prior, *given.size)
        if prior == "alone":  # query 1 prefers no key at all: its cluster has no data
            log_prior = torch.zeros(4, 5).double().masked_fill(torch.arange(4)[:, None] == 1, -torch.inf)
        inputs = [x.detach().clone().requires_grad_() for x in (scores, keys)]
        least = {"min_sigma": 0.4} if sigma == "estimated" else {}
        module = EMRouting(n_iters, beta=beta, sigma=sigma, **least)
        form = given.allowed if given.compact is None else given.argument
        found = module(inputs[0], form, log_prior=log_prior, keys=inputs[1], scale=SCALE)
        expected = reference_weights(*inputs, n_iters, beta, sigma, allowed=given.allowed, log_prior=log_prior, **least)
        with case(mask, prior):
            assert_close(found, expected, rtol=1e-9, atol=1e-10)
            wanted = reference.gradients(expected, inputs)
            assert_close(reference.gradients(found, inputs), wanted, rtol=1e-7, atol=1e-8)


def test_one_iteration_is_dnas():
    for mask in ("none", "both_sides", "causal", "dead_columns"):
        scores, _ = problem(*MASKS[mask].size)
        log_prior = reference.make_log_prior("pairwise", *MASKS[mask].size)
        w = in_layer(EMRouting(1))(scores, MASKS[mask].allowed, log_prior=log_prior)
        assert_close(w, in_layer(DNAS())(scores, MASKS[mask].allowed, log_prior=log_prior), rtol=0, atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize(("beta", "sigma"), [arm for arm in ARMS if arm[0] != "norm"])
def test_the_likelihood_never_decreases(beta, sigma):
    """Eq. 5 over 12 iterations, computed by loops from the mixtures of `fit`, also with weighted and padded keys."""
    for seed in range(4):
        scores, keys = 2 * randn(1, 1, 4, 9, seed=seed), 2 * randn(1, 1, 9, WIDTH, seed=30 + seed)
        for padded, log_prior in ((False, None), (True, randn(9, seed=seed))):
            mask = Mask(keys=torch.arange(9)[None] < (6 if padded else 9))
            u = torch.ones(9) if log_prior is None else log_prior.exp()
            live = slice(0, 6 if padded else 9)
            found = []
            for n_iters in range(1, 13):
                module = EMRouting(2, beta=beta, sigma=sigma)
                module.n_iters = n_iters  # of the first mixture, too
                fitted = module.fit(scores, mask, log_prior=log_prior, keys=keys, scale=SCALE)
                mixture = fitted.centers[0, 0], fitted.log_beta[0, 0].exp().flatten(), fitted.variance[0, 0].flatten()
                assert_close(mixture[1].sum(), torch.ones(()).double())
                found.append(likelihood(keys[0, 0, live], mixture, u[live]))
            steps = [after - before for before, after in itertools.pairwise(found)]
            assert min(steps) > -1e-10 and found[-1] > found[0] + 0.1, found


def test_the_mixture_is_that_of_em_written_with_loops():
    scores, k = problem(4, 5)
    fitted = EMRouting(3, beta="estimated", sigma="estimated").fit(scores, keys=k, scale=SCALE)
    centers, betas, variances = em(scores[1, 0], k[1, 0], 3, "estimated", "estimated")[1]
    assert_close(fitted.centers[1, 0], torch.stack(centers))
    assert_close(fitted.log_beta[1, 0, :, 0].exp(), torch.stack(betas))
    assert_close(fitted.variance[1, 0, :, 0], torch.stack(variances))


# ------------------------------------------------------------------------------------------------------- cluster priors


def test_log_beta_enters_the_column_step_and_b_1_is_the_papers_choice():
    scores, k = problem(4, 5)
    log_b = randn(HEADS, 6, seed=7)
    for module, n_iters in (
        (DNAS("learned", queries=6, heads=HEADS), 1),
        (EMRouting(2, "learned", queries=6, heads=HEADS), 2),
    ):
        module = module.double()
        assert_close(module(scores, keys=k, scale=SCALE), EMRouting(n_iters)(scores, keys=k, scale=SCALE))
        with torch.no_grad():
            module.cluster_prior.log_b.copy_(log_b)
        expected = reference_weights(scores, k, n_iters, "learned", "fixed", log_b=log_b[:, :4])
        found = module(scores, keys=k, scale=SCALE)
        assert_close(found, expected)
        assert (found - EMRouting(n_iters)(scores, keys=k, scale=SCALE)).abs().max() > 0.05
        (gradient,) = reference.gradients(found, [module.cluster_prior.log_b])
        assert (gradient[:, :4] != 0).all() and (gradient[:, 4:] == 0).all()
        with torch.no_grad():
            assert not module.cluster_prior(4).requires_grad


def test_more_queries_than_priors_are_refused():
    scores, k = (it.float() for it in problem(4, 5))
    with pytest.raises(UserError, match=r"attention\.options\.dnas\.queries=3: got 4 queries"):
        DNAS("learned", queries=3, heads=HEADS)(scores)
    with pytest.raises(UserError, match=r"attention\.options\.em_routing\.queries=3: got 4 queries"):
        EMRouting(2, "learned", queries=3, heads=HEADS)(scores, keys=k, scale=SCALE)


# ------------------------------------------------------------------------------------------------ numbers and messages


def test_far_keys_and_collapsed_clusters_stay_finite():
    """A cluster on a single key has the smallest sigma, and keys far from the origin are as good as near ones."""
    scores, k = 30 * problem(4, 5)[0].float(), problem(4, 5)[1].float()
    module = EMRouting(3, beta="estimated", sigma="estimated")
    inputs = [x.requires_grad_() for x in (scores, k)]
    w = module(*inputs[:1], keys=inputs[1], scale=SCALE)
    assert all(g.isfinite().all() for g in reference.gradients(w, inputs))
    assert_close(module.double()(scores, keys=k + 1000, scale=SCALE), w, rtol=0, atol=2e-2)
    exact = module(scores.double(), keys=k.double(), scale=SCALE)
    assert_close(w.double(), exact, rtol=0, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("em_routing", {"beta": "uniform", "sigma": "estimated"}),  # every choice once, with the defaults elsewhere
        ("em_routing", {"beta": "estimated", "sigma": "fixed"}),
        ("em_routing", {"n_iters": 1}),
        ("em_routing", {"n_iters": 3, "beta": "learned", "queries": 400, "heads": 2}),
        ("dnas", {"beta": "learned", "queries": 400, "heads": 2}),
    ],
    ids=str,
)
def test_every_variant_passes_the_property_suite(name, options):
    lengths = [(33, 65)]  # the defaults are checked at all lengths
    assert check_normalizer(lambda: build_normalizer(name, **options), lengths=lengths, print_report=False).passed


def test_keys_and_scale_are_needed_from_the_second_iteration_on():
    scores, k = problem(4, 5)
    with pytest.raises(ValueError, match="pass keys="):
        EMRouting(2)(scores, scale=1.0)
    with pytest.raises(ValueError, match="em_routing: scale=None: alpha is the scale"):
        EMRouting(2)(scores, keys=k)
