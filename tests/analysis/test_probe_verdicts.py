"""Rows of a comparison of probes, from tables of scores that are made up."""

from dataclasses import asdict, fields, replace
from math import isnan, nan

import numpy as np
import pytest

from attnorm.analysis.probes import verdicts
from attnorm.analysis.probes.verdicts import Row, flipping_rates, further_rates, with_discoveries, write_csv
from attnorm.analysis.statistics.crossed import paired_difference
from attnorm.analysis.statistics.tuned import DISMISSAL
from attnorm.probes.arm import Arm
from attnorm.probes.experiment import CellOutcome
from attnorm.probes.jobs import Cell, ProbeResult
from attnorm.run.csv_files import read_csv

SEEDS, EXAMPLES, RATES = 5, 40, (1e-3, 1e-2)
HUB = Cell("hub", "0.9")


def results_of_cell(found, arms, rates=RATES):
    return verdicts.results_of_cell(found, arms, rates)


def scores(mean, seed=0, seeds=SEEDS):
    """Scores with effects of seeds and of examples; all arms share those of the examples."""
    of_examples = np.random.default_rng(1).normal(0, 0.1, (1, EXAMPLES))
    rng = np.random.default_rng(seed)
    return mean + of_examples + rng.normal(0, 0.01, (seeds, 1)) + rng.normal(0, 0.05, (seeds, EXAMPLES))


def result(means, seed=0, seeds=SEEDS, sizes=(8, 16), **others):
    tables = {
        size: scores(mean, seed + size, seeds).astype(np.float32) for size, mean in zip(sizes, means, strict=True)
    }
    found = {"scalars": {}, "measures": {}, "diverged": 0, "seconds": 10.0, **others}
    return ProbeResult(np.zeros((seeds, 10)), tables, **found)


def made_up(tests, tuning=None, rate=None, cell=HUB):
    rate = rate or {arm: 1e-2 for arm in tests if arm not in ("uniform", "none")}
    return CellOutcome(cell, tuning=tuning or {}, rate=rate, tests=tests)


TESTS = {
    "softmax": result((0.6, 0.5), seed=1),
    "dnas": result((0.8, 0.3), seed=2),
    "hnas": result((0.601, 0.5), seed=3),
    "uniform": result((0.2, 0.15), seed=4, seeds=3),
    "none": result((0.1, 0.05), seed=5, seeds=3),
}
ARMS = [Arm(label) for label in TESTS]


@pytest.fixture(scope="module")
def cell():
    return results_of_cell(made_up(TESTS), ARMS)


def row_of(cell, arm, size=8):
    [row] = [row for row in cell.rows if row.arm == arm and row.size == size]
    return row


def test_there_is_a_row_per_arm_and_size_and_a_curve_of_the_means_of_tuning(cell):
    assert [(row.size, row.arm) for row in cell.rows] == [(size, arm) for size in (8, 16) for arm in TESTS]
    for row in cell.rows:
        table = TESTS[row.arm].scores[row.size]
        assert row.score == pytest.approx(table.mean()) and row.seeds == len(table)
        assert row.spread == pytest.approx(table.mean(1).std(ddof=1), rel=1e-5)
        assert row.trained == (row.size == 8), "16 is beyond training"
        assert row.seconds == pytest.approx(10 / len(table))
        assert (row.probe, row.dose, row.site, row.metric) == ("hub", "0.9", "cross", "accuracy")
    found = results_of_cell(made_up(TESTS, {"dnas": {1e-2: np.array([0.4, 0.6]), 1e-3: np.array([0.1, 0.3])}}), ARMS)
    assert list(found.curves["dnas"]) == [1e-3, 1e-2]
    assert [*found.curves["dnas"].values()] == pytest.approx([0.2, 0.5]) and cell.curves == {}


