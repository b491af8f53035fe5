"""Learned queries and attention on arrays: the paper's formulas by loops, Theorem 1, and what a single query does."""

import itertools

import pytest
import reference
import torch
from reference import randn
from torch.testing import assert_close

from attnorm.attention import MultiHeadAttention, build_normalizer, build_scorer
from attnorm.attention.call_context import in_layer
from attnorm.attention.grid import attend_over_grid, unfold
from attnorm.attention.pooling import LearnedQueries, single_query_problem
from attnorm.attention.registry import NORMALIZERS, build

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
WIDTH, HEADS = 6, 2
FORMULAS = ["softmax", "dnas", "sinkhorn"]
OPTIONS = {"sinkhorn": {"n_iters": 3}, "constrained_softmax": {"upper": 0.5}, "constrained_sparsemax": {"upper": 0.5}}
FACTS = {"heads": HEADS, "width": WIDTH // HEADS, "state_width": WIDTH}  # a normalizer takes those that it needs
PROMISING = [name for name in NORMALIZERS if build("normalizer", name, {}, FACTS).key_equivariant]


def normalizer(name):
    return build("normalizer", name, OPTIONS.get(name, {}), FACTS)


def filled(module, seed=0):
    """The module in float64 and evaluation mode, with random parameters."""
    with torch.no_grad():
        for number, parameter in enumerate(module.double().parameters()):
            parameter.copy_(0.7 * randn(*parameter.shape, seed=100 * seed + number))
    return module.eval()


def pooling(name, queries=3):
    return filled(LearnedQueries(WIDTH, HEADS, queries, normalizer(name), build_scorer("scaled_dot")))


def attention(name):
    return filled(MultiHeadAttention(WIDTH, HEADS, normalizer(name), build_scorer("scaled_dot")), seed=1)


def by_formula(layer, name, queries, states, allowed=None, log_prior=None):
    """Eq. 5 and 6 with a normalizer by loops: queries (B, N, W) on states (B, M, W)."""

    def heads(x):
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    q = heads(queries @ layer.query.weight.T + layer.query.bias)
    k, v = (heads(x) for x in (states @ layer.key_value.weight.T + layer.key_value.bias).split(WIDTH, -1))
    context = reference.attend(name, q, k, v, allowed, log_prior).transpose(1, 2).flatten(2)
    return context @ layer.output.weight.T + layer.output.bias


# ------------------------------------------------------------------------------------------------------ learned queries


@pytest.mark.parametrize("name", FORMULAS)
def test_learned_queries_equal_the_formula_with_padding_and_a_prior(name):
    module, states = pooling(name), randn(2, 5, WIDTH, seed=1)
    queries = module.queries.expand(2, -1, -1)
    real = torch.tensor([[True] * 5, [True, True, True, False, False]])
    allowed = reference.allowed_pairs(2, 3, 5, keys=real)
    log_prior = randn(2, 1, 1, 5, seed=2)
    assert_close(module(states), by_formula(module.attention, name, queries, states), **TIGHT)
    expected = by_formula(module.attention, name, queries, states, allowed, log_prior)
    assert_close(module(states, real, log_prior=log_prior), expected, **TIGHT)


@pytest.mark.parametrize("name", [*FORMULAS, "fusedmax"])
def test_each_segment_is_pooled_as_if_it_were_alone(name):
    module, states = pooling(name), randn(2, 7, WIDTH, seed=3)
    segments = torch.tensor([[0, 0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 0, 0, 0]])
    real = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    pooled = module(states, real, segments)
    assert pooled.shape == (2, 3, 3, WIDTH)
    for row, number in itertools.product(range(2), range(3)):
        own = (segments[row] == number) & real[row]
        if own.any():
            assert_close(pooled[row, number], module(states[row : row + 1, own])[0], **TIGHT)
        else:
            assert_close(pooled[row, number], module.attention.output.bias.expand(3, -1), **TIGHT)


def test_a_single_query_of_dnas_takes_the_mean_and_says_so(caplog):
    pooling("dnas", queries=2), pooling("softmax", queries=1)
    assert not caplog.records
    states, module = randn(2, 5, WIDTH, seed=5), pooling("dnas", queries=1)
    assert "DNAS with a single query gives uniform weights" in caplog.text
    layer = module.attention
    mean = (states @ layer.key_value.weight.T + layer.key_value.bias).split(WIDTH, -1)[1].mean(1, keepdim=True)
    assert_close(module(states), mean @ layer.output.weight.T + layer.output.bias, **TIGHT)
    log_prior = randn(1, 1, 1, 5, seed=6)
    weights = (layer.key_value(states).split(WIDTH, -1)[1] * log_prior[0, 0].softmax(-1)[..., None]).sum(
        1, keepdim=True
    )
    assert_close(module(states, log_prior=log_prior), layer.output(weights), **TIGHT)


def test_the_warning_is_right_about_every_normalizer():
    """With a single query, the weights are the same for all queries and keys exactly where the warning says uniform."""
    inputs = [(randn(1, HEADS, 1, 3, seed=seed), randn(1, HEADS, 5, 3, seed=seed + 2)) for seed in (7, 21)]
    for name in NORMALIZERS.keys() - {"uniform", "none"}:  # which ignore the scores by design
        module, weights = in_layer(filled(normalizer(name))).eval(), []
        for q, k in inputs:
            given = {"queries": q} if module.needs_queries else {}
            if module.needs_states != "none":
                states = randn(1, 1 if module.needs_states == "queries" else 5, WIDTH, seed=10)
                given["features"] = module.features_of(states)
            weights.append(module(3 * q @ k.mT, keys=k, scale=3.0, **given))
        first, second = weights
        problem = single_query_problem(module)
        assert ("uniform weights, whatever" in (problem or "")) == first.allclose(second), name
        if first.allclose(second):
            assert_close(first, torch.full_like(first, 1 / 5), **TIGHT)
    assert "mixes in the uniform weights of its DNAS" in single_query_problem(build_normalizer("hnas"))
    assert [single_query_problem(build_normalizer(name)) for name in ("softmax", "uniform", "none")] == [None] * 3


# --------------------------------------------------------------------------------------------------------------- arrays


def cells(grid):
    """All cells of a grid, the last coordinate varying fastest."""
    return list(itertools.product(*(range(size) for size in grid)))


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("grids", [((2, 3), (2, 3)), ((2, 1), (3, 2)), ((1, 2, 2), (2, 1, 3)), ((3,), (2, 2))])
def test_attention_on_arrays_equals_the_formula_cell_by_cell(name, grids):
    layer, (grid, other) = attention(name), grids
    queries, memory = randn(2, *grid, WIDTH, seed=10), randn(2, *other, WIDTH, seed=11)
    sequences = [
        torch.stack([array[(slice(None), *cell)] for cell in cells(size)], 1)
        for array, size in ((queries, grid), (memory, other))
    ]
    expected = by_formula(layer, name, *sequences)
    found = attend_over_grid(layer, queries, memory)
    assert found.shape == (2, *grid, WIDTH)
    for place, cell in enumerate(cells(grid)):
        assert_close(found[(slice(None), *cell)], expected[:, place], **TIGHT)


@pytest.mark.parametrize("name", FORMULAS)
def test_padded_cells_of_both_arrays_are_left_out(name):
    layer = attention(name)
    queries, memory = randn(1, 2, 2, WIDTH, seed=12), randn(1, 2, 3, WIDTH, seed=13)
    here = torch.tensor([[[True, True], [True, False]]])
    there = torch.tensor([[[True, True, False], [True, False, False]]])
    found = attend_over_grid(layer, queries, memory, here, there)
    alone = attend_over_grid(layer, queries[here][None], memory[there][None])
    assert_close(found[here][None], alone, **TIGHT)
    changed = torch.where(there[..., None], memory, 1e3)
    assert_close(attend_over_grid(layer, queries, changed, here, there)[here], found[here], **TIGHT)


# ------------------------------------------------------------------------------------------------------------ Theorem 1


@pytest.mark.parametrize("name", PROMISING)
def test_turning_an_image_turns_self_attention_and_leaves_learned_queries(name):
    """An instance of Theorem 1 that the property suite does not know: whole layers on arrays."""
    image = randn(2, 3, 3, WIDTH, seed=14)
    turned, mirrored = image.rot90(dims=(1, 2)), image.flip(2)
    pool = pooling(name)
    for other in (turned, mirrored):
        assert_close(pool(unfold(other)), pool(unfold(image)), rtol=1e-7, atol=1e-7)
    if normalizer(name).query_equivariant:
        layer = attention(name)
        found = attend_over_grid(layer, image, image)
        assert_close(attend_over_grid(layer, turned, turned), found.rot90(dims=(1, 2)), rtol=1e-7, atol=1e-7)
        assert_close(attend_over_grid(layer, mirrored, mirrored), found.flip(2), rtol=1e-7, atol=1e-7)
