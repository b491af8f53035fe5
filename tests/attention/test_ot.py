"""ot: equal to its formula written with plain loops, right at any size of scores, and its limits as the paper says."""

import pytest
import reference
import torch
from reference import BATCH, HEADS, MASKS, WIDTH, case, in_turn, randn
from tolerance import tolerance
from torch import nn
from torch.testing import assert_close

from attnorm.attention import build_normalizer
from attnorm.attention.normalizers import ot as source
from attnorm.attention.normalizers.ot import OptimalTransport

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-10, "atol": 1e-10}


# ------------------------------------------------------------------------------------------------- a second writing


def distances(keys):
    """C_ti = |k_t - k_i|^2 / D for keys (B, H, A, D), pair by pair."""
    rows = keys.unbind(-2)
    return torch.stack([torch.stack([(t - i).square().mean(-1) for i in rows], -1) for t in rows], -2)


def transport(scores, costs, gamma, allowed=None, log_prior=None):
    """w_t = sum_i u_i exp((s_t - C_ti) / gamma) / Z_i, source by source, for scores of any size."""
    allowed = (torch.tensor(True) if allowed is None else allowed).expand(scores.shape)
    log_prior = (torch.zeros((), dtype=scores.dtype) if log_prior is None else log_prior).expand(scores.shape)
    result = []
    for b in range(scores.shape[0]):
        for h in range(scores.shape[1]):
            for n in range(scores.shape[2]):
                live = allowed[b, h, n].nonzero()[:, 0].tolist()
                sources = [i for i in live if log_prior[b, h, n, i] > -torch.inf]
                row = torch.zeros(scores.shape[3], dtype=scores.dtype)
                for i, u in zip(sources, log_prior[b, h, n, sources].softmax(0), strict=True):
                    carried = ((scores[b, h, n, live] - costs[b, h, live, i]) / gamma).softmax(0)
                    row = row.index_add(0, torch.tensor(live), u * carried)
                result.append(row)
    return torch.stack(result).reshape(scores.shape)


def make_keys(n_keys, dtype=torch.float64, factor=1.0):
    return (factor * randn(BATCH, HEADS, n_keys, WIDTH, seed=2)).to(dtype)


def make_scores(given, factor=1.5, dtype=torch.float64):
    return (factor * randn(BATCH, HEADS, *given.size, seed=3)).to(dtype)


# ----------------------------------------------------------------------------------------- the formula and its gradient


@pytest.mark.parametrize("shift", [0, 2])
def test_weights_and_their_gradients_equal_the_loop_written_formula(shift):
    for mask, prior in in_turn(shift=shift):
        given = MASKS[mask]
        log_prior = reference.make_log_prior(prior, *given.size)
        scores, keys, log_prior = reference.leaves(make_scores(given), make_keys(given.n_keys), log_prior)
        expected = transport(scores, distances(keys), 0.7, given.allowed, log_prior)
        masks = [given.allowed] if given.compact is None else [given.allowed, given.argument]
        actual = [OptimalTransport(gamma=0.7)(scores, form, log_prior=log_prior, keys=keys) for form in masks]
        with case(mask, prior):
            reference.assert_same(actual, expected, [scores, keys, log_prior], **TIGHT)