def test_a_difference_is_that_of_pairs_of_seeds_and_examples_from_the_first_arm(cell):
    for arm in ("dnas", "hnas"):
        for size in (8, 16):
            table = TESTS[arm].scores[size].astype(float) - TESTS["softmax"].scores[size]
            expected, row = paired_difference(table, level=0.95), row_of(cell, arm, size)
            assert row.difference == pytest.approx(expected.estimate) and row.p_value == pytest.approx(expected.p_value)
            ends = expected.new_seeds_and_examples.low, expected.new_seeds_and_examples.high
            assert (row.low, row.high) == pytest.approx(ends)
    for arm in ("softmax", "uniform", "none"):
        assert isnan(row_of(cell, arm).difference) and row_of(cell, arm).verdict == ""
    cell = results_of_cell(made_up(TESTS), [Arm("dnas"), Arm("softmax"), Arm("uniform")])
    assert isnan(row_of(cell, "dnas").difference) and row_of(cell, "softmax").difference < -0.1


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [
        ((0.2331, 0.2104, 0.2649), "+0.233 (+0.210 to +0.265)"),
        ((0.0002, 0.00011, 0.00031), "+0.0002 (+0.0001 to +0.0003)"),
        ((0.0, 0.0, 0.0), "+0.000 (+0.000 to +0.000)"),
        ((0.0004, nan, nan), "+0.000"),
    ],
)
def test_a_difference_has_digits_that_tell_the_ends_of_its_interval_apart(cell, numbers, shown):
    row = replace(cell.rows[0], **dict(zip(("difference", "low", "high"), numbers, strict=True)))
    assert row.estimate == shown


def test_p_values_are_adjusted_over_the_arms_of_a_size_and_decide_the_verdicts(cell):
    """Holm, by hand: the smaller p-value times two; the larger one is not below it."""
    for size in (8, 16):
        small, large = sorted((row_of(cell, arm, size).p_value, arm) for arm in ("dnas", "hnas"))
        assert row_of(cell, small[1], size).adjusted == pytest.approx(min(2 * small[0], 1))
        assert row_of(cell, large[1], size).adjusted == pytest.approx(max(large[0], min(2 * small[0], 1)))
    assert [row_of(cell, "dnas", size).verdict for size in (8, 16)] == ["shown", "shown"]
    assert row_of(cell, "dnas", 8).difference > 0 > row_of(cell, "dnas", 16).difference
    assert row_of(cell, "hnas").verdict == "not shown" and row_of(cell, "hnas").adjusted > 0.05


@pytest.mark.slow
def test_an_arm_is_shown_alone_but_not_among_many():
    """A p-value between 1 and 5 % is below 5 % once, and above it times five."""
    base = TESTS["softmax"].scores[8].astype(float)
    means = 0.6 - (scores(0.6, 2 + 8) - base).mean() + np.linspace(0.03, 0.0, 61)
    p_values = ((x, paired_difference(scores(x, 2 + 8) - base).p_value) for x in means)
    tests = {**TESTS, "dnas": result((next(x for x, p in p_values if 0.012 < p < 0.04), 0.5), seed=2)}
    alone = results_of_cell(made_up(tests), [Arm("softmax"), Arm("dnas"), Arm("uniform")])
    assert row_of(alone, "dnas").verdict == "shown"
    labels = ("sink", "ssmax", "sparsemax", "entmax")
    others = {label: result((0.6, 0.5), seed=20 + i) for i, label in enumerate(labels)}
    among = results_of_cell(made_up({**tests, **others}), [Arm(it) for it in ("softmax", "dnas", *others)])
    assert row_of(among, "dnas").p_value == row_of(alone, "dnas").p_value
    assert row_of(among, "dnas").verdict == "not shown"


def test_two_seeds_give_the_reason_in_place_of_a_verdict():
    tests = {label: result((mean, mean), seeds=2) for label, mean in (("softmax", 0.5), ("dnas", 0.9))}
    row = row_of(results_of_cell(made_up(tests), [Arm(it) for it in tests]), "dnas")
    assert row.verdict == "at least 3 seeds are needed (found 2)"
    assert isnan(row.adjusted) and isnan(row.low) and row.difference == pytest.approx(0.4, abs=0.1)


