"""Warnings about the shape of differences: how often normal effects raise them, and what they find."""

import math

import numpy as np
import pytest
from scipy import stats

from attnorm.analysis.statistics.shape import ALARM, COCHRAN, outlying_seeds, skewed_examples


@pytest.mark.parametrize("seeds", [3, 4, 5, 6, 8, 10, 20])
def test_normal_effects_of_seeds_are_rarely_called_outlying(seeds):
    draws = 10_000
    means = 7 + 3 * np.random.default_rng(1).standard_normal((draws, seeds))
    assert outlying_seeds(means).mean() == pytest.approx(ALARM, abs=5 * math.sqrt(ALARM * (1 - ALARM) / draws))


@pytest.mark.parametrize(
    ("means", "is_outlying"),
    [
        ([0.1, 0.2, 0.3], False),
        ([0.1, 0.2, 90.0], True),
        ([0.1, 0.2, 0.3, 0.25, -30.0], True),
        ([0, 1, 2, 3, 4, 5, 6, 7, -90, -91], True),  # they do not hide each other
        ([0.0, 0.0, 5.0], True),
        ([2.0, 2.0, 2.0], False),
        ([1.0, 90.0], False),  # two seeds cannot be outliers
    ],
)
def test_a_seed_far_from_the_others_is_outlying(means, is_outlying):
    assert bool(outlying_seeds(np.array(means, float))) is is_outlying


def test_seeds_are_outlying_in_any_units():
    means = np.random.default_rng(2).standard_cauchy((200, 5))
    assert (outlying_seeds(means) == outlying_seeds(1e6 - 1e3 * means)).all() and outlying_seeds(means).any()


@pytest.mark.parametrize(("examples", "alarms"), [(10, 0.02), (30, 0.02), (100, 0.005)])
def test_normal_examples_are_rarely_called_skewed(examples, alarms):
    assert skewed_examples(np.random.default_rng(3).standard_normal((2000, 1, examples))).mean() < alarms


def test_skewed_examples_are_enough_if_they_are_many():
    rng = np.random.default_rng(4)
    values = np.exp(rng.standard_normal((1, 100_000)))
    assert skewed_examples(values[:, :100]) and not skewed_examples(values)
    assert COCHRAN * stats.skew(values[0, :100]) ** 2 > 100


def test_clusters_take_the_place_of_examples():
    rng = np.random.default_rng(5)
    values = np.exp(1.5 * rng.standard_normal((1, 900)))
    groups = [str(number // 300) for number in range(900)]
    assert skewed_examples(values[:, :90]) and not skewed_examples(values, groups)  # three clusters say nothing
    assert not skewed_examples(np.ones((3, 50)))
