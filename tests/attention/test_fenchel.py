"""fenchel: Eq. 14 and the exact solution against plain second writings, and what the problem says of its solution."""

import warnings

import numpy as np
import pytest
import reference
import torch
from reference import BATCH, HEADS, MASKS, PRIORS, WIDTH, case, in_turn, randn
from tolerance import tolerance
from torch.testing import assert_close

from attnorm.attention import Mask
from attnorm.attention.normalizers.fenchel import Fenchel, solve

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-9, "atol": 1e-9}
ALPHA = 0.6


# ------------------------------------------------------------------------------------------------- a second writing


def each_row(row, scores, keys, alpha, allowed=None, log_prior=None):
    """row(s, T, u, alpha) -> weights, for the allowed keys of prior mass of each query by itself; 0 elsewhere."""
    allowed = (torch.tensor(True) if allowed is None else allowed).expand(scores.shape)
    log_prior = (torch.zeros((), dtype=scores.dtype) if log_prior is None else log_prior).expand(scores.shape)
    result = []
    for b in range(scores.shape[0]):
        for h in range(scores.shape[1]):
            for n in range(scores.shape[2]):
                live = (allowed[b, h, n] & (log_prior[b, h, n] > -torch.inf)).nonzero()[:, 0]
                weights = torch.zeros(scores.shape[3], dtype=scores.dtype)
                if len(live):
                    u = log_prior[b, h, n, live].softmax(0)
                    weights = weights.index_add(0, live, row(scores[b, h, n, live], keys[b, h, live], u, alpha))
                result.append(weights)
    return torch.stack(result).reshape(scores.shape)


def first_order(s, T, u, alpha):
    return u * s.exp() / (u * s.exp()).sum()


def second_order(s, T, u, alpha):
    """Eq. 14: s2 = s - alpha T (I + alpha Sigma)^-1 T'(diag u - u u') s, term by term."""
    mu = sum(u[j] * T[j] for j in range(len(u)))
    sigma = sum(u[j] * torch.outer(T[j] - mu, T[j] - mu) for j in range(len(u)))
    bent = T.T @ (torch.diag(u) - torch.outer(u, u)) @ s
    s2 = s - alpha * T @ torch.linalg.inv(torch.eye(T.shape[1], dtype=T.dtype) + alpha * sigma) @ bent
    return first_order(s2, T, u, alpha)


def exact(s, T, u, alpha):
    """argmax_r alpha (mu.r - |r|^2 / 2) - log sum_j u_j exp(s_j + alpha t_j.r) by steepest ascent: slow and plain."""
    mu, r = u @ T, torch.zeros(T.shape[1], dtype=T.dtype)
    # Cov_w(T) <= (largest distance / 2)^2, so this step never overshoots
    step = 1 / (1 + alpha * torch.cdist(T, T).max().item() ** 2 / 4)
    for _ in range(int(30 / step)):
        w = torch.softmax(u.log() + s + alpha * T @ r, 0)
        r = r + step * (mu - r - T.T @ w)
    return torch.softmax(u.log() + s + alpha * T @ r, 0)


ROWS = {1: first_order, 2: second_order, "exact": exact}


def make_keys(n_keys, factor=1.0):
    return factor * randn(BATCH, HEADS, n_keys, WIDTH, seed=2)


def make_scores(given, factor=1.5):
    return factor * randn(BATCH, HEADS, *given.size, seed=3)


def both_forms(given):
    return [given.allowed] if given.compact is None else [given.allowed, given.argument]


# ----------------------------------------------------------------------------------------- the formula and its gradient


@pytest.mark.parametrize("order", [1, 2])
def test_weights_and_their_gradients_equal_the_loop_written_formula(order):
    for mask, prior in in_turn(shift=order):
        given, normalizer = MASKS[mask], Fenchel(order)
        assert (normalizer.needs_keys, normalizer.proportional_to_prior) == (order != 1, order == 1)
        log_prior = reference.make_log_prior(prior, *given.size)
        alpha = torch.tensor(ALPHA, dtype=torch.float64)
        inputs = reference.leaves(make_scores(given), make_keys(given.n_keys), alpha, log_prior)
        scores, keys, alpha, log_prior = inputs
        expected = each_row(ROWS[order], scores, keys, alpha, given.allowed, log_prior)
        actual = [normalizer(scores, m, log_prior=log_prior, keys=keys, scale=alpha) for m in both_forms(given)]
        with case(mask, prior):
            reference.assert_same(actual, expected, inputs, **TIGHT)


