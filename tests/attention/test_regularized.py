"""Regularized maxima: an Omega of one's own against the closed forms, scipy and finite differences; the values."""

import math
import warnings

import pytest
import torch
from reference import BATCH, HEADS, MASKS, case, gradients, in_turn, leaves, make_log_prior, randn
from scipy import optimize
from torch import nn
from torch.autograd import gradcheck
from torch.testing import assert_close

from attnorm.attention import RegularizedMax, build_normalizer, check_attention
from attnorm.attention.normalizers.fusedmax import total_variation_prox
from attnorm.attention.testing import check_normalizer

pytestmark = pytest.mark.numerical

TOLERANCE = 1e-12  # the default of the solver
# If Omega bends by at least m, and its gradient changes by at most L per unit of p near the solution, then the error is
# at most (1 + L) / m times the residual, per entry of a row. The cases here stay below 1000 for all entries together.
CLOSE = {"rtol": 0, "atol": 1000 * TOLERANCE}


def half_square(p):
    return p.square().sum(-1) / 2


def negative_entropy(p):
    return (p * p.log()).sum(-1)


def tsallis(alpha):
    return lambda p: (p.pow(alpha).sum(-1) - 1) / (alpha * (alpha - 1))


def box(upper):
    """1/2 |p|^2 with p <= upper, by its prox."""
    return {"prox": lambda x: torch.minimum(x, upper), "penalty": lambda p: torch.zeros_like(p[..., 0])}


def jumps(p, allowed):
    """sum_j |p_j - p_{j-1}| over the allowed keys, row by row."""
    found = torch.zeros_like(p[..., 0])
    for place in torch.cartesian_prod(*map(torch.arange, found.shape)).tolist():
        row = p[tuple(place)][allowed.expand(p.shape)[tuple(place)]]
        found[tuple(place)] = row.diff().abs().sum()
    return found


FUSED = {
    "prox": lambda x, allowed: total_variation_prox(x, 0.3, allowed),
    "penalty": lambda p, allowed: 0.3 * jumps(p, allowed),
}
UPPER = torch.tensor([0.45, 0.22, 0.35, 0.3, 0.4], dtype=torch.float64)
CLOSED = {  # name: (Omega, the registered map that it is, its options)
    "softmax": ({"omega": negative_entropy}, "softmax", {}),
    "sparsemax": ({"omega": half_square}, "sparsemax", {}),
    "sparsemax by prox": ({"prox": lambda x: x, "penalty": lambda p: 0 * p[..., 0]}, "sparsemax", {}),
    "entmax": ({"omega": tsallis(1.5)}, "entmax", {}),
    "entmax 3": ({"omega": tsallis(3.0)}, "entmax", {"alpha": 3.0}),
    "fusedmax": (FUSED, "fusedmax", {"lam": 0.3}),
    "constrained_sparsemax": (box(torch.full((), 0.4, dtype=torch.float64)), "constrained_sparsemax", {"upper": 0.4}),
}


def twins(name):
    omega, registered, options = CLOSED[name]
    return RegularizedMax(**omega), build_normalizer(registered, **options)


def leaf(x):
    return x.detach().clone().requires_grad_()


def random_scores(*size, factor=1.5, seed=3):
    return factor * randn(BATCH, HEADS, *(size or (4, 5)), seed=seed)


def enough_keys(mask):
    """Whether bounds of 0.4 leave a solution in each row with an allowed key; the registered map raises the others."""
    counts = MASKS[mask].allowed.expand(BATCH, HEADS, *MASKS[mask].size).sum(-1)
    return ((counts == 0) | (counts > 2)).all()


def cases_of(name):
    """(mask, scores, log u) for each mask."""
    for mask, prior in in_turn(shift=[*CLOSED].index(name)):
        if name == "constrained_sparsemax" and (prior == "with_holes" or not enough_keys(mask)):
            continue
        yield mask, random_scores(*MASKS[mask].size), make_log_prior(prior, *MASKS[mask].size)


