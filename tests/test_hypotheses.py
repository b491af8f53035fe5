"""experiments/atlas/hypotheses.py: verdicts on made-up results, in which the truth is known."""

import itertools
import re
import sys
import tarfile
from math import isnan, sqrt
from types import SimpleNamespace

import numpy as np
import pytest
import runs
import torch
from scipy import optimize, stats
from scripts import load

from attnorm.analysis.statistics.variances import variances_of
from attnorm.probes.arm import Arm
from attnorm.probes.experiment import CellOutcome
from attnorm.probes.jobs import Cell, ProbeResult
from attnorm.probes.jobs import load as load_result
from attnorm.probes.presets import PRESETS
from attnorm.run.csv_files import read_csv

FOLDER = runs.ROOT / "experiments/atlas"
ARMS = ("softmax", "dnas", "hnas", "dnas_slack_u", "sinkhorn")
SEEDS, EXAMPLES = 10, 60
NONE = np.zeros(0)


def test_the_results_of_the_atlas_can_be_continued(tmp_path):
    with tarfile.open(FOLDER / "scores/demand-16.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    [plan] = [it for it in load("experiments/atlas/run").plans("primary") if it.cells[0].title == "demand 16"]
    jobs = [plan.job(plan.cells[0], arm, plan.rates, tune=True) for arm in ARMS]
    assert None not in [load_result(job, tmp_path) for job in jobs]


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)  # as for a script
        yield load("experiments/atlas/hypotheses")


DEMANDS = {**{f"demand {n}": n for n in (16, 12, 8, 4)}, "share 8": 8, "share 4": 4, "share 1": 1, "skew 0.8": 4}
ASKED = (*DEMANDS, "needle", "max")  # the cells of H4
RAISED = {"match": 0.1, "hub 0.9": 0.15, "hub 0.45": 0.1, "hub 0": 0.05, "slots exchangeable": 0.1, "coverage": -0.1}


def effects(cell, arm, size):
    """The mean of an arm minus that of softmax, if all hypotheses hold. dnas follows log K/M."""
    if arm == "dnas" and cell.title in ASKED:
        share = DEMANDS[cell.title] / 16 if cell.title in DEMANDS else {"needle": 8, "max": 4}[cell.title] / size
        return 0.15 * np.log(share)
    if arm == "dnas":
        return RAISED.get(cell.title, 0.0)
    return 0.1 if arm in ("hnas", "dnas_slack_u") and cell.title in ("coverage", "demand 12", "demand 8") else 0.0


def made_up(script, change=lambda cell, arm, size: None, titles=(), shares=lambda gain: 0.5 + gain / 2, without=()):
    """An atlas with normal scores. In the means, the difference between an arm and softmax is that of `effects`, or of
    `change` unless it is None. hnas and dnas_slack_u are never below dnas otherwise.

    Seeds, examples and single scores vary, but the mean of a table does not. shares: the share of dnas in hnas from
    the difference dnas - softmax. without: pairs of a cell and an arm that have no results.
    """

    def effect(cell, arm, size):
        if (changed := change(cell, arm, size)) is not None:
            return changed
        least = effect(cell, "dnas", size) if arm in ("hnas", "dnas_slack_u") else -1.0
        return max(effects(cell, arm, size), least)

    rng = np.random.default_rng(0)
    found = []
    for cell in cells_of(*titles):
        probe, result = cell.probe(), CellOutcome(cell)
        for arm in ARMS:
            scores = {size: table_of(0.5 + effect(cell, arm, size), rng=rng) for size in probe.test_sizes}
            share = shares(effect(cell, "dnas", probe.size))
            scalars = {"hybrid_weights": np.full(SEEDS, share)} if arm == "hnas" else {}
            if (cell.title, arm) not in without:
                result.tests[arm] = ProbeResult(NONE, scores, scalars, {}, 0, 0.0)
                result.rate[arm] = 0.01
        found.append(result)
    return script.Atlas(found)


def cells_of(*titles):
    """The cells of the atlas, or those with some titles."""
    return [cell for cell in PRESETS["atlas"].cells if not titles or cell.title in titles]


def table_of(mean, rng, spread=0.005):
    """Scores or differences (seeds, examples) with a given mean."""
    errors = spread * sum(rng.normal(size=shape) for shape in ((SEEDS, 1), (1, EXAMPLES), (SEEDS, EXAMPLES)))
    return mean + errors - errors.mean()


