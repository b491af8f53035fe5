"""mix: the sum of its members, with shares that stay on the simplex."""

import pytest
import reference
import torch
from reference import BATCH, HEADS, MASKS, case, in_turn, randn
from tolerance import rounding
from torch.testing import assert_close

from attnorm.attention import Mask, build_normalizer, check_attention, resolve_attention
from attnorm.attention.multihead import MultiHeadAttention
from attnorm.attention.normalizers.base import Given, Normalizer
from attnorm.attention.normalizers.shared.key_bias import memory_linear
from attnorm.attention.scorers import ScaledDot
from attnorm.attention.site import Site
from attnorm.attention.testing import check_normalizer
from attnorm.optim import ParamGroups

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
THREE = ["softmax", "dnas", {"name": "sinkhorn", "n_iters": 3}]
CHECKED = {
    "couples all": {"members": ["entmax", {"name": "sinkhorn", "n_iters": 2}, "fusedmax"], "per": "head", "heads": 2},
    "couples the past, a mix of mixes": {
        "members": ["dnas_prefix", "softmax", {"name": "mix", "members": ["hnas_prefix", "dnas_prefix", "fenchel"]}]
    },
    "needs keys, form=project": {"members": ["fenchel", "ot"], "start": [0.0, 1.0], "form": "project"},
}


def make(members=THREE, dtype=torch.float64, **options):
    """A mix whose shares differ from each other and between heads."""
    module = build_normalizer("mix", members=members, **options).to(dtype)
    with torch.no_grad():
        module.trained.copy_(randn(*module.trained.shape, seed=1))
    return module


def shares_of(module):
    """The softmax of the parameter, entry by entry: rows of heads."""
    rows = [[x.exp() for x in row] for row in module.trained]
    return [[x / sum(row) for x in row] for row in rows]


SLOW = [pytest.param(options, id=name, marks=pytest.mark.slow) for name, options in CHECKED.items()]


@pytest.mark.parametrize("options", SLOW)  # the default members are checked with the other normalizers
def test_a_mix_keeps_the_promises_of_its_members(options):
    lengths = [(33, 65), (290, 240)]
    assert check_normalizer(lambda: build_normalizer("mix", **options), lengths=lengths, print_report=False).passed


@pytest.mark.parametrize("per", ["layer", "head"])
def test_weights_and_gradients_are_those_of_loops_over_the_members(per):
    module = make(per=per, heads=HEADS)
    for mask, prior in in_turn(["none", "both_sides", "random"]):
        size, allowed = MASKS[mask].size, MASKS[mask].allowed
        scores, log_prior = reference.leaves(
            1.5 * randn(BATCH, HEADS, *size, seed=3), reference.make_log_prior(prior, *size)
        )
        inputs = [scores, log_prior, module.trained]
        of_heads = shares_of(module) * (HEADS if per == "layer" else 1)
        members = [reference.weights(name, scores, allowed, log_prior) for name in ("softmax", "dnas", "sinkhorn")]
        expected = torch.stack(
            [sum(share * w[:, h] for share, w in zip(of_heads[h], members, strict=True)) for h in range(HEADS)], 1
        )
        actual = module(scores, allowed, log_prior=log_prior)
        with case(mask, prior):
            reference.assert_same(actual, expected, inputs)


def test_attend_uses_the_fast_paths_of_the_members_where_they_pay(monkeypatch):
    n_queries, n_keys, module = 290, 240, make(THREE, torch.float32)
    q, k, v = reference.leaves(*reference.make_qkv(n_queries, n_keys, width=8, dtype=torch.float32, batch=1, heads=1))
    mask = Mask(queries=torch.arange(n_queries)[None] < 230, keys=torch.arange(n_keys)[None] < 170)
    assert memory_linear(q, k, Given(mask))
    expected = module((q @ k.mT) * q.shape[-1] ** -0.5, mask) @ v
    wanted = reference.gradients(expected, [q, k, v, module.trained])
    with monkeypatch.context() as patch:
        patch.setattr(Normalizer, "_weights_and_live", None)  # the dense form
        actual = module.attend(q, k, v, mask)
    assert (actual - expected).abs().max() <= rounding(torch.float32, size=n_keys) * expected.abs().max()
    for found, right in zip(reference.gradients(actual, [q, k, v, module.trained]), wanted, strict=True):
        assert (found - right).abs().max() <= rounding(torch.float32, size=n_queries) * right.abs().max()