# ------------------------------------------------------------------------------------------- equal to the closed forms


@pytest.mark.parametrize("name", CLOSED)
def test_weights_and_gradients_are_those_of_the_closed_form(name):
    module, closed = twins(name)
    met = 0
    for mask, scores, log_prior in cases_of(name):
        scores, log_prior = leaves(scores, log_prior)
        w, expected = (it(scores, MASKS[mask].argument, log_prior=log_prior) for it in (module, closed))
        with case(mask):
            assert_close(w, expected, **CLOSE)
            found, wanted = (gradients(it, [x for x in (scores, log_prior) if x is not None]) for it in (w, expected))
            assert_close(found, wanted, rtol=0, atol=1e4 * TOLERANCE)
            met += wanted[0].abs().max() > 0.1
    assert met >= 2


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax", "fusedmax"])
def test_large_and_tiny_scores(name):
    module, closed = twins(name)
    for factor in (1e-6, 30.0, 1e4):
        with case(factor), warnings.catch_warnings():
            warnings.simplefilter("error")
            scores = random_scores(3, 20, factor=factor)
            assert_close(module(scores), closed(scores), **CLOSE)
            assert_close(module(scores + 1e4), closed(scores + 1e4), rtol=0, atol=1e-8)  # the scores round at 1e4


def test_scores_and_omega_of_the_same_large_factor_give_the_weights_without_it():
    module, scores = RegularizedMax(lambda p: 1000 * half_square(p)), random_scores()
    assert_close(module(1000 * scores), build_normalizer("sparsemax")(scores), **CLOSE)


# --------------------------------------------------------------------------------------------- an Omega without a twin


class Uneven(RegularizedMax):
    """1/2 |p|^2 + lam sum_j (p_j - p_{j+1})^2 + rho |p|^3, with a learned lam: no sum over keys, no closed form."""

    key_equivariant = False

    def __init__(self, lam=0.4, rho=0.5, tolerance=TOLERANCE):
        super().__init__(tolerance=tolerance)
        self.lam, self.rho = nn.Parameter(torch.tensor([lam], dtype=torch.float64)), rho

    def omega(self, p, allowed):
        both = allowed[..., 1:] & allowed[..., :-1]
        squares = (p.diff(dim=-1).square() * both).sum(-1)
        return half_square(p) + self.lam * squares + self.rho * p.square().sum(-1).pow(1.5)


class Loudest(RegularizedMax):
    """1/2 |p|^2 + lam max_j |p_j| by its prox, which is x minus the projection of x to the l1 ball of radius lam."""

    def __init__(self, lam=0.3):
        super().__init__()
        self.lam = nn.Parameter(torch.tensor(lam, dtype=torch.float64))

    def prox(self, x):
        ordered = x.abs().sort(-1, descending=True).values
        count = torch.arange(1, x.shape[-1] + 1)
        taus = (ordered.cumsum(-1) - self.lam) / count
        tau = taus.gather(-1, (ordered > taus).sum(-1, keepdim=True).clamp(min=1) - 1).clamp(min=0)
        return x.sign() * torch.minimum(x.abs(), tau)

    def penalty(self, p):
        return self.lam * p.amax(-1)


def by_scipy(s, function):
    """argmax <p, s> - function(p) over the simplex by sequential quadratic programming."""
    m = len(s)
    found = optimize.minimize(
        lambda p: function(p) - p @ s,
        [1 / m] * m,
        method="SLSQP",
        bounds=[(0, 1)] * m,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
        options={"ftol": 1e-15, "maxiter": 500},
    )
    return found.x, -found.fun


