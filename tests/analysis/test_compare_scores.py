"""Verdicts from scores alone."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from made_up_runs import make_runs

from attnorm.analysis import compare, compare_scores
from attnorm.errors import ConfigError

THREE = {"softmax": 0.0, "dnas": 3.0, "hnas": 0.0}


@pytest.mark.slow
def test_the_verdicts_are_those_of_the_runs_with_these_scores(tmp_path):
    make_runs(tmp_path, THREE)
    expected = compare("softmax", tmp_path)
    tables = {}
    for file in sorted(tmp_path.rglob("validation.parquet")):  # sorted by arm and seed
        rows = pd.read_parquet(file)
        arm = next(name for name in THREE if name in str(file.relative_to(tmp_path)))
        tables.setdefault(arm, []).append(rows[~rows["selecting"]][expected.metric])
    found = compare_scores("softmax", tables, expected.metric)
    ours = {verdict.label: dataclasses.asdict(verdict) for verdict in found}
    theirs = {verdict.label: dataclasses.asdict(verdict) for verdict in expected.verdicts}
    assert ours == theirs and {verdict.word for verdict in found} == {"shown", "not shown"}


def test_groups_enter_as_clusters_and_seeds_by_their_number():
    table = np.random.default_rng(0).normal(size=(3, 40))
    groups = [f"image {n // 4}" for n in range(40)]
    [verdict] = compare_scores("softmax", {"softmax": 0 * table, "dnas": table}, seeds=[3, 5, 8], groups=groups)
    assert verdict.difference.clusters == 10 and list(verdict.by_seed) == [3, 5, 8]


def test_arms_without_any_difference_get_no_verdict():
    table = np.random.default_rng(0).normal(size=(3, 40))
    one, other = compare_scores("softmax", {"softmax": table, "copy": table, "better": table + 1})
    assert one.no_verdict == "all differences are zero" and np.isnan(one.adjusted)
    assert other.by_seed == pytest.approx({1: 1, 2: 1, 3: 1})


def test_tables_that_do_not_fit_are_refused_together():
    table = np.zeros((3, 5))
    with pytest.raises(ConfigError, match=r"baseline=sofmax: must be one of softmax, dnas. Did you mean 'softmax'\?"):
        compare_scores("sofmax", {"softmax": table, "dnas": table})
    with pytest.raises(ConfigError) as refused:
        scores = {"softmax": table, "dnas": table[:2], "hnas": table + np.nan, "flat": table[0]}
        compare_scores("softmax", scores, seeds=[1, 2])
    assert refused.value.problems == [
        "seeds=[1,2]: softmax has 3 rows",
        "scores.dnas: the shape (2, 5); softmax has (3, 5), (seeds, examples)",
        "scores.hnas: some scores are not finite",
        "scores.flat: the shape (5,); softmax has (3, 5), (seeds, examples)",
    ]


def test_a_loss_is_better_if_it_is_lower():
    table = np.random.default_rng(0).normal(size=(4, 50))
    for metric, said in (("loss", True), ("accuracy", False)):
        [verdict] = compare_scores("softmax", {"softmax": table, "dnas": table**2}, metric)
        assert ("(lower is better)" in verdict.sentence()) is said