@pytest.fixture
def untrained(script, monkeypatch):
    """No model is trained and nothing is timed: H4 looks at scores that are zero, and dnas_slack_u takes half."""
    measured = script.measured
    monkeypatch.setattr(measured, "train", lambda *arguments: SimpleNamespace(model=None))
    monkeypatch.setattr(measured, "MEASURED", 2)
    shape = lambda batch: (2, 1, batch.queries.shape[2], batch.keys.shape[2])  # noqa: E731
    monkeypatch.setattr(measured, "scores_of", lambda model, batch: torch.zeros(shape(batch)))
    monkeypatch.setattr(measured, "cost", lambda: {"softmax": 1.0, "hnas": 2.0, "dnas_slack_u": 1.0})


def lower(table, tail):
    """The lower end of the interval that leaves out the probability `tail` at each end."""
    found = variances_of(table)
    parts = ((found.of_seeds, SEEDS), (found.of_examples, EXAMPLES))
    return table.mean() - sqrt(sum(stats.t.isf(tail, n - 1) ** 2 * part for part, n in parts))


def p_above(table, margin=0.0):
    """The one-sided p-value of a mean above `margin`: the tail at which an end of the interval is the margin."""
    shifted = table - margin
    sign = 1 if shifted.mean() > 0 else -1
    tail = np.exp(optimize.brentq(lambda log_tail: lower(sign * shifted, np.exp(log_tail)), -300, np.log(0.5)))
    return tail if sign > 0 else 1 - tail


@pytest.mark.parametrize("mean", [-0.019, -0.006, 0.0, 0.013, 0.1])
@pytest.mark.parametrize("margin", [0.0, -0.02, 0.02])
def test_one_sided_tests_and_bounds_are_those_of_the_statistics(script, mean, margin):
    table = table_of(mean, np.random.default_rng(0), 0.02)
    above, below = script.above("H", "", table, margin), script.below("H", "", table, margin)
    assert above.p_value == pytest.approx(p_above(table, margin), rel=1e-6)
    assert below.p_value == pytest.approx(p_above(-table, -margin), rel=1e-6)
    assert above.bound == pytest.approx(lower(table, 0.05)) and below.bound == pytest.approx(-lower(-table, 0.05))
    for part in (above, below):
        assert part.estimate == pytest.approx(mean)
        assert (part.low, part.high) == pytest.approx((lower(table, 0.025), -lower(-table, 0.025)))
    assert (above.p_value < 0.05) == (above.bound > margin) and (below.p_value < 0.05) == (below.bound < margin)


def test_a_claim_without_an_interval_has_no_p_value(script):
    """Also where the margin makes all differences differ from zero."""
    few = np.zeros((SEEDS, 1000))
    few[:, :3] = np.random.default_rng(0).normal(size=(SEEDS, 3))
    infinite = table_of(0.0, np.random.default_rng(0))
    infinite[3, 5] = -np.inf
    expected = {"all differences are zero": 0 * few, "3 of 1,000 examples differ": few, "not finite": infinite}
    for reason, table in {**expected, "no results yet": None}.items():
        for part in (script.above("H", "", table, -0.02), script.below("H", "", table, 0.02)):
            assert isnan(part.p_value) and isnan(part.bound) and isnan(part.low) and reason in part.reason


CELLS = {  # enough for a verdict
    "H1": ("match", "hub 0.9", "hub 0.45", "hub 0"),
    "H2": ("demand 4", "skew 0.8", "needle"),
    "H3": ("demand 12", "demand 8", "sort"),
    "H4": ASKED,
    "H5": ("coverage",),
    "H6": ("slots exchangeable", "slots distinct"),
    "H7": ("match", "hub 0.9", "hub 0", "demand 4", "coverage", "skew 0.8"),
    "H8": ("match", "max"),
}


@pytest.mark.parametrize("name", CELLS)
def test_a_hypothesis_is_shown_if_it_holds(script, untrained, name):
    p_values = [part.p_value for part in script.FAMILY[name](made_up(script, titles=CELLS[name]))]
    assert max(p_values) < 0.05 / 8, "also after the method of Holm"