@pytest.mark.parametrize("make", [Uneven, Loudest])
def test_a_new_omega_equals_the_solution_of_scipy(make):
    functions = {
        Uneven: lambda p: (p @ p) / 2 + 0.4 * ((p[1:] - p[:-1]) ** 2).sum() + 0.5 * (p @ p) ** 1.5,
        Loudest: lambda p: (p @ p) / 2 + 0.3 * p.max(),
    }
    module, scores = make(), random_scores(3, 6)[:1]
    weights, values = module(scores), module.value(scores)
    for h in range(HEADS):
        for i in range(3):
            expected, value = by_scipy(scores[0, h, i].numpy(), functions[make])
            # 1e-8 in an objective that bends by 1 is 1e-4 in p; where it has no kink, scipy is more exact than that
            assert_close(weights[0, h, i].detach(), torch.from_numpy(expected), rtol=0, atol=1e-4)
            assert abs(values[0, h, i].item() - value) < 1e-8
            assert values[0, h, i].item() > value - 1e-12  # ours is the better of two feasible points


@pytest.mark.parametrize("make", [Uneven, Loudest])
def test_gradients_to_scores_prior_and_parameters_are_those_of_the_solution(make):
    module, mask = make(), torch.rand(3, 6, generator=torch.Generator().manual_seed(0)) < 0.7
    mask[:, 0] = True
    inputs = leaf(random_scores(3, 6)[:1]), leaf(randn(1, HEADS, 1, 6, seed=8)), module.lam
    assert gradcheck(lambda s, u, _: module(s, mask, log_prior=u), inputs, fast_mode=True)
    assert all(g.any() for g in torch.autograd.grad(module(inputs[0])[..., 0].sum(), (inputs[0], module.lam)))
    assert gradcheck(lambda s, u, _: module.value(s, mask, log_prior=u), inputs, fast_mode=True)


def test_a_function_and_a_prox_of_the_same_omega_agree():
    """1/2 |p|^2 + lam |p| + mu/2 |p|^2: the Jacobian of its prox is no projection, unlike those above."""
    mu, found = 0.7, []
    for way in ("omega", "prox"):
        lam, scores = leaf(torch.tensor(0.6)), leaf(random_scores(3, 6))
        functions = {
            "omega": lambda p, lam=lam: (1 + mu) * half_square(p) + lam * p.norm(dim=-1),
            "prox": lambda x, lam=lam: x * (1 - lam / x.norm(dim=-1, keepdim=True)).clamp(min=0) / (1 + mu),
        }
        weights = RegularizedMax(**{way: functions[way]})(scores)
        found.append([weights, *torch.autograd.grad(weights, (scores, lam), randn(*weights.shape, seed=4))])
    for a, b in zip(*found, strict=True):
        assert b.abs().max() > 0.1
        assert_close(a, b, rtol=1e-6 if a.dtype == torch.float32 else 0, atol=1e4 * TOLERANCE)


def test_a_module_as_omega_is_trained():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.tensor(2.0))

        def forward(self, p):
            return self.factor * negative_entropy(p)

    module = RegularizedMax(Scaled())
    assert len([*module.parameters()]) == 1
    scores = random_scores()
    weights = module(scores)
    assert_close(weights, (scores / 2).softmax(-1), **CLOSE)
    (found,) = torch.autograd.grad(weights[..., 0].sum(), module.parameters())
    factor = leaf(torch.tensor(2.0).double())
    (expected,) = torch.autograd.grad((scores / factor).softmax(-1)[..., 0].sum(), factor)
    assert_close(found.double(), expected, rtol=1e-6, atol=0)  # the gradient of a float32 parameter


def test_a_module_as_omega_receives_the_mask_if_it_takes_it():
    class Neighbours(nn.Module):
        def forward(self, p, allowed):
            return half_square(p) + 0.3 * ((p.diff(dim=-1).square()) * (allowed[..., 1:] & allowed[..., :-1])).sum(-1)

    scores, mask = random_scores(3, 6), torch.arange(6) != 2
    expected = RegularizedMax(Neighbours().forward)(scores, mask)
    assert torch.equal(RegularizedMax(Neighbours())(scores, mask), expected)


