"""The maps of single rows (sparsemax, entmax, fusedmax, the constrained maps, argmax) against plain-Python solvers.

What every normalizer has to do is checked by the property suite, in test_testing.py.
"""

import math
from functools import partial
from itertools import pairwise, product

import pytest
import torch
from reference import BATCH, HEADS, MASKS, assert_same, case, in_turn, make_log_prior, make_qkv, randn
from tolerance import tolerance
from torch.autograd import gradcheck
from torch.func import functional_call
from torch.testing import assert_close

from attnorm.attention import build_normalizer

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-9, "atol": 1e-10}


# ------------------------------------------------------------------- one row as a list of floats, by other algorithms


def sparsemax_row(x):
    """Takes keys from the largest on while they stay positive."""
    ordered = sorted(x, reverse=True)
    tau = ordered[0] - 1
    for count in range(1, len(x) + 1):
        candidate = (sum(ordered[:count]) - 1) / count
        if ordered[count - 1] > candidate:
            tau = candidate
    return [max(score - tau, 0.0) for score in x]


def root(function, low, high):
    """Where the decreasing `function` passes 1."""
    for _ in range(90):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) > 1 else (low, middle)
    return (low + high) / 2


def entmax_row(x, alpha):
    top = max(x)

    def weights(tau):
        return [max((alpha - 1) * (score - top) - tau, 0.0) ** (1 / (alpha - 1)) for score in x]

    return weights(root(lambda tau: sum(weights(tau)), -1.0, 0.0))


def constrained_softmax_row(x, upper):
    def weights(minus_log_t):
        return [min(bound, math.exp(min(score - minus_log_t, 1.0))) for score, bound in zip(x, upper, strict=True)]

    return weights(root(lambda t: sum(weights(t)), min(x) - 5, max(x) + 5))


def constrained_sparsemax_row(x, upper):
    def weights(tau):
        return [min(max(score - tau, 0.0), bound) for score, bound in zip(x, upper, strict=True)]

    return weights(root(lambda tau: sum(weights(tau)), min(x) - 2, max(x)))


def total_variation_row(x, lam):
    """Dynamic programming: the derivative of the best cost of x_1..x_k as a function of p_k is piecewise linear, with
    slope 1 outside its corners; the next step clips it to [-lam, lam] and adds p - x_{k+1}."""

    def inverse(corners, value):
        if value <= corners[0][1]:
            return corners[0][0] - (corners[0][1] - value)
        for (b0, v0), (b1, v1) in pairwise(corners):
            if value <= v1:
                return b0 + (value - v0) * (b1 - b0) / (v1 - v0)
        return corners[-1][0] + (value - corners[-1][1])

    corners, clips = [(x[0], 0.0)], []
    for score in x[1:]:
        low, high = inverse(corners, -lam), inverse(corners, lam)
        clips.append((low, high))
        corners = [(low, -lam), *((b, v) for b, v in corners if -lam < v < lam), (high, lam)]
        corners = [(b, v + b - score) for b, v in corners]
    p = [inverse(corners, 0.0)]
    for low, high in reversed(clips):
        p.insert(0, min(max(p[0], low), high))
    return p


def argmax_row(x):
    return [float(j == x.index(max(x))) for j in range(len(x))]


def at_most(bound, row_map, x):
    """`row_map` with one number as the bound of each weight."""
    return row_map(x, [max(bound, 1 / len(x))] * len(x))


BOUNDED = {"constrained_softmax": constrained_softmax_row, "constrained_sparsemax": constrained_sparsemax_row}
MAPS = {  # name of the variant -> (registered name, options, the same for a row)
    "sparsemax": ("sparsemax", {}, sparsemax_row),
    "entmax": ("entmax", {}, lambda x: entmax_row(x, 1.5)),
    "entmax_1.2": ("entmax", {"alpha": 1.2}, lambda x: entmax_row(x, 1.2)),
    "entmax_2": ("entmax", {"alpha": 2}, sparsemax_row),
    "entmax_3": ("entmax", {"alpha": 3.0}, lambda x: entmax_row(x, 3.0)),
    "fusedmax_0": ("fusedmax", {"lam": 0}, sparsemax_row),
    "fusedmax": ("fusedmax", {}, lambda x: sparsemax_row(total_variation_row(x, 0.1))),
    "fusedmax_0.6": ("fusedmax", {"lam": 0.6}, lambda x: sparsemax_row(total_variation_row(x, 0.6))),
    **{name: (name, {"upper": 0.4}, partial(at_most, 0.4, row_map)) for name, row_map in BOUNDED.items()},
    "argmax": ("argmax", {}, argmax_row),
}