def test_exact_weights_and_their_gradients_equal_those_of_plain_ascent():
    """The gradients of the reference go through every step of its ascent; ours are implicit."""
    for mask, prior in in_turn(["none", "both_sides", "empty_example", "causal_tall", "dead_rows"], shift=1):
        given = MASKS[mask]
        log_prior = reference.make_log_prior(prior, *given.size)
        inputs = reference.leaves(
            make_scores(given)[:, :1],
            0.6 * make_keys(given.n_keys)[:, :1],
            torch.tensor(ALPHA, dtype=torch.float64),
            None if log_prior is None else log_prior[:, :1],
        )
        scores, keys, alpha, log_prior = inputs
        allowed = given.allowed[:, :1]
        expected = each_row(exact, scores, keys, alpha, allowed, log_prior)
        forms = [allowed] if given.compact is None else [allowed, given.argument]
        actual = [Fenchel("exact")(scores, m, log_prior=log_prior, keys=keys, scale=alpha) for m in forms]
        with case(mask, prior):
            reference.assert_same(actual, expected, inputs, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("order", [1, 2])
def test_attend_and_its_gradients_equal_the_loop_written_formula(order):
    """Order 2 never holds the scores there: it is softmax attention with other queries."""
    for mask, prior in in_turn(shift=order + 2):
        given = MASKS[mask]
        log_prior = reference.make_log_prior(prior, *given.size)
        inputs = reference.leaves(*reference.make_qkv(*given.size), torch.tensor(ALPHA, dtype=torch.float64), log_prior)
        q, k, v, alpha, log_prior = inputs
        inputs = inputs if order == 2 else [q, k, v, log_prior]
        weights = each_row(ROWS[order], alpha * q @ k.mT, k, alpha, given.allowed, log_prior)
        scale = alpha if order == 2 else ALPHA
        actual = [Fenchel(order).attend(q, k, v, m, log_prior=log_prior, scale=scale) for m in both_forms(given)]
        with case(mask, prior):
            reference.assert_same(actual, weights @ v, inputs, **TIGHT)


# ------------------------------------------------------------------------------------------ what the problem says of it


def random_problem(prior="pairwise", mask="random", factor=1.0):
    """q, k, dense mask, log u and alpha; scores are alpha q k'."""
    given = MASKS[mask]
    q, k, _ = reference.make_qkv(*given.size)
    return factor * q, k, given.allowed, reference.make_log_prior(prior, *given.size), ALPHA


def u_of(allowed, log_prior, shape):
    """u (B, H, N, M) renormalized over the allowed keys, 0 in a dead row; and which rows live (B, H, N)."""
    log_prior = torch.zeros(()).double() if log_prior is None else log_prior
    u = log_prior.exp().expand(shape) * allowed
    total = u.sum(-1, keepdim=True)
    return torch.where(total > 0, u / total.clamp(min=1e-300), 0.0), total[..., 0] > 0


@pytest.mark.parametrize("prior", PRIORS)
def test_exact_is_stationary_in_score_space_and_in_the_evidence(prior):
    for factor in (0.1, 1.0, 10.0, 1000.0):
        q, k, allowed, log_prior, alpha = random_problem(prior, factor=factor)
        scores = alpha * q @ k.mT
        u, live = u_of(allowed, log_prior, scores.shape)
        w = Fenchel("exact")(scores, allowed, log_prior=log_prior, keys=k, scale=alpha)
        logits = u.log() + scores + alpha * (u - w) @ k @ k.mT
        solution = solve(q, k, allowed, log_prior=log_prior, scale=alpha)
        with case(factor):
            assert_close(w[live], logits[live].softmax(-1), rtol=0, atol=1e-8)
            assert_close((solution / alpha)[live], (u @ k + q - w @ k)[live], rtol=1e-8, atol=1e-8)
            assert_close(w[live], (u.log() + solution @ k.mT)[live].softmax(-1), rtol=0, atol=1e-8)
            assert (solution[~live] == 0).all() and (w[~live] == 0).all()


@pytest.mark.parametrize("order", [2, "exact"])
@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_with_a_gaussian_preference_the_output_is_the_closed_form(order, alpha):
    """u = N(mu, I) in two dimensions by Gauss-Hermite templates: sum_j w_j t_j = mu / (1 + alpha) + alpha b / (1 +
    alpha), b = mu + z (Sec. 5); for lambda* = alpha z / (1 + alpha) and E_w[t] = mu + lambda*."""
    nodes, mass = map(torch.from_numpy, np.polynomial.hermite_e.hermegauss(40))
    mu = torch.tensor([0.7, -0.4], dtype=torch.float64)
    templates = (torch.cartesian_prod(nodes, nodes) + mu)[None, None]
    log_prior = torch.cartesian_prod(mass, mass).prod(-1).log()
    z = randn(1, 1, 6, 2, seed=8)
    out = Fenchel(order).attend(z, templates, templates, log_prior=log_prior, scale=alpha)
    assert_close(out, mu / (1 + alpha) + alpha * (mu + z) / (1 + alpha), rtol=1e-8, atol=1e-8)
    if order == "exact":
        solution = solve(z, templates, log_prior=log_prior, scale=alpha)
        assert_close(solution, alpha * z / (1 + alpha), rtol=1e-8, atol=1e-8)


def test_nothing_rounds_away_if_all_templates_are_shifted():
    given = MASKS["random"]
    scores, keys = make_scores(given).float(), (make_keys(given.n_keys) + 1000).float()
    w = Fenchel(2)(scores, given.allowed, keys=keys, scale=ALPHA)
    wide = Fenchel(2)(scores.double(), given.allowed, keys=keys.double(), scale=ALPHA)
    assert_close(w.double(), wide, **tolerance(torch.float32, size=given.n_keys))


def test_a_padded_template_does_not_decide_how_the_others_are_rounded():
    scores, keys = make_scores(MASKS["none"]).float(), make_keys(5).float()
    keys[:, :, 0] = 1e6
    w = Fenchel(2)(scores, torch.arange(5) > 0, keys=keys, scale=ALPHA)
    alone = Fenchel(2)(scores[..., 1:], keys=keys[:, :, 1:], scale=ALPHA)
    assert_close(w[..., 1:], alone, **tolerance(torch.float32, size=5))


# --------------------------------------------------------------------------------------------------------------- Newton


@pytest.mark.parametrize("factor", [1.0, 30.0, 1e3, 1e4])
@pytest.mark.parametrize("length", [0.1, 1.0, 10.0])
def test_it_converges_at_any_size_of_scores_and_templates(factor, length):
    keys, (scores,) = length * randn(1, 2, 20, 8, seed=1), reference.leaves(factor * randn(1, 2, 12, 20, seed=2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        w = Fenchel("exact")(scores, keys=keys, scale=0.4)
    logits = scores + 0.4 * (1 / 20 - w) @ keys @ keys.mT
    assert_close(w, logits.softmax(-1), rtol=0, atol=1e-7)
    assert reference.gradients(w, [scores])[0].isfinite().all()


def test_rows_that_leave_the_iteration_early_are_as_if_alone():
    """Some rows need one step, some a dozen, in one head more than in the other."""
    factor = torch.tensor([[0.0, 50.0, 1e-3, 5.0, 0.0, 1.0], [0.0, 1e-3, 1e-3, 0.0, 300.0, 1e-6]]).double()
    scores, keys = factor[None, :, :, None] * randn(1, 2, 6, 20, seed=2), 5 * randn(1, 2, 20, 8, seed=1)
    together = Fenchel("exact")(scores, keys=keys, scale=0.4)
    for h in range(2):
        for n in range(6):
            alone = Fenchel("exact")(scores[:, h : h + 1, n : n + 1], keys=keys[:, h : h + 1], scale=0.4)
            assert_close(together[:, h : h + 1, n : n + 1], alone, rtol=1e-8, atol=1e-8)


def test_too_few_steps_are_said_with_the_rows_and_the_residual():
    scores, keys = 5 * randn(1, 1, 4, 9, seed=2), 3 * randn(1, 1, 9, 4, seed=1)
    scores[:, :, 2] = 0.0  # the preference itself is the solution
    with pytest.warns(RuntimeWarning, match=r"3 of 4 rows did not converge in max_steps=1 steps.*tolerance=1e-10"):
        w = Fenchel("exact", max_steps=1)(scores, keys=keys, scale=1.0)
    assert_close(w.sum(-1), torch.ones(1, 1, 4).double())


def test_padded_queries_take_no_steps():
    scores, mask = torch.zeros(1, 1, 4, 5).double(), Mask(queries=torch.tensor([[True, True, False, False]]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Fenchel("exact", max_steps=1)(scores, mask, log_prior=randn(5, seed=1), keys=randn(1, 1, 5, 3), scale=1.0)


# ------------------------------------------------------------------------------------------------------------- the user


@pytest.mark.parametrize("order", [2, "exact"])
def test_missing_keys_and_scale_are_said(order):
    scores, keys = make_scores(MASKS["none"]), make_keys(5)
    with pytest.raises(ValueError, match="fenchel: the templates are the keys"):
        Fenchel(order)(scores, scale=1.0)
    with pytest.raises(ValueError, match="fenchel: scale=None: alpha is the scale"):
        Fenchel(order)(scores, keys=keys)
    for scale in (0.0, -1.0, torch.tensor(-2.0), float("nan")):
        with pytest.raises(ValueError, match=r"scale=.*: alpha is the scale of the scores; pass a number above 0"):
            Fenchel(order)(scores, keys=keys, scale=scale)


def test_solve_has_the_defaults_and_dtype_of_attention():
    q, k, _ = reference.make_qkv(4, 5)
    expected = solve(q, k, scale=WIDTH**-0.5)
    assert_close(solve(q, k), expected, rtol=0, atol=0)
    found = solve(q.float().requires_grad_(), k.float())
    assert found.dtype == torch.float32 and not found.requires_grad
    assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"scale=.*: alpha is the scale of the scores; pass a number above 0"):
        solve(q, k, scale=0.0)


def test_the_implicit_gradient_is_the_dense_formula():
    """dw = (I + alpha C K)^-1 C ds with C = diag w - w w', K = T T', larger than gradcheck can go."""
    keys, (scores,) = randn(1, 1, 30, 8, seed=1), reference.leaves(2 * randn(1, 1, 3, 30, seed=2))
    w = Fenchel("exact")(scores, keys=keys, scale=0.8)
    cotangent = randn(1, 1, 3, 30, seed=3)
    (found,) = torch.autograd.grad(w, scores, cotangent)
    for row, g, gradient in zip(w.detach()[0, 0], cotangent[0, 0], found[0, 0], strict=True):
        C = torch.diag(row) - torch.outer(row, row)
        jacobian = torch.linalg.solve(torch.eye(30).double() + 0.8 * C @ keys[0, 0] @ keys[0, 0].T, C)
        assert_close(gradient, jacobian.T @ g, **TIGHT)


@pytest.mark.parametrize("factor", [0.3, 3.0])
def test_no_other_lambda_and_no_other_weights_are_better(factor):
    q, k, allowed, log_prior, alpha = random_problem(factor=factor)
    scores = alpha * q @ k.mT
    u, live = u_of(allowed, log_prior, scores.shape)

    def evidence_objective(at):
        mass = (u.log() + at @ k.mT).logsumexp(-1)
        return ((u @ k + q) * at).sum(-1) - at.square().sum(-1) / (2 * alpha) - mass

    def score_objective(w):  # w's - KL(w|u) - alpha/2 |T'(w - u)|^2
        kl = torch.where(u > 0, w * (w / u).log(), 0.0).sum(-1)
        return (w * scores).sum(-1) - kl - alpha / 2 * ((w - u) @ k).square().sum(-1)

    solution = solve(q, k, allowed, log_prior=log_prior, scale=alpha)
    w = Fenchel("exact")(scores, allowed, log_prior=log_prior, keys=k, scale=alpha)
    for seed in range(20):
        for size in (1e-3, 0.1):
            other = solution + size * randn(*solution.shape, seed=seed)
            assert (evidence_objective(other) < evidence_objective(solution))[live].all()
            tilted = w * (size * randn(*w.shape, seed=seed)).exp()
            tilted = tilted / tilted.sum(-1, keepdim=True)
            single = (u > 0).sum(-1) == 1  # nothing to choose
            assert (score_objective(tilted) < score_objective(w))[live & ~single].all()