@pytest.mark.parametrize("gamma", [0.05, 0.002], ids=["float64 products", "log domain"])
def test_the_other_ways_to_compute_give_the_same_value_and_gradients(monkeypatch, gamma):
    """In float32 with the scores and costs that the first way cannot hold; two rows of the log domain at a time."""
    masks, priors = ["none", "both_sides", "dead_rows", "causal_tall", "random"], ["none", "pairwise", "with_holes"]
    for mask, prior in in_turn(masks, priors, shift=gamma < 0.01):
        given = MASKS[mask]
        monkeypatch.setattr(source, "BUFFER", 2 * given.n_keys**2)
        log_prior = reference.make_log_prior(prior, *given.size)
        scores, keys, log_prior = reference.leaves(
            make_scores(given).float(), make_keys(given.n_keys).float(), log_prior
        )
        actual = OptimalTransport(gamma)(scores, given.allowed, log_prior=log_prior, keys=keys)
        wide = [x if x is None else x.double() for x in (scores, keys, log_prior)]
        expected = transport(wide[0], distances(wide[1]), gamma, given.allowed, wide[2]).float()
        with case(mask, prior):
            inputs = [scores, keys, log_prior]
            reference.assert_same(actual, expected, inputs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mask", ["none", "both_sides", "causal", "dead_rows"])
def test_masks_and_large_scores_alone_stay_on_the_fast_way(monkeypatch, mask):
    given, seen = MASKS[mask], []
    fast = OptimalTransport.transport

    def transport(self, s, log_u, costs, beyond):
        seen.append((s.dtype, beyond is None))
        return fast(self, s, log_u, costs, beyond)

    monkeypatch.setattr(OptimalTransport, "transport", transport)
    keys = make_keys(given.n_keys).float()
    log_prior = torch.zeros(given.n_keys).index_fill(0, torch.tensor(0), -torch.inf)
    for factor, gamma in ((1.0, 1.0), (1e4, 1.0), (1.0, 0.05), (1e-2, 1e-3)):
        scores = make_scores(given, factor).float()
        OptimalTransport(gamma)(scores, given.allowed, log_prior=log_prior, keys=keys)
    assert seen == [(torch.float32, True)] * 2 + [(torch.float64, True)] * 2


# ------------------------------------------------------------------------------------------------ numbers of any size


@pytest.mark.parametrize("gamma", [1.0, 0.1, 1e-3])
@pytest.mark.parametrize("factor", [1e-3, 1.0, 20.0, 1e4])
def test_any_scores_and_any_gamma_give_the_weights_of_exact_arithmetic(factor, gamma):
    for mask, dtype in (("both_sides", torch.float64), ("random", torch.float32)):
        given = MASKS[mask]
        scores, keys = reference.leaves(make_scores(given, factor, dtype), make_keys(given.n_keys, dtype))
        log_prior = reference.make_log_prior("pairwise", *given.size).to(dtype).requires_grad_()
        w = OptimalTransport(gamma)(scores, given.allowed, log_prior=log_prior, keys=keys)
        exact = transport(scores.double(), distances(keys.double()), gamma, given.allowed, log_prior.double())
        with case(mask, dtype):
            assert_close(w.double(), exact, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-9)
            assert all(g.isfinite().all() for g in reference.gradients(w, [scores, keys, log_prior]))


@pytest.mark.parametrize("far", [0.0, 3.0, 10.0, 30.0])
def test_sources_that_are_hardly_within_reach_keep_their_mass_and_gradient(far):
    """Row 0 holds one source `reach` below the rest, near to nothing if `far`; row 1 is an easy one."""
    for reach in (50, 70, 90, 500, 700, 3000):
        scores = torch.tensor([[[[0.0, -0.5, -reach, 0.3], [0.1, 0.2, 0.3, 0.4]]]])
        keys = torch.tensor([[0.0, 1.0, far, -0.5], [0.5, 0.0, far, 0.2]]).T[None, None]
        inputs = scores, keys, log_prior = reference.leaves(scores, keys, torch.tensor([-5.0, -5.0, 0.0, -5.0]))
        actual = OptimalTransport()(scores, log_prior=log_prior, keys=keys)
        wide = [x.double() for x in inputs]
        expected = transport(wide[0], distances(wide[1]), 1.0, None, wide[2])
        with case(reach):
            reference.assert_same(actual, expected.float(), inputs, rtol=1e-4, atol=1e-5)


def test_templates_far_from_the_origin_or_from_each_other_stay_distinct():
    """The differences within a cluster are small beside the squares of the distances between clusters."""
    scores, cluster = make_scores(MASKS["none"]).float(), (torch.arange(5) >= 2)[:, None]
    for shift, rtol in ((torch.tensor(1000), 1e-4), (300 * cluster, 1e-5)):
        keys = (make_keys(5) + shift).float()
        expected = transport(scores.double(), distances(keys.double()), 1.0)
        assert_close(OptimalTransport()(scores, keys=keys).double(), expected, rtol=rtol, atol=1e-5)


def test_an_asymmetric_cost_with_a_dear_diagonal_needs_more_room_and_gets_it():
    """Staying is dear and the cheap way is forbidden in row 0: the bound on Z_i has to count the detour."""
    costs = torch.tensor([[300.0, 0.0, 4.0], [0.0, 2.0, 300.0], [290.0, 0.0, 300.0]])
    allowed = torch.tensor([[True, False, True], [True, True, True]])
    scores = torch.tensor([[[[0.0, -1.0, 2.0], [1.0, 0.0, -1.0]]]]).requires_grad_()
    w = OptimalTransport(0.3, cost=lambda targets, sources: costs.expand(1, 1, 3, 3))(
        scores, allowed, keys=torch.zeros(1, 1, 3, 2)
    )
    expected = transport(scores.double(), costs[None, None].double(), 0.3, allowed)
    assert_close(w.double(), expected, **tolerance(torch.float32, size=3))
    assert reference.gradients(w, [scores])[0].isfinite().all()


# --------------------------------------------------------------------------------------------------------- the limits


# -------------------------------------------------------------------------------------------------- sources and targets


# ---------------------------------------------------------------------------------------------------------------- costs


def one_way(targets, sources):
    """Not symmetric: going up is paid for, and a target has a price of its own."""
    rise = (targets.sum(-1)[..., :, None] - sources.sum(-1)[..., None, :]).relu()
    return rise + targets.square().sum(-1)[..., :, None]


def too_small(targets, sources):
    return torch.zeros(2, 2)


class Metric(nn.Module):
    """|W (t - i)|^2 with a trained W."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, 2, bias=False)

    def forward(self, targets, sources):
        return (self.linear(targets)[..., :, None, :] - self.linear(sources)[..., None, :, :]).square().sum(-1)


@pytest.mark.parametrize("gamma", [1.0, 0.1])
def test_a_cost_need_not_be_symmetric_and_targets_are_its_rows(gamma):
    keys, allowed, scores = make_keys(5), MASKS["random"].allowed, make_scores(MASKS["random"])
    w = OptimalTransport(gamma, cost=one_way)(scores, allowed, keys=keys)
    assert_close(w, transport(scores, one_way(keys, keys), gamma, allowed), **TIGHT)
    assert (w - transport(scores, one_way(keys, keys).mT, gamma, allowed)).abs().max() > 1e-2


def test_a_cost_is_named_by_its_dotted_path():
    found = build_normalizer("ot", cost="torch.nn.functional:pairwise_distance")
    assert found.cost is torch.nn.functional.pairwise_distance
    assert build_normalizer("ot", cost="squared_distance").cost is build_normalizer("ot").cost


def test_a_cost_may_be_a_trained_module():
    module = OptimalTransport(0.5, cost=Metric())
    assert [name for name, _ in module.named_parameters()] == ["cost.linear.weight"]
    scores, keys = make_scores(MASKS["none"], dtype=torch.float32), make_keys(5, torch.float32)
    for factor in (1.0, 100.0, 1000.0):  # whatever the range: its parameters stay in float32
        w = module(factor * scores, keys=keys)
        (gradient,) = reference.gradients(w, [module.cost.linear.weight])
        assert gradient.isfinite().all()
    (gradient,) = reference.gradients(module(scores, keys=keys), [module.cost.linear.weight])
    assert gradient.abs().max() > 1e-3


def test_missing_keys_and_costs_of_a_wrong_size_are_said():
    scores = make_scores(MASKS["none"])
    with pytest.raises(ValueError, match=r"ot: the templates are the keys .* pass keys="):
        OptimalTransport()(scores)
    with pytest.raises(ValueError, match=r"keys of shape \(2, 2, 4, 3\) do not match scores \(2, 2, 4, 5\)"):
        OptimalTransport()(scores, keys=make_keys(4))
    with pytest.raises(ValueError, match=r"cost: got \(2, 2\) for 5 templates"):
        OptimalTransport(cost=too_small)(scores, keys=make_keys(5))


@pytest.mark.parametrize("prior", ["none", "key_only", "pairwise"])
def test_without_scores_the_weights_are_the_preference_smoothed_by_the_cost(prior):
    """Prop. 1: u~_t = sum_i u_i exp(-C_ti / gamma) / sum_t' exp(-C_t'i / gamma)."""
    (n_queries, n_keys), gamma = MASKS["none"].size, 0.4
    shape, keys = (BATCH, HEADS, n_queries, n_keys), make_keys(n_keys)
    log_prior = reference.make_log_prior(prior, n_queries, n_keys)
    u = (torch.zeros(()).double() if log_prior is None else log_prior).expand(shape).softmax(-1)
    smoothing = (-distances(keys) / gamma).exp()
    smoothing = smoothing / smoothing.sum(-2, keepdim=True)
    w = OptimalTransport(gamma)(torch.zeros(shape).double(), log_prior=log_prior, keys=keys)
    assert_close(w, torch.einsum("bhti,bhni->bhnt", smoothing, u), **TIGHT)