def make(variant):
    name, options, _ = MAPS[variant]
    module = build_normalizer(name, **options)
    return module.eval() if name == "argmax" else module


def by_rows(row_map, scores, allowed=None, log_prior=None, upper=None):
    """`row_map` on the allowed keys of each row; what is forbidden and dead rows stay 0."""
    allowed = torch.tensor(True) if allowed is None else allowed
    allowed = allowed.expand(scores.shape)
    s = scores if log_prior is None else scores + log_prior
    result = torch.zeros(scores.shape, dtype=torch.float64)
    for row in range(scores[..., 0].numel()):
        place = tuple(int(i) for i in torch.unravel_index(torch.tensor(row), scores.shape[:-1]))
        keys = [j for j in range(scores.shape[-1]) if allowed[place][j] and s[place][j] > -torch.inf]
        if keys:
            x = [s[place][j].item() for j in keys]
            bounds = [] if upper is None else [[upper.expand(scores.shape)[place][j].item() for j in keys]]
            result[place][keys] = torch.tensor(row_map(x, *bounds), dtype=torch.float64)
    return result


def random_scores(n_queries=4, n_keys=6, factor=1.5, seed=3, dtype=torch.float64):
    return factor * randn(BATCH, HEADS, n_queries, n_keys, seed=seed, dtype=dtype)


def random_mask(n_queries=4, n_keys=6, seed=1):
    """Half of the pairs, one dead row."""
    allowed = torch.rand(BATCH, HEADS, n_queries, n_keys, generator=torch.Generator().manual_seed(seed)) < 0.5
    allowed[..., 2] = True
    allowed[0, 0, 1] = False
    return allowed


def random_bounds(seed=9):
    """Between 0.1 and 0.7, the first key unbounded so that every set of keys with it can sum to 1."""
    upper = 0.1 + 0.6 * torch.rand(BATCH, HEADS, 4, 6, generator=torch.Generator().manual_seed(seed)).double()
    upper[..., 2] = 1.0
    return upper


def leaf(x):
    return x.detach().clone().requires_grad_()


# --------------------------------------------------------------------------------------------- the map and its gradient


@pytest.mark.parametrize("variant", MAPS)
def test_weights_equal_the_plain_solver(variant):
    for mask, prior in in_turn(shift=[*MAPS].index(variant)):
        given = MASKS[mask]
        scores, log_prior = random_scores(*given.size), make_log_prior(prior, *given.size)
        expected = by_rows(MAPS[variant][2], scores, given.allowed, log_prior)
        with case(mask, prior):
            assert_close(make(variant)(scores, given.argument, log_prior=log_prior), expected, **TIGHT)


def test_a_forbidden_key_may_as_well_be_deleted_even_if_its_score_is_no_number():
    scores, kept = random_scores(), torch.tensor([True, False, True, True, False, True])
    scores[..., ~kept] = torch.nan
    for variant in MAPS:
        with case(variant):
            assert_close(make(variant)(scores, kept)[..., kept], make(variant)(scores[..., kept]), **TIGHT)


# -------------------------------------------------------------------------------------------------- sizes and precision


@pytest.mark.parametrize("variant", MAPS)
def test_scores_of_1e4_keep_the_digits_of_their_differences(variant):
    scores = (random_scores(n_queries=2, n_keys=40) * 64).round() / 64  # exact in float32 with either offset
    expected = by_rows(MAPS[variant][2], scores)
    for offset in (1e4, -1e4):
        weights = make(variant)((scores + offset).float()).double()
        assert_close(weights, expected, **tolerance(torch.float32, size=40))