def test_scores_lie_between_the_better_null_arm_and_the_solver(cell):
    for size in (8, 16):
        null = TESTS["uniform"].scores[size].mean()  # the better one
        ceiling = row_of(cell, "softmax", size).ceiling
        assert 0.8 < ceiling <= 1, "of an assignment"
        for arm in TESTS:
            row = row_of(cell, arm, size)
            assert row.null == pytest.approx(null) and row.ceiling == ceiling
            assert row.normalized == pytest.approx((row.score - null) / (ceiling - null))
    assert row_of(cell, "uniform").normalized == pytest.approx(0)


def test_the_ceiling_is_computed_on_the_examples_of_the_test(cell):
    from attnorm.probes.ensemble import batches

    probe = HUB.probe()
    [batch] = batches(probe, "test", 8, probe.test_examples, 1, pieces=1)
    single = type(batch)(*(None if x is None else x[0] for x in batch))
    assert row_of(cell, "softmax").ceiling == pytest.approx(probe.ceiling(single).mean().item())


def test_without_null_arms_chance_is_the_lower_bound():
    tests = {label: TESTS[label] for label in ("softmax", "dnas")}
    cell = results_of_cell(made_up(tests), [Arm(it) for it in tests])
    assert row_of(cell, "dnas").null == 1 / 16
    tests = {"softmax": result((0.5, 0.5), sizes=(64, 128))}
    row = results_of_cell(made_up(tests, cell=Cell("slots", "distinct")), [Arm("softmax")]).rows[0]
    assert isnan(row.null) and row.ceiling > 0.8 and isnan(row.normalized), "the score of guessing is not known"


def test_measures_are_those_at_the_size_of_training_over_members_that_have_not_diverged():
    measures = {"entropy": np.array([0.5, 0.7, np.nan]), "wanted": np.array([0.25, 0.25, 0.25]), "column_mass_max": 9}
    scalars = {"slack": np.array([1.0, np.nan, 3.0]), "y": np.full(3, np.nan)}
    test = result((0.5, 0.4), seeds=3, measures=measures, scalars=scalars, diverged=1)
    cell = results_of_cell(made_up({"dnas_slack": test}), [Arm("dnas_slack")])
    row, beyond = row_of(cell, "dnas_slack"), row_of(cell, "dnas_slack", 16)
    assert row.entropy == pytest.approx(0.6) and row.wanted == 0.25 and isnan(row.column_mass_min)
    assert (row.learned, row.diverged) == ("slack=2.000; y=nan", 1)
    assert isnan(beyond.entropy) and isnan(beyond.wanted)


def tuned(softmax, dnas):
    """The scores of four tuning seeds around a mean for each rate."""
    spread = np.array([-0.02, 0.0, 0.01, 0.01])
    scores_at = {"softmax": softmax, "dnas": dnas}
    other = np.array([0.01, -0.01, 0.0, 0.0])
    return {
        arm: {rate: mean + (spread if arm == "dnas" else other) for rate, mean in zip(RATES, means, strict=True)}
        for arm, means in scores_at.items()
    }


@pytest.mark.parametrize(
    ("softmax", "dnas", "flips"),
    [
        ((0.5, 0.6), (0.7, 0.8), ""),  # above at both rates
        ((0.7, 0.6), (0.5, 0.8), "0.001"),  # below at the other one
        ((0.7, 0.9), (0.5, 0.8), "0.001 0.01"),
        ((0.71, 0.6), (0.705, 0.8), ""),  # below by less than the seeds spread
    ],
)
def test_a_difference_that_flips_at_another_rate_depends_on_it(softmax, dnas, flips):
    cell = results_of_cell(made_up(TESTS, tuned(softmax, dnas)), ARMS)
    row = row_of(cell, "dnas")
    is_best = softmax[1] > softmax[0]  # the other rate may be the best one of softmax, and nothing was trained there
    shown = "shown" if is_best else "shown at these rates only"
    assert row.flips == flips and row.verdict == ("depends on the rate" if flips else shown)
    assert row_of(cell, "hnas").flips == "", "has no tuning here"