@pytest.mark.slow
def test_a_compiled_model_has_the_same_weights_and_gradients():
    results = []
    for module in (Uneven(), torch.compile(Uneven(), backend="aot_eager")):
        scores = leaf(random_scores(3, 6))
        weights = module(scores)
        weights.square().sum().backward()
        results.append((weights, scores.grad, next(module.parameters()).grad))
    torch.compiler.reset()
    assert_close(results[1], results[0], **CLOSE)


class FusedByItsProx(RegularizedMax):
    key_equivariant = False

    def __init__(self):
        super().__init__(**FUSED)


@pytest.mark.slow
@pytest.mark.parametrize("make", [Loudest, FusedByItsProx])
def test_an_omega_of_ones_own_keeps_the_promises_of_a_normalizer(make):
    assert check_normalizer(make, lengths=[(9, 6)], print_report=False).passed


# ---------------------------------------------------------------------------------------------------------- the values

VALUED = {
    "softmax": ({}, lambda p: -torch.special.entr(p).sum()),
    "sparsemax": ({}, lambda p: p @ p / 2),
    "entmax": ({}, lambda p: (p.pow(1.5).sum() - 1) / 0.75),
    "fusedmax": ({"lam": 0.3}, lambda p: p @ p / 2 + 0.3 * p.diff().abs().sum()),
    "constrained_softmax": ({"upper": 0.6}, lambda p: -torch.special.entr(p).sum()),
    "constrained_sparsemax": ({"upper": 0.6}, lambda p: p @ p / 2),
    "argmax": ({}, lambda p: 0.0),
}


