"""Attention with fertility: the lecture's example, a plain loop as the reference, and budgets that no key exceeds."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch.testing import assert_close

from attnorm.attention.masking import Mask
from attnorm.attention.multihead import Cache, MultiHeadAttention
from attnorm.attention.normalizers.fertility import FertilitySoftmax, FertilitySparsemax
from attnorm.attention.scorers import ScaledDot
from attnorm.attention.testing import check_normalizer

pytestmark = pytest.mark.numerical

MAPS = {"softmax": FertilitySoftmax, "sparsemax": FertilitySparsemax}
every_map = pytest.mark.parametrize("kind", MAPS)


def plain(kind, scores, fertility, sink=False):
    """One row after the other, each by a search for its threshold; scores (N, M), fertility a number or (M,)."""
    left, rows = np.full(scores.shape[1], 1.0) * fertility, []
    for s in scores:
        upper = np.clip(left, 0, None)
        if sink:
            upper[-1] = 1.0
        if upper.sum() <= 1:
            row = upper
        elif kind == "softmax":
            t = brentq(lambda t, s=s, upper=upper: np.minimum(upper, np.exp(s + t)).sum() - 1, -50, 50, xtol=1e-14)
            row = np.minimum(upper, np.exp(s + t))
        else:
            tau = brentq(lambda t, s=s, upper=upper: np.clip(s - t, 0, upper).sum() - 1, -50, 50, xtol=1e-14)
            row = np.clip(s - tau, 0, upper)
        rows.append(row)
        left = left - row
    return np.array(rows)


def random_scores(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *(("softmax", options) for options in ({"fertility": 2.5}, {"fertility": "predicted", "sink": True})),
        *(("sparsemax", options) for options in ({"sink": True}, {"fertility": "predicted"})),
    ],
)
def test_it_passes_the_check(kind, options):
    def factory(heads, width):
        normalizer = MAPS[kind](heads, width, **options)
        for parameter in normalizer.parameters():  # no key has a budget at which several bounds meet
            torch.nn.init.normal_(parameter, std=0.3)
        return normalizer

    check_normalizer(factory, lengths=((9, 6),), print_report=False)


@every_map
@pytest.mark.parametrize("fertility", [0.4, 1.0, 1.7, 30.0])
@pytest.mark.parametrize("sink", [False, True])
def test_it_equals_a_search_for_the_threshold_of_each_row(kind, fertility, sink):
    scores = random_scores(1, 1, 7, 4)
    found = MAPS[kind](1, 4, fertility=fertility, sink=sink)(scores)[0, 0]
    assert_close(found.numpy(), plain(kind, scores[0, 0].numpy(), fertility, sink), rtol=1e-9, atol=1e-9)


@every_map
@pytest.mark.parametrize("sink", [False, True])
def test_no_key_receives_more_than_its_fertility(kind, sink):
    scores, mask = random_scores(2, 2, 9, 6), Mask(keys=torch.arange(6) < torch.tensor([[6], [4]]))
    weights = MAPS[kind](2, 4, fertility=1.3, sink=sink)(scores, mask)
    mass = weights.sum(-2)
    words = mass[0, :, :5], mass[1, :, :3]  # without the last key
    assert all((it <= 1.3 + 1e-12).all() for it in words)
    if sink:
        assert_close(weights.sum(-1), torch.ones(2, 2, 9, dtype=torch.float64))
        assert mass[0, :, 5].max() > 1.3  # the end of the source takes the rest
    else:
        assert_close(mass[0].sum(-1), torch.full((2,), 6 * 1.3, dtype=torch.float64))  # 9 queries use all of it
        assert_close(mass[1].sum(-1), torch.full((2,), 4 * 1.3, dtype=torch.float64))


@every_map
def test_a_predicted_fertility_follows_the_keys_and_is_trained(kind):
    normalizer = MAPS[kind](heads=1, width=2, fertility="predicted", most=3.0).double()
    with torch.no_grad():
        normalizer.slope[0, 0] = 1.0
    keys = torch.tensor([[-4.0, 0.0], [0.0, 0.0], [4.0, 0.0]], dtype=torch.float64)[None, None]
    fertility = 3 / (1 + np.exp([4.0, 0.0, -4.0]))
    scores = random_scores(1, 1, 4, 3)
    weights = normalizer(scores, keys=keys, scale=1.0)
    assert_close(weights[0, 0].detach().numpy(), plain(kind, scores[0, 0].numpy(), fertility), rtol=1e-9, atol=1e-9)
    weights.square().sum().backward()
    assert normalizer.slope.grad[0, 0].abs() > 1e-6 and normalizer.offset.grad.abs() > 1e-6


@every_map
@pytest.mark.parametrize("fertility", [1.2, "predicted"])
def test_cached_decoding_uses_up_the_budgets_as_the_full_pass_does(kind, fertility):
    torch.manual_seed(0)
    attention = MultiHeadAttention(8, 2, MAPS[kind](2, 4, fertility=fertility), ScaledDot()).double()
    torch.nn.init.normal_(attention.normalizer.slope) if fertility == "predicted" else None
    states, memory = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(2, 4, 8, dtype=torch.float64)
    cache = Cache(grows=False)
    steps = [attention(states[:, i : i + 1], memory, cache=cache) for i in range(5)]
    assert_close(torch.cat(steps, 1), attention(states, memory))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"fertility": 0}, "fertility=0"),
        ({"fertility": math.inf}, "fertility=inf"),
        ({"fertility": "guessed"}, "fertility='guessed'"),
        ({"most": -1}, "most=-1"),
        ({"most": 2.0}, "most=2.0: has no effect with fertility=1.0; it is for predicted"),
        ({"sink": 1}, "sink=1"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        FertilitySoftmax(1, 4, **options)


def test_three_source_words_with_a_fertility_of_one():
    """The example of the lecture, with the scores of Malaviya, Ferreira and Martins (2018), Table 1."""
    scores = torch.tensor([[1.2, 0.8, -0.2], [0.7, 0.9, 0.1], [-0.2, 0.2, 0.9]]).double()[None, None]
    softmax = [[0.522, 0.350, 0.129], [0.361, 0.441, 0.198], [0.117, 0.209, 0.673]]
    sparsemax = [[0.7, 0.3, 0.0], [0.3, 0.7, 0.0], [0.0, 0.0, 1.0]]
    for normalizer, expected in ((FertilitySoftmax(1, 4), softmax), (FertilitySparsemax(1, 4), sparsemax)):
        weights = normalizer(scores)[0, 0]
        assert_close(weights, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=5.1e-4)
        assert_close(weights.sum(0), torch.ones(3, dtype=torch.float64))  # every word is used up