# ------------------------------------------------------------------------------------------------------------- shares


def test_shares_start_where_they_are_put_and_stay_on_the_simplex_while_they_are_trained():
    for options in ({}, {"start": [0.2, 0.5, 0.3]}, {"start": [0.0, 1.0, 0.0], "form": "project"}):
        module = build_normalizer("mix", members=THREE, per="head", heads=2, **options)
        start = torch.tensor(options.get("start", [1 / 3] * 3))
        assert_close(module.mixture(), start.expand(2, 3))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.3)
        for step in range(20):
            loss = (module.mixture() * randn(2, 3, seed=step, dtype=torch.float32)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            module.project_()
            shares = module.mixture()
            assert (shares >= 0).all() and (shares.sum(-1) - 1).abs().max() < 1e-6
        assert (shares - start).abs().max() > 0.1


def test_shares_have_the_parameter_group_of_hybrid_weights_and_are_recorded_by_member():
    options = {"members": ["softmax", "entmax", {"name": "entmax", "alpha": 2}, "hnas"], "per": "head", "heads": 2}
    layer = MultiHeadAttention(8, 2, build_normalizer("mix", **options), ScaledDot())
    groups = {group["name"]: group for group in ParamGroups(lr=0.1, weight_decay=0.5, hybrid_lr_factor=7).of(layer)}
    mix = layer.normalizer
    assert [id(it) for it in groups["hybrid"]["params"]] == [id(mix.trained), id(mix.members["hnas"].trained)]
    assert groups["hybrid"]["lr"] == pytest.approx(0.7) and groups["hybrid"]["weight_decay"] == 0
    scalars = mix.learned_scalars()
    assert [*scalars] == ["mix_softmax", "mix_entmax", "mix_entmax_2", "mix_hnas", "hnas_hybrid_weights"]
    assert_close(sum(scalars[name] for name in scalars if name.startswith("mix_")), torch.ones(2))
    assert [member.alpha for label, member in mix.members.items() if "entmax" in label] == [1.5, 2.0]


def test_the_coupling_is_that_of_the_strongest_member():
    expected = {("softmax", "entmax"): "none", ("softmax", "dnas_prefix"): "past", ("dnas_prefix", "dnas"): "all"}
    for members, coupling in expected.items():
        assert build_normalizer("mix", members=list(members)).couples_queries == coupling
    tables = {"_default_": "mix", "options": {"mix": {"members": ["softmax", "dnas"]}}}
    sites = {"encoder": False, "cross": True}
    assert resolve_attention(tables, sites)["cross"] == "softmax" and check_attention(tables, sites) == []
    [problem] = check_attention({**tables, "cross": "mix"}, sites)
    assert problem.startswith("attention.cross=mix: mix couples queries")
    tables["options"]["mix"]["members"] = ["softmax", "dnas_prefix"]
    assert resolve_attention(tables, sites)["cross"] == "mix" and check_attention(tables, sites) == []


def test_the_least_mass_is_that_of_the_shares():
    module = build_normalizer("mix", members=THREE, start=[0.5, 0.3, 0.2], per="head", heads=2)
    assert module.least_mass == pytest.approx(0.5)  # dnas and sinkhorn


# -------------------------------------------------------------------------------------------------------- fixed shares


def test_fixed_shares_are_those_of_the_place_and_are_not_trained():
    fixed = {"encoder": [[0.25, 0.75], None, [[1, 0], [0.5, 0.5]]], "cross": [[0.1, 0.9]]}
    tables = {
        **{"_default_": "softmax", "encoder": ["mix", "hnas", "mix"]},
        "options": {"mix": {"members": ["softmax", "dnas"], "fixed": fixed}, "hnas": {"fixed": {"encoder": [0, 0.6]}}},
    }
    assert check_attention(tables, {"encoder": False}, {"encoder": 3}) == []
    built = [Site(tables, "encoder").normalizer(2, layer) for layer in range(3)]
    assert_close(built[0].mixture(), torch.tensor([[0.25, 0.75]]))
    assert_close(built[1].hybrid_weight(), torch.tensor([0.6]))
    assert_close(built[2].mixture(), torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    scores = randn(1, 2, 4, 5)
    for module in built:
        assert not list(module.parameters()) and not module.fast_parameters() and not module.learned_scalars()
        assert not module.state_dict()
        module.project_()
    dnas, softmax = (build_normalizer(name)(scores) for name in ("dnas", "softmax"))
    assert_close(built[0](scores), 0.25 * softmax + 0.75 * dnas, **TIGHT)
    assert_close(built[1].double()(scores), 0.6 * dnas + 0.4 * softmax, rtol=1e-6, atol=1e-6)
    assert_close(built[2](scores)[:, 0], softmax[:, 0], **TIGHT)


@pytest.mark.parametrize(
    ("fixed", "words"),
    [
        (1.5, "fixed=1.5: allowed: a number from 0 to 1"),
        ([0.1, "x"], "allowed: a number from 0 to 1"),
        ("logs/mlm/hnas/run", "fixed='logs/mlm/hnas/run': allowed: a number from 0 to 1, or a list with one per head"),
        ({"encoder": [0.1, 2]}, "fixed=2: allowed: a number from 0 to 1"),
        ({"encoder": 0.1}, "expected a list with a value per layer"),
        ({"encoder": [0.1]}, "has no value for layer 1 of encoder"),
        ({"encoder": [0.1, None]}, "has no value for layer 1 of encoder"),
        ({"decoder": [0.1, 0.2]}, "has no value for layer 0 of encoder"),
        ({"encoder": [None]}, "has no value for any layer"),
        ({"encoder": [0.1, 0.2, 0.3]}, "3 values for the 2 layers of encoder"),
    ],
    ids=str,
)
def test_fixed_values_that_do_not_fit_the_layers_are_refused(fixed, words):
    tables = {"_default_": "hnas", "options": {"hnas": {"fixed": fixed}}}
    problems = check_attention(tables, {"encoder": False}, {"encoder": 2})
    assert problems and words in problems[0], problems


@pytest.mark.parametrize("name", ["hnas", "mix"])
@pytest.mark.parametrize("heads", [1, 4])
def test_fixed_values_per_head_have_to_be_as_many_as_the_heads(name, heads):
    """Also for a single head: more values would multiply the heads of its output."""
    each = 0.2 if name == "hnas" else [0.2, 0.3, 0.5]
    for fixed in ([each] * 3, {"encoder": [[each] * 3]}):
        tables = resolve_attention({"encoder": name, "options": {name: {"fixed": fixed}}}, {"encoder": False})
        [problem] = check_attention(tables, {"encoder": False}, {"encoder": 1}, heads={"encoder": heads})
        assert problem.startswith(f"attention.options.{name}.fixed: ") and f"3 values for {heads} head" in problem
        with pytest.raises(ValueError, match=f"3 values for {heads} head"):
            Site(tables, "encoder").normalizer(heads)
        assert check_attention(tables, {"encoder": False}, {"encoder": 1}, heads={"encoder": 3}) == []
        assert check_attention(tables, {"encoder": False}, {"encoder": 1}) == []


def test_members_are_told_the_sizes_of_the_model():
    tables = {"encoder": "mix", "options": {"mix": {"members": ["softmax", {"name": "ot", "cost": "learned"}]}}}
    assert check_attention(tables, {"encoder": False}) == []
    built = Site(tables, "encoder").normalizer(2, width=4)
    assert built.members["ot"].cost.weight.shape == (2, 4, 4)