@pytest.mark.parametrize("name", VALUED)
def test_the_value_is_the_objective_at_the_weights_and_its_gradient_is_the_weights(name):
    options, omega = VALUED[name]
    module = build_normalizer(name, **options).eval()
    for mask, prior in in_turn():
        allowed = MASKS[mask].allowed.expand(BATCH, HEADS, *MASKS[mask].size)
        scores, log_prior = leaf(random_scores(*MASKS[mask].size)), make_log_prior(prior, *MASKS[mask].size)
        with case(mask, prior):
            value = module.value(scores, MASKS[mask].argument, log_prior=log_prior)
            weights = module(scores, MASKS[mask].argument, log_prior=log_prior)
            s = scores if log_prior is None else scores + log_prior
            for place in torch.cartesian_prod(*map(torch.arange, value.shape)).tolist():
                keys = allowed[tuple(place)] & (s[tuple(place)] > -math.inf)
                x, p = s[tuple(place)][keys].detach(), weights[tuple(place)][keys].detach()
                expected = x @ p - omega(p) if keys.any() else torch.zeros(()).double()
                assert_close(value[tuple(place)].detach(), expected, rtol=0, atol=1e-12)
            value.sum().backward()
            assert_close(scores.grad, weights.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", CLOSED)
def test_the_value_of_ones_own_omega_is_that_of_the_closed_form_and_its_gradient_is_the_weights(name):
    module, closed = twins(name)
    for mask, scores, log_prior in [*cases_of(name)][:6]:
        scores = leaf(scores)
        with case(mask):
            value = module.value(scores, MASKS[mask].argument, log_prior=log_prior)
            assert_close(value, closed.value(scores, MASKS[mask].argument, log_prior=log_prior), **CLOSE)
            (gradient,) = torch.autograd.grad(value.sum(), scores)
            assert_close(gradient, module(scores, MASKS[mask].argument, log_prior=log_prior), rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", ["constrained_softmax", "constrained_sparsemax"])
def test_a_bound_is_worth_its_multiplier(name):
    module, inputs = build_normalizer(name), (leaf(random_scores(3, 5)[:1]), leaf(UPPER))
    assert gradcheck(lambda s, u: module.value(s, upper=u), inputs)
    (found,) = torch.autograd.grad(module.value(inputs[0], upper=inputs[1]).sum(), inputs[1])
    assert (found > 0.1).any()


def test_16_bit_scores_have_the_value_of_float32():
    scores = random_scores().bfloat16()
    for name in ("softmax", "sparsemax", "constrained_softmax"):
        module = build_normalizer(name)
        assert_close(module.value(scores), module.value(scores.float()).bfloat16(), rtol=0, atol=0)


# ---------------------------------------------------------------------------------------------------- use and messages


def test_a_class_is_named_by_its_path_and_takes_options():
    path = f"{__name__}:Uneven"
    module = build_normalizer(path, lam=0.0, rho=0.0, tolerance=1e-9)
    assert_close(module(random_scores()), build_normalizer("sparsemax")(random_scores()), rtol=0, atol=1e-8)
    assert check_attention({"encoder": path, "options": {"Uneven": {"rho": 0.1}}}, {"encoder": False}) == []


@pytest.mark.parametrize("name", ["softmax", "fusedmax"])
def test_evaluation_gives_the_same_bits_as_training(name):
    module, scores = twins(name)[0], random_scores()
    expected = module(leaf(scores)).detach()
    with torch.no_grad():
        assert not module(scores).requires_grad and module(scores).equal(expected)
    with torch.inference_mode():
        assert module(scores.clone()).equal(expected)


@pytest.mark.parametrize("kind", ["omega", "prox"])
def test_weights_require_a_gradient_only_if_something_that_they_depend_on_does(kind):
    module = RegularizedMax(half_square) if kind == "omega" else RegularizedMax(**box(torch.tensor(0.6).double()))
    assert not module(random_scores()).requires_grad
    assert module(leaf(random_scores())).requires_grad
    assert Uneven()(random_scores()).requires_grad


def test_rows_that_have_not_converged_are_reported_with_their_residual():
    scores = random_scores(3, 30)
    for options, steps in (({"omega": negative_entropy}, 2), (box(torch.tensor(0.1)), 1)):
        message = rf"[1-9]\d* of 12 rows did not converge in max_steps={steps} steps: the largest residual is \d"
        with pytest.warns(RuntimeWarning, match=message):
            RegularizedMax(**options, max_steps=steps)(scores)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RegularizedMax(negative_entropy)(scores)


def test_a_row_does_not_depend_on_when_others_converge():
    module, scores = RegularizedMax(negative_entropy), random_scores(4, 9)
    scores[1] *= 20
    assert module(scores)[:1].equal(module(scores[:1]))


def test_what_is_no_omega_is_refused():
    scores = random_scores()
    for given in ({}, {"omega": half_square, "prox": lambda x: x}, {"penalty": half_square}):
        with pytest.raises(ValueError, match="needs either omega"):
            RegularizedMax(**given)
    with pytest.raises(ValueError, match="omega: is linear"):
        RegularizedMax(lambda p: p.sum(-1))(leaf(scores))
    with pytest.raises(ValueError, match=r"omega: returned the shape \(2, 2, 4, 5\), expected \(2, 2, 4\)"):
        RegularizedMax(lambda p: p.square())(scores)
    with pytest.raises(ValueError, match=r"prox: returned the shape \(2, 2, 4\), expected \(2, 2, 4, 5\)"):
        RegularizedMax(prox=half_square)(scores)
    with pytest.raises(ValueError, match=r"needs penalty\(p\)"):
        RegularizedMax(prox=lambda x: x).value(scores)
    for wrong in (0, 1, True, "1e-3", None):
        with pytest.raises(ValueError, match="tolerance="):
            RegularizedMax(half_square, tolerance=wrong)
    for wrong in (0, 1.5, True, "9", None):
        with pytest.raises(ValueError, match="max_steps="):
            RegularizedMax(half_square, max_steps=wrong)
