"""Measures of attention weights and states, against loops in plain Python over the pairs and rows that count."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from reference import BATCH, HEADS, MASKS, case, randn
from scipy import stats
from torch.testing import assert_close

from attnorm.attention import build_normalizer
from attnorm.attention.measures import (
    effective_rank,
    head_measures,
    mean_mass,
    normalized_entropy,
    row_error,
    sink_rate,
    state_measures,
)

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
NONE = float("nan")
LIVE = torch.tensor([[True, True, False, True, True], [False, True, True, False, False], [True] + [False] * 4])


def weights_of(mask, seed=0):
    """Softmax weights with this mask, and the mask pair by pair."""
    allowed = MASKS[mask].allowed.expand(BATCH, HEADS, *MASKS[mask].size)
    return build_normalizer("softmax")(3 * randn(*allowed.shape, seed=seed), MASKS[mask].allowed), allowed


def mean(values):
    return sum(values) / len(values) if values else NONE


def by_loops(w, allowed):
    """The measures of one head's weights (N, M) by name."""
    n_queries, n_keys = len(w), len(w[0])
    visible = [[j for j in range(n_keys) if allowed[i][j]] for i in range(n_queries)]
    live = [i for i in range(n_queries) if visible[i]]
    keys = sorted({j for row in visible for j in row})
    mass = {j: sum(w[i][j] for i in live) for j in keys}
    each = [-sum(w[i][j] * math.log(w[i][j]) for j in visible[i]) / math.log(len(visible[i])) for i in live
            if len(visible[i]) > 1]  # fmt: skip
    largest = max(mass.values()) / len(live) if keys else NONE
    return {
        "entropy": mean(each),
        "sink_mass": largest,
        "first_mass": mass[keys[0]] / len(live) if keys else NONE,
        "sink": float(largest > 0.3),
        "column_mass_min": min(mass.values(), default=NONE),
        "column_mass_max": max(mass.values(), default=NONE),
        "marginal_error": max((abs(mass[j] - len(live) / len(keys)) for j in keys), default=NONE),
        "row_error": max((abs(sum(w[i]) - 1) for i in live), default=NONE),
        "effective_rank": math.exp(stats.entropy(np.linalg.svd(w, compute_uv=False))) if live else NONE,
    }


@pytest.mark.parametrize("mask", MASKS)
def test_measures_of_weights_are_those_of_the_pairs_that_the_mask_allows(mask):
    weights, allowed = weights_of(mask)
    found = head_measures(weights, MASKS[mask].allowed)
    for b, h in product(range(BATCH), range(HEADS)):
        for name, expected in by_loops(weights[b, h].tolist(), allowed[b, h].tolist()).items():
            with case(mask, name):
                assert found[name][b, h].item() == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True)


def test_without_a_mask_every_pair_counts():
    weights, _ = weights_of("none")
    every = torch.ones(weights.shape, dtype=torch.bool)
    for name, value in head_measures(weights).items():
        assert_close(value, head_measures(weights, every)[name], msg=name)


def test_entropy_is_one_for_even_weights_zero_for_a_single_key_and_knows_rows_of_any_sum():
    even = torch.full((1, 1, 3, 4), 0.25)
    assert_close(normalized_entropy(even), torch.ones(1, 1))
    assert_close(normalized_entropy(-7 * even), torch.ones(1, 1))
    assert_close(normalized_entropy(torch.eye(4)[None, None]), torch.zeros(1, 1))
    causal = torch.ones(3, 3).tril()
    assert_close(normalized_entropy((causal / causal.sum(1, keepdim=True))[None, None], causal > 0), torch.ones(1, 1))
    assert normalized_entropy(torch.ones(1, 1, 2, 1)).isnan().all()  # a single key leaves no choice


def test_the_sink_rate_is_the_share_of_heads_whose_mean_mass_on_a_key_is_above_the_threshold():
    first = torch.tensor([[0.8, 0.2, 0.0], [0.6, 0.2, 0.2], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    second = torch.tensor([[0.4, 0.3, 0.3], [0.2, 0.3, 0.5], [0.2, 0.3, 0.5], [0.0, 0.0, 0.0]])
    weights, allowed = torch.stack([first, second])[None], torch.tensor([True, True, True, False])[:, None]
    assert_close(mean_mass(weights, allowed)[0, 0], torch.tensor([2.4, 0.4, 0.2]) / 3)  # the padded query is no query
    assert sink_rate(weights, allowed).tolist() == [[0.5, 0.0, 0.5]]
    assert sink_rate(weights, allowed, threshold=0.26).tolist() == [[1.0, 0.5, 0.5]]


def test_rows_that_are_no_distributions_have_an_error():
    weights = torch.tensor([[0.5, 0.5], [0.5, 0.2], [0.0, 0.0]])[None, None]
    assert_close(row_error(weights), torch.ones(1, 1))
    assert_close(row_error(weights, torch.tensor([True, True, False])[:, None]), torch.full((1, 1), 0.3))


# -------------------------------------------------------------------------------------------------------------- states

X = randn(3, 5, 4, seed=5) + 0.5


def test_measures_of_states_are_those_of_the_rows_that_count():
    found, every = state_measures(X, LIVE), state_measures(X)  # without rows, all of them count
    for b, live in [*enumerate(LIVE), *((b, None) for b in range(3))]:
        x, measures = (X[b].numpy(), every) if live is None else (X[b][live].numpy(), found)
        sigma = np.linalg.svd(x, compute_uv=False)
        angles = [
            float(x[i] @ x[j] / np.linalg.norm(x[i]) / np.linalg.norm(x[j]))
            for i, j in product(range(len(x)), repeat=2)
            if i != j
        ]
        expected = {
            "effective_rank": math.exp(stats.entropy(sigma / sigma.sum())),
            "rank_one_distance": np.linalg.norm(x - x.mean(0)) / np.linalg.norm(x),
            "cosine": mean(angles),
            "kurtosis": stats.kurtosis(x, axis=None, fisher=False),
            "largest": np.abs(x).max(),
        }
        assert measures.keys() == expected.keys()
        for name, value in expected.items():
            assert measures[name][b].item() == pytest.approx(value, rel=1e-9, abs=1e-9, nan_ok=True), name


def test_values_of_padding_and_the_number_of_padded_rows_do_not_matter():
    padded = torch.cat([X.masked_fill(~LIVE[..., None], 1e6), 1e6 * torch.ones(3, 2, 4, dtype=X.dtype)], dim=1)
    live = torch.cat([LIVE, torch.zeros(3, 2, dtype=torch.bool)], dim=1)
    for name, value in state_measures(padded, live).items():
        assert_close(value, state_measures(X, LIVE)[name], equal_nan=True, msg=name, **TIGHT)


def test_states_without_numbers_give_nan_and_no_error():
    broken = X.clone()
    broken[1, 0, 0] = NONE
    assert effective_rank(broken).isnan().tolist() == [False, True, False]
    nobody = torch.zeros(3, 5, dtype=torch.bool)
    assert all(value.isnan().all() for value in state_measures(X, nobody).values())