def test_a_flip_counts_at_the_size_and_the_rates_that_were_planned_alone():
    """dnas is above softmax at the size of training and below it at another one. The second tuning flips at a rate that
    was added because some arm was best at an edge."""
    cell = results_of_cell(made_up(TESTS, tuned((0.5, 0.6), (0.7, 0.8))), ARMS)
    for size in (8, 16):
        row = row_of(cell, "dnas", size)
        assert row.difference * (12 - size) > 0 and (row.flips, row.verdict) == ("", "shown")
    row = row_of(results_of_cell(made_up(TESTS, tuned((0.9, 0.6), (0.5, 0.8))), ARMS, (1e-2, 3e-2)), "dnas")
    assert (row.flips, row.verdict) == ("", "shown at these rates only")


BEST, NEAR, FAR = (np.array([0.8, 0.82, 0.81]) - lower for lower in (0, 0.01, 0.5))


@pytest.mark.parametrize(
    ("near", "word"),
    [
        (0.62, "shown"),
        (0.77, "shown at these rates only"),  # p 0.026, which is above 5 % times two
        (0.85, "shown at these rates only"),
        (None, "shown at these rates only"),
        (nan, "shown at these"),
        ("diverged", "shown"),
    ],
)
@pytest.mark.parametrize("worse", ["softmax", "dnas"])
def test_a_difference_is_shown_only_if_it_holds_at_every_rate_that_may_be_the_best(worse, near, word):
    """The rate 0.003 may be the best one of the worse arm, and 0.001 is not. What is not shown keeps its interval."""
    tests = {worse: TESTS["softmax"], ({"softmax", "dnas"} - {worse}).pop(): TESTS["dnas"]}
    equal = result((0.601 if worse == "softmax" else 0.801, 0.5), seed=3)  # to softmax, but counted by Holm
    arms = [Arm("softmax"), Arm("dnas"), Arm("hnas")]
    found = made_up({"softmax": tests["softmax"], "dnas": tests["dnas"], "hnas": equal})
    found.tuning = {arm: {1e-3: FAR, 3e-3: NEAR, 1e-2: BEST} for arm in tests}
    assert further_rates(found, arms) == {worse: [3e-3], ({"softmax", "dnas"} - {worse}).pop(): [3e-3]}
    if near is not None:
        table = result((near, near), seed=7) if near != "diverged" else result((0.9, 0.9), diverged=SEEDS)
        found.further = {arm: {3e-3: table} for arm in tests}
    row = row_of(results_of_cell(found, arms), "dnas")
    assert row.verdict.startswith(word) and row.p_value + DISMISSAL <= row.adjusted < 0.05
    at_rates = row_of(results_of_cell(made_up(found.tests), arms), "dnas")
    if near == "diverged":
        assert row.over_rates == row.p_value and (row.low, row.high) == (at_rates.low, at_rates.high)
    elif word == "shown":
        assert row.over_rates >= row.p_value and (row.low, row.high) != (at_rates.low, at_rates.high)
        assert row.low * row.high > 0 and row.high - row.low > at_rates.high - at_rates.low
    else:
        assert row.over_rates == 1 or (near == 0.77 and 0.025 < row.over_rates < 0.05)
        assert (row.low, row.high) == (at_rates.low, at_rates.high)