def test_the_claims_and_cells_are_those_of_the_page(script, untrained):
    """Without results, so nothing is computed."""
    atlas = made_up(script, without={*itertools.product((cell.title for cell in cells_of()), ARMS)})
    parts, adjusted = script.decide(atlas)
    assert [*adjusted] == [*CELLS] and all(isnan(p_value) for p_value in adjusted.values())
    claims = {name: [part.claim for part in parts if part.hypothesis == name] for name in CELLS}
    assert [claim.partition(":")[0] for claim in claims["H1"]] == ["match", "hub 0.9", "hub 0.45", "hub 0", "hub"]
    assert [claim.partition(":")[0] for claim in claims["H2"]] == ["demand 4", "skew 0.8", "needle with 1,024 keys"]
    both = {cell.title for cell in cells_of() if cell.name not in ("recall", "rank")}
    bounds = {f"{cell}: hnas > {arm} - 0.02" for cell in both for arm in ("softmax", "dnas")}
    strict = {f"{cell}: hnas > {arm}" for cell in ("demand 12", "demand 8") for arm in ("softmax", "dnas")}
    assert {*claims["H3"]} == bounds | strict
    assert {*claims["H8"]} == {
        f"{cell}: dnas_slack_u > {arm} - 0.02" for cell in both for arm in ("softmax", "dnas", "hnas")
    }
    assert [claim.partition(":")[0] for claim in claims["H4"]] == [*CELLS["H4"]]
    assert claims["H7"] == [f"Kendall's tau over {len(both)} cells > 0"]


def test_sinkhorn_is_checked_at_all_sizes_and_the_number_of_keys_may_be_the_better_prediction(script, untrained):
    def by_number(cell, arm, size):
        return 0.3 - 0.1 * np.log(size) if arm == "dnas" and cell.title in ASKED else None

    *masses, last = script.fourth(made_up(script, by_number, CELLS["H4"]))
    sizes = [f"{cell.title}, {size} keys" for cell in cells_of(*CELLS["H4"]) for size in cell.probe().test_sizes]
    assert [part.claim.partition(":")[0] for part in masses] == sizes and "needle, 1024 keys" in sizes
    assert last.claim.startswith("error of a prediction of dnas") and "0.000 from n" in last.claim
    assert all(part.p_value == 0 for part in masses) and last.p_value == 1 and last.estimate < 0


@pytest.mark.parametrize(
    ("name", "cell", "arm", "size", "effect", "wrong"),
    [
        ("H1", "hub 0", "dnas", 8, 0.15, ["hub: dnas - softmax grows with the shift"]),
        ("H1", "hub 0.45", "dnas", 8, 0.0, ["hub 0.45: dnas > softmax"]),
        ("H1", "match", "dnas", 16, -0.1, ["match: dnas > softmax"]),
        ("H2", "demand 4", "dnas", 16, 0.0, ["demand 4: dnas < softmax"]),
        ("H2", "skew 0.8", "dnas", 16, 0.1, ["skew 0.8: dnas < softmax"]),
        ("H2", "needle", "dnas", 1024, 0.0, ["needle with 1,024 keys: dnas < softmax"]),
        ("H3", "sort", "hnas", 16, -0.03, ["sort: hnas > softmax - 0.02", "sort: hnas > dnas - 0.02"]),
        ("H3", "hub 0.9", "hnas", 8, 0.1, ["hub 0.9: hnas > dnas - 0.02"]),
        ("H3", "demand 12", "hnas", 16, 0.0, ["demand 12: hnas > softmax"]),
        ("H3", "demand 8", "dnas", 16, 0.1, ["demand 8: hnas > dnas"]),
        ("H5", "coverage", "dnas", 24, 0.0, ["coverage: dnas < softmax"]),
        ("H5", "coverage", "hnas", 24, 0.0, ["coverage: hnas > softmax"]),
        ("H6", "slots exchangeable", "dnas", 64, 0.0, ["exchangeable slots: dnas finds more of the smallest"]),
        ("H6", "slots distinct", "dnas", 64, 0.03, ["distinct slots: dnas < softmax + 0.02"]),
        ("H6", "slots distinct", "dnas", 64, -0.03, ["distinct slots: dnas > softmax - 0.02"]),
        ("H8", "match", "hnas", 16, 0.15, ["match: dnas_slack_u > hnas - 0.02"]),
        ("H8", "match", "softmax", 16, 0.15, ["match: dnas_slack_u > softmax - 0.02"]),
    ],
)
def test_a_hypothesis_is_not_shown_if_one_of_its_claims_is_wrong(
    script, untrained, name, cell, arm, size, effect, wrong
):
    atlas = made_up(
        script, lambda *at: effect if (at[0].title, *at[1:]) == (cell, arm, size) else None, {*CELLS[name], cell}
    )
    assert [part.claim for part in script.FAMILY[name](atlas) if part.p_value > 0.05] == wrong