@pytest.mark.parametrize("variant", ["sparsemax", "entmax", "entmax_1.2", "entmax_3", "learned"])
def test_the_transforms_of_torch_func_give_what_autograd_gives(variant):
    module = make(variant) if variant in MAPS else build_normalizer("entmax", alpha=1.4, learn="layer").double()
    scores, step = random_scores(n_keys=6), random_scores(n_keys=6, seed=5)
    mask = torch.rand(scores.shape, generator=torch.Generator().manual_seed(1)) < 0.8
    mask[0, 0, 0] = False  # a dead row

    def f(scores):
        return (module(scores, mask) * step).sum()

    leaf = scores.clone().requires_grad_()
    (slope,) = torch.autograd.grad(f(leaf), leaf)
    assert_close(torch.func.grad(f)(scores), slope, **TIGHT)
    weights, change = torch.func.jvp(lambda s: module(s, mask), (scores,), (step,))
    assert_close(weights, module(scores, mask), **TIGHT)
    assert_close((change * step).sum(), (slope * step).sum(), **TIGHT)
    if variant in ("sparsemax", "entmax_1.2"):  # others have infinite second derivatives at the ends of the support
        curve = torch.func.jvp(torch.func.grad(f), (scores,), (step,))[1]
        before, after = (torch.func.grad(f)(scores + sign * 1e-5 * step) for sign in (-1, 1))
        assert_close(curve, (after - before) / 2e-5, rtol=0, atol=1e-5)
    each = torch.vmap(torch.func.grad(lambda s, m, x: (module(s[None], m[None]) * x).sum()))(scores, mask, step)
    assert_close(each, slope, **TIGHT)
    if variant == "learned":
        given = dict(module.named_parameters())
        (expected,) = torch.autograd.grad(f(scores), module.parameters())
        found = torch.func.grad(lambda own: (functional_call(module, own, (scores, mask)) * step).sum())(given)
        assert_close(found["a"], expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("variant", MAPS)
def test_a_score_that_is_no_number_spoils_its_row_only(variant):
    scores, module = random_scores(), make(variant)
    expected = module(scores)
    expected[0, 1, 2] = torch.nan
    for bad in (torch.nan, torch.inf):
        scores[0, 1, 2, 3] = bad
        assert_close(module(scores), expected, equal_nan=True, **TIGHT)


# --------------------------------------------------------------------------------------------------- sparsemax, entmax


def test_sparsemax_gives_exactly_0_to_what_is_1_below_the_largest():
    weights = make("sparsemax")(torch.tensor([[[[2.0, 1.0, 0.9, -3.0], [2.0, 1.5, 1.0, 0.0]]]]))
    assert_close(weights, torch.tensor([[[[1.0, 0.0, 0.0, 0.0], [0.75, 0.25, 0.0, 0.0]]]]), rtol=0, atol=0)


# ------------------------------------------------------------------------------------------------------------ fusedmax


def fusedmax(lam, scores, allowed=None):
    """The weights by the plain solver."""
    return by_rows(lambda x: sparsemax_row(total_variation_row(x, lam)), scores, allowed)


def test_fusedmax_equals_the_plain_solver_on_long_rows_with_ties_and_with_jumps_on_the_edge():
    scores, mask = random_scores(2, 150), random_mask(2, 150)
    mask[0, 0] = True
    cases = [(scores, mask, lam) for lam in (1e-3, 0.05, 0.3, 1.0, 4.0, 30.0)]
    integers = torch.randint(-2, 3, (2, 2, 8, 30), generator=torch.Generator().manual_seed(0)).double()
    cases += [(integers, None, lam) for lam in (0.25, 0.5, 1.0)]  # runs along the tube, and jumps of exactly 4 lam
    for scores, mask, lam in cases:
        with case(lam):
            assert_close(build_normalizer("fusedmax", lam=lam)(scores, mask), fusedmax(lam, scores, mask), **TIGHT)


@pytest.mark.parametrize("lam", [0.02, 0.3, 2.0])
def test_the_gradient_of_fusedmax_on_longer_rows(lam):
    scores = leaf(randn(1, 1, 3, 15, seed=2) * torch.tensor([0.1, 1.0, 3.0]).double()[:, None])
    mask = torch.rand(3, 15, generator=torch.Generator().manual_seed(4)) < 0.8
    assert gradcheck(build_normalizer("fusedmax", lam=lam), (scores, mask))


# ------------------------------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_of_each_pair_equal_the_plain_solver(name):
    scores, upper = random_scores(), random_bounds()
    for mask in (None, random_mask()):
        weights = build_normalizer(name)(scores, mask, upper=upper)
        assert_close(weights, by_rows(BOUNDED[name], scores, mask, upper=upper), **TIGHT)
        assert (weights <= upper + 1e-12).all() and (weights[..., :2] == upper[..., :2]).any()
        assert_close(build_normalizer(name, upper=upper)(scores, mask), weights, rtol=0, atol=0)


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_on_longer_rows(name):
    n_keys = 200
    scores = random_scores(2, n_keys)
    upper = torch.rand(1, HEADS, 1, n_keys, generator=torch.Generator().manual_seed(2)).double() * 6 / n_keys
    weights = build_normalizer(name)(scores, upper=upper)
    assert_close(weights, by_rows(BOUNDED[name], scores, upper=upper), **TIGHT)
    narrow = build_normalizer(name)(scores.float(), upper=upper.float()).double()
    assert_close(narrow, weights, **tolerance(torch.float32, size=n_keys, scale=weights.max()))


@pytest.mark.parametrize("name", BOUNDED)
def test_the_gradient_to_scores_and_bounds(name):
    module = build_normalizer(name)
    upper = random_bounds()[:1] + 0.5 * (torch.arange(6) == 2)  # 1 is itself a kink: p <= 1 anyway
    shared = torch.tensor([0.15, 0.2, 1.5, 0.26, 0.23, 0.21]).double()
    for mask, bounds in ((None, shared), (random_mask()[:1], upper)):
        inputs = leaf(random_scores()[:1]), leaf(bounds)
        assert gradcheck(lambda s, u, mask=mask: module(s, mask, upper=u), inputs)
        weights = module(inputs[0], mask, upper=inputs[1])
        assert all(g.any() for g in torch.autograd.grad(weights, inputs, randn(*weights.shape)))


@pytest.mark.parametrize(("name", "free"), [("constrained_softmax", "softmax"), ("constrained_sparsemax", "sparsemax")])
def test_a_bound_of_1_changes_neither_weights_nor_gradients(name, free):
    for factor in (0.5, 5.0):  # the second has rows where sparsemax gives one key everything
        scores = leaf(random_scores(factor=factor))
        for upper in (1.0, 7, torch.tensor(1.0), torch.tensor(torch.inf), torch.tensor(2)):
            weights = build_normalizer(name, upper=upper)(scores)
            assert_same(weights, build_normalizer(free)(scores), [scores], **TIGHT)


@pytest.mark.parametrize("upper", [0, 0.05, 1 / 6])
@pytest.mark.parametrize("name", BOUNDED)
def test_a_number_below_one_over_the_allowed_keys_gives_equal_weights(name, upper):
    for dtype, factor in product((torch.float32, torch.float64), (0.0, 1.0, 1e4)):
        scores, mask = leaf(random_scores(factor=factor, dtype=dtype)), random_mask()
        weights = build_normalizer(name, upper=upper)(scores, mask)
        count = mask.sum(-1, keepdim=True).clamp(min=1)
        bound = (1 / count).clamp(min=upper)
        one_choice = (bound * count <= 1 + 1e-9).expand_as(mask)
        assert_close(weights[one_choice], (mask / count).to(dtype)[one_choice])
        weights.backward(randn(*weights.shape, dtype=dtype))
        assert_close(scores.grad[one_choice], torch.zeros_like(scores)[one_choice], rtol=0, atol=1e-7)
        assert one_choice[1].any()


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_at_the_call_replace_those_at_construction(name):
    scores, module, (q, k, v) = random_scores(), build_normalizer(name, upper=0.3), make_qkv(4, 6)
    assert_close(module(scores, upper=0.5), build_normalizer(name, upper=0.5)(scores), rtol=0, atol=0)
    assert_close(module(scores, upper=random_bounds()), build_normalizer(name)(scores, upper=random_bounds()))
    weights = module(0.7 * q @ k.mT, upper=random_bounds())
    assert_close(module.attend(q, k, v, scale=0.7, upper=random_bounds()), weights @ v, **TIGHT)
    assert (module.attend(q, k, v, scale=0.7) - weights @ v).abs().max() > 1e-3


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_may_be_a_parameter_or_a_buffer(name):
    parameter = torch.nn.Parameter(torch.full((6,), 0.3))
    module = build_normalizer(name, upper=parameter)
    assert [*module.parameters()] == [parameter]
    module(random_scores())[..., 0].sum().backward()
    assert (parameter.grad != 0).any()
    assert build_normalizer(name, upper=torch.full((6,), 0.3)).double().upper.dtype == torch.float64


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_of_forbidden_keys_are_not_read(name):
    scores, mask, upper = leaf(random_scores()), random_mask(), random_bounds()
    expected = build_normalizer(name)(scores, mask, upper=upper)
    odd = leaf(upper.masked_fill(~mask, torch.nan))
    weights = build_normalizer(name)(scores, mask, upper=odd)
    assert_close(weights, expected, rtol=0, atol=0)
    weights.backward(randn(*weights.shape))
    assert (odd.grad[~mask] == 0).all() and odd.grad.isfinite().all() and (odd.grad != 0).any()


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_that_leave_no_weights_are_refused_with_the_row_and_the_sum(name):
    upper, mask = random_bounds(), random_mask()
    mask[1, 0, 3] = torch.tensor([True, True, False, False, False, False])
    upper[1, 0, 3, :2] = torch.tensor([0.25, 0.5])
    with pytest.raises(ValueError, match=r"upper: .*row \(1, 0, 3\).* sum to 0\.75;"):
        build_normalizer(name)(random_scores(), mask, upper=upper)
    mask[1, 0, 3] = False  # a dead row needs no bounds
    assert (build_normalizer(name)(random_scores(), mask, upper=upper)[1, 0, 3] == 0).all()


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_that_sum_to_1_up_to_rounding_are_the_weights(name):
    for dtype in (torch.float32, torch.bfloat16):
        upper = random_scores(n_keys=200, seed=6).softmax(-1).to(dtype)
        weights = build_normalizer(name)(random_scores(n_keys=200, dtype=torch.float32), upper=upper)
        assert_close(weights, upper.float(), rtol=0, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_that_are_no_bounds_are_refused(name):
    for number in (-0.1, math.nan, math.inf, True, "0.5", None):
        with pytest.raises(ValueError, match="upper="):
            build_normalizer(name, upper=number)
    module = build_normalizer(name)
    with pytest.raises(ValueError, match="upper=-1"):
        module(random_scores(), upper=-1)
    for bad in (-0.1, math.nan):
        upper = random_bounds()
        upper[1, 1, 0, 5] = bad
        with pytest.raises(ValueError, match=rf"upper: {bad} at index \(1, 1, 0, 5\)"):
            module(random_scores(), upper=upper)
    with pytest.raises(ValueError, match=r"upper: shape \(5,\) does not broadcast .*\(2, 2, 4, 6\)"):
        module(random_scores(), upper=torch.ones(5))


@pytest.mark.parametrize("name", BOUNDED)
def test_a_bound_of_0_is_a_mask(name):
    mask = random_mask()
    mask[0, 0, 1] = True
    weights = build_normalizer(name)(random_scores(), upper=mask.double())
    assert_close(weights, build_normalizer(name)(random_scores(), mask), **TIGHT)


# -------------------------------------------------------------------------------------------------------------- argmax


def test_argmax_takes_the_first_of_the_largest():
    scores = torch.tensor([[[[1.0, 3.0, 3.0], [5.0, 5.0, 5.0], [-9.0, -8.0, -7.0]]]])
    mask = torch.tensor([[True, True, True], [False, True, True], [True, True, False]])
    weights = build_normalizer("argmax").eval()(scores, mask)
    assert_close(weights, torch.tensor([[[[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]]]), rtol=0, atol=0)


def test_argmax_is_refused_in_training():
    module = build_normalizer("argmax")
    assert not module.differentiable and module.training
    with pytest.raises(RuntimeError, match=r"no gradient.*\.eval\(\).*softmax.*entmax"):
        module(random_scores())
    assert not module.eval()(leaf(random_scores())).requires_grad