def test_discoveries_are_those_of_benjamini_and_hochberg_over_all_cells(cell):
    """By hand: p times the number of differences over the rank, and never above that of a larger p."""
    other = results_of_cell(made_up({**TESTS, "dnas": result((0.605, 0.5), seed=9)}), ARMS)
    rows = [row for it in with_discoveries([cell, other]) for row in it.rows]
    compared = sorted((row for row in rows if row.trained and not isnan(row.p_value)), key=lambda row: row.p_value)
    assert len(compared) == 4
    for i, row in enumerate(compared):
        expected = min(later.p_value * 4 / (i + j + 1) for j, later in enumerate(compared[i:]))
        assert row.discovery == pytest.approx(min(expected, 1))
    assert all(isnan(row.discovery) for row in rows if not row.trained or isnan(row.p_value))


@pytest.mark.slow
def test_a_flip_does_not_hide_that_nothing_is_shown():
    tests = {**TESTS, "dnas": result((0.6005, 0.5), seed=2)}
    tunings = tuned((0.9, 0.9), (0.5, 0.5)), tuned((0.5, 0.5), (0.9, 0.9))
    rows = [row_of(results_of_cell(made_up(tests, tuning), ARMS), "dnas") for tuning in tunings]
    assert {row.flips for row in rows} == {"", "0.001 0.01"} and {row.verdict for row in rows} == {"not shown"}


def test_a_flip_needs_three_seeds_with_finite_scores():
    for spoil in (lambda x: x[:2], lambda x: x * np.nan, lambda x: x * 0 + x[0]):
        tuning = {arm: {rate: spoil(x) for rate, x in of.items()} for arm, of in tuned((0.9, 0.9), (0.5, 0.5)).items()}
        tuning["softmax"] = {rate: np.asarray(x)[: len(tuning["dnas"][rate])] for rate, x in tuning["softmax"].items()}
        assert flipping_rates(made_up(TESTS, tuning), 0.2, "dnas", "softmax") == []


def test_flips_are_found_for_arms_that_need_options():
    """An own normalizer without defaults, under its short name."""
    label = "probe_parts.Scaled"
    tuning = tuned((0.9, 0.9), (0.5, 0.5))
    found = made_up(
        {"softmax": TESTS["softmax"], label: TESTS["dnas"]}, {"softmax": tuning["softmax"], label: tuning["dnas"]}
    )
    cell = results_of_cell(found, [Arm("softmax"), Arm(label, {"factor": 2.0})])
    assert row_of(cell, "Scaled").flips == "0.001 0.01"


def test_arms_without_rows_are_named_with_the_reason():
    tests = {"softmax": result((0.5, 0.4), sizes=(32, 128))}
    found = CellOutcome(Cell("recall"), tests=tests, failed={"sink": "broke"})
    cell = results_of_cell(found, [Arm(it) for it in ("softmax", "dnas", "sink", "argmax")])
    assert {row.arm for row in cell.rows} == {"softmax"}
    assert cell.left_out.keys() == {"dnas", "sink", "argmax"} and cell.left_out["sink"] == "broke"
    assert "future" in cell.left_out["dnas"] and "gradient" in cell.left_out["argmax"]
    cell = results_of_cell(made_up({"dnas": TESTS["dnas"]}), [Arm("softmax"), Arm("dnas")])  # without the baseline
    assert [isnan(row.difference) for row in cell.rows] == [True, True]


def test_the_csv_file_has_every_number_to_six_digits(cell, tmp_path):
    other = results_of_cell(CellOutcome(Cell("recall"), tests={}), ARMS)
    write_csv([cell, other, cell], tmp_path / "new" / "probe.csv")
    lines = read_csv(tmp_path / "new" / "probe.csv")
    assert len(lines) == 2 * len(cell.rows) and [*lines[0]] == [it.name for it in fields(Row)]
    for line, row in zip(lines, [*cell.rows, *cell.rows], strict=True):
        for name, value in asdict(row).items():
            if isinstance(value, float):
                assert float(line[name] or "nan") == pytest.approx(value, rel=1e-5, nan_ok=True)
            else:
                assert line[name] == str(value)