def test_the_error_of_a_prediction_is_that_of_probes_that_were_left_out(script):
    rng = np.random.default_rng(0)
    names = np.repeat(["a", "b", "c"], [3, 2, 4])
    x, y = np.exp(rng.normal(size=9)), rng.normal(size=9)
    squares = []
    for name in "abc":
        design = np.stack([np.ones(9), np.log(x)], 1)
        rest = names != name
        solution = np.linalg.lstsq(design[rest], y[rest], rcond=None)[0]
        squares += [*(y - design @ solution)[~rest] ** 2]
    rows = [(name, 7.0, number, value) for name, number, value in zip(names, x, y, strict=True)]
    assert script.left_out_error(rows, 2) == pytest.approx(np.mean(squares) ** 0.5)


def test_the_mass_of_converged_sinkhorn_is_the_share_of_wanted_keys(script, monkeypatch):
    scores = 3 * torch.randn(5, 1, 4, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wanted = (torch.arange(16) < 3).double().expand(5, -1)
    part = script.mass_part("x", scores, wanted)
    weights = scores[:, 0].exp()
    for _ in range(3000):  # independent: equal columns, then rows of one
        weights = weights / weights.sum(-2, keepdim=True)
        weights = weights / weights.sum(-1, keepdim=True)
    assert torch.allclose(weights.mean(-2)[:, :3].sum(-1), torch.tensor(3 / 16, dtype=torch.float64), atol=1e-6)
    assert part.p_value == 0 and part.estimate < 0.001
    slow = torch.tensor([[0.0, 0.0], [-60.0, 0.0]], dtype=torch.float64)[None, None]
    monkeypatch.setattr(script.measured, "ITERATIONS", (2, 50))
    part = script.mass_part("x", slow, torch.ones(1, 2))
    assert isnan(part.p_value) and re.fullmatch("not converged: marginal error 0.0.* after 50 iterations", part.reason)


def test_scores_of_a_model_are_those_of_its_weights(script):
    probe = Cell("skew", "0.8").probe()
    model = probe.model(Arm("softmax"), [110])
    [batch] = script.measured.batches(probe, "test", 16, 3, 1, pieces=1)
    scores = script.measured.scores_of(model, batch)
    assert scores.shape == (3, 1, 16, 16)
    assert torch.allclose(scores.softmax(-1).float(), model.weights(batch).transpose(0, 1), atol=1e-6)


def kendall(x, y):
    pairs = [np.sign((x[i] - x[j]) * (y[i] - y[j])) for i, j in itertools.combinations(range(len(x)), 2)]
    return sum(pairs) / len(pairs)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_permutation_test_of_shares_is_that_over_all_orders(script, sign):
    """Six cells with different shares; two of them are out of order."""
    gains = {"match": 0.1, "hub 0.9": 0.2, "hub 0.45": 0.15, "hub 0": -0.1, "sort": -0.2, "coverage": 0.05}
    shares = {0.1: 0.6, 0.2: 0.8, 0.15: 0.7, -0.1: 0.1, -0.2: 0.2, 0.05: 0.5}
    cells = cells_of(*gains)
    atlas = made_up(
        script,
        lambda cell, arm, size: gains[cell.title] if arm == "dnas" else None,
        gains,
        lambda gain: 0.5 + sign * (shares[gain] - 0.5),
    )
    [part] = script.seventh(atlas)
    y = [gains[cell.title] for cell in cells]
    x = [sign * shares[gain] for gain in y]
    orders = [kendall(order, y) for order in itertools.permutations(x)]
    assert part.estimate == pytest.approx(kendall(x, y)) and part.estimate * sign == pytest.approx(13 / 15)
    assert part.p_value == pytest.approx(np.mean([tau >= kendall(x, y) - 1e-9 for tau in orders]))
    [part] = script.seventh(made_up(script, titles=gains, shares=lambda gain: 0.5))
    assert isnan(part.p_value) and "equal shares" in part.reason


def test_slack_must_also_be_fast_and_arms_are_timed(script, untrained, monkeypatch):
    atlas = made_up(script, titles=["sort"])
    for ratio in (0.75, 0.76):
        monkeypatch.setattr(script.measured, "cost", lambda ratio=ratio: {"hnas": 2.0, "dnas_slack_u": 2 * ratio})
        part = script.eighth(atlas)[-1]
        assert part.estimate == ratio and part.p_value == (ratio > 0.75)
    monkeypatch.undo()
    seconds = script.measured.cost(size=8, rounds=1)
    assert [*seconds] == ["softmax", "hnas", "dnas_slack_u"] and min(seconds.values()) > 0


@pytest.mark.parametrize(
    ("name", "cell", "arm"),
    [
        *(("H1", "match", "softmax"), ("H2", "needle", "dnas"), ("H3", "sort", "hnas"), ("H4", "skew 0.8", "sinkhorn")),
        *(("H4", "max", "dnas"), ("H5", "coverage", "hnas"), ("H6", "slots distinct", "dnas"), ("H7", "hub 0", "hnas")),
        *(("H7", "match", "softmax"), ("H8", "max", "dnas_slack_u")),
    ],
)
def test_a_hypothesis_waits_for_all_of_its_results(script, untrained, name, cell, arm):
    parts = script.FAMILY[name](made_up(script, titles=CELLS[name], without=[(cell, arm)]))
    assert any(isnan(part.p_value) for part in parts)
    assert re.match(rf"{name}: not decided \(.*no results yet.*\)", script.verdict(name, np.nan, parts))


def test_a_claim_that_fails_decides_its_hypothesis_whatever_is_missing(script, untrained):
    """No result that is still missing can make the largest p-value smaller."""

    def lower(cell, arm, size):
        return 0.0 if (cell.title, arm) == ("hub 0", "dnas") else None

    cells = CELLS["H1"]
    for change, expected in ((lower, True), (lambda *at: None, False)):
        atlas = made_up(script, change, cells, without={("match", "dnas")})
        parts = script.first(atlas)
        line = script.verdict("H1", script.largest_p_value(parts), parts)
        assert line.startswith("H1: not shown, adjusted p" if expected else "H1: not decided (match")


def test_without_any_results_nothing_is_overwritten_and_other_arms_cannot_extend_the_rates(
    script, monkeypatch, tmp_path
):
    """The stages `rows` and `all` may have further learning rates, because any of their arms may be best at an edge."""
    stages = []
    monkeypatch.setattr("run.run", lambda folder, stage, workers: stages.append(stage) or [])
    monkeypatch.setattr(sys, "argv", ["hypotheses.py", "--out", str(tmp_path)])
    before = (FOLDER / "hypotheses.csv").read_bytes()
    with pytest.raises(SystemExit, match="no results"):
        script.main()
    assert stages == ["primary"] and (FOLDER / "hypotheses.csv").read_bytes() == before


def test_the_family_is_adjusted_by_the_largest_p_value_of_each(script, monkeypatch):
    """By hand: of eight, 0.004 is multiplied by 8, 0.006 by 7, 0.02 by 6, and no further one is smaller."""
    p_values = [(0.004,), (0.001, 0.02), (0.9,), (0.006, 0.0), (np.nan, 0.0), (0.9,), (0.9,), (0.9,)]
    made = {
        f"H{n}": lambda atlas, n=n, of=of: [script.Part(f"H{n}", "c", p_value=p) for p in of]
        for n, of in enumerate(p_values, 1)
    }
    monkeypatch.setattr(script, "FAMILY", made)
    parts, adjusted = script.decide(None)
    assert [*adjusted.values()] == pytest.approx([0.032, 0.12, 1, 0.042, np.nan, 1, 1, 1], nan_ok=True)
    assert script.verdict("H1", adjusted["H1"], parts) == "H1: shown, adjusted p 0.032"
    assert script.verdict("H2", adjusted["H2"], parts) == "H2: not shown, adjusted p 0.12"


def test_all_parts_are_written(script, tmp_path):
    parts = [script.Part("H1", "a > b", 0.1, 0.05, 0.15, 0.06, 1e-5), script.Part("H2", "c", reason="no results yet")]
    script.write(parts, tmp_path / "hypotheses.csv")
    one, two = read_csv(tmp_path / "hypotheses.csv")
    assert [*one.values()] == ["H1", "a > b", "0.1", "0.05", "0.15", "0.06", "1e-05", ""]
    assert [*one] == ["hypothesis", "claim", "estimate", "low", "high", "bound", "p_value", "reason"]
    assert two["p_value"] == two["low"] == "" and two["reason"] == "no results yet"
