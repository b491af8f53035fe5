"""Ladders: contrasts over rungs, what runs and tables of scores say about them, and what is refused."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from browser import Page
from made_up_runs import make_run, make_runs
from marks import slow
from scipy import stats

from attnorm.analysis.arms import find_runs
from attnorm.analysis.ladder.ladder_comparison import PRIMARIES, compare_ladder
from attnorm.analysis.ladder.ladder_files import ladder_sentences, table_of
from attnorm.analysis.ladder.ladder_runs import scores_of_runs
from attnorm.analysis.ladder.score_rows import scores_of_tables, write_scores
from attnorm.analysis.report.content import collect
from attnorm.analysis.report.page import figures_of_report, html_of
from attnorm.analysis.statistics.contrasts import (
    baseline_slope,
    compute_multiplier,
    deviation_weights,
    held_weights,
    projection_weights,
    slope_weights,
    trend_weights,
)
from attnorm.analysis.study import further_values
from attnorm.cli.compare import run_compare
from attnorm.errors import ConfigError, DataError, RunError
from attnorm.run.folder import folder_lock
from attnorm.run.run import Run
from attnorm.tasks.results import Predictions

EXAMPLES, ARTICLES = 60, 20
WIDTHS = {1: 48, 2: 64, 3: 96, 4: 128, 5: 192, 6: 256}
GAIN = {"softmax": 0.0, "dnas": -0.05}
KEYS = ["model.d_model", "optimizer.lr", "task.max_steps"]
DEFAULT_SEEDS = (110, 111, 112, 113, 114)


def tokens_of(example: int) -> int:
    return 20 + example % 7


def losses_of(arm: str, rung: int, seed: int) -> np.ndarray:
    """The mean loss of each example of a run."""
    shared = np.random.default_rng(0).normal(0, 0.5, EXAMPLES)
    own = np.random.default_rng([sum(map(ord, arm)), rung, seed])
    gain = GAIN.get(arm, -0.02) * (1 + 0.3 * rung)
    return 6 - 0.3 * rung + 0.01 * rung**2 + gain + shared + own.normal(0, 0.01) + own.normal(0, 0.05, EXAMPLES)


def record_of(rung: int, **more) -> dict:
    size = {"rung": rung, "parameters": 50 * WIDTHS[rung] ** 2, "train_tokens": 250.0 * WIDTHS[rung] ** 2}
    return {**size, "flops_per_token": 300.0 * WIDTHS[rung] ** 2, "beyond": rung == 6, "keys": KEYS, **more}


def make_ladder_run(folder: Path, arm: str, rung: int, seed: int, *, settings=None, state="finished", **more) -> Path:
    """A run on a rung. more: changes to its record of the ladder."""
    sizes = {"model.d_model": WIDTHS[rung], "optimizer.lr": 0.1 / WIDTHS[rung], "task.max_steps": 100 * WIDTHS[rung]}
    speed = {"softmax": 1.0, "dnas": 0.8}.get(arm, 0.5) * 1e6 / WIDTHS[rung] + seed
    summary, record = {"tokens_per_second": speed}, {"run.ladder": record_of(rung, **more)}
    options = {"settings": {**sizes, **record, **(settings or {})}, "summary": summary, "state": state}
    made = make_run(folder, arm, seed, examples=1, task="causal_lm", **options)
    if state == "finished":
        tokens = [tokens_of(example) for example in range(EXAMPLES)]
        Predictions(
            ids=[f"p{example}" for example in range(EXAMPLES)],
            groups=[f"article {example % ARTICLES}" for example in range(EXAMPLES)],
            references=["text"] * EXAMPLES,
            outputs=[""] * EXAMPLES,
            scores={},
            loss_sum=(losses_of(arm, rung, seed) * tokens).tolist(),
            n_tokens=tokens,
            input_hashes=[f"{example:016x}" for example in range(EXAMPLES)],
            selecting=set(),
        ).write(Run(made).predictions_file())
    return made


def make_ladder(place: Path, arms=("softmax", "dnas"), rungs=(1, 2, 3, 4), seeds=DEFAULT_SEEDS, **more) -> Path:
    for arm in arms:
        for rung in rungs:
            for seed in seeds:
                make_ladder_run(place / f"{arm}_{rung}_{seed}", arm, rung, seed, **more)
    return place


@pytest.fixture(scope="module")
def ladder(tmp_path_factory) -> Path:
    return make_ladder(tmp_path_factory.mktemp("ladder"), rungs=(1, 2, 3, 4, 6))


def compared(place, **options):
    return compare_ladder(scores_of_runs(find_runs([place])), **options)


# the contrasts


X = np.array([0.0, 0.5, 1.1, 1.7])


def test_weights_give_a_line_and_a_parabola_back():
    line = 3.0 - 0.2 * X
    assert trend_weights(X) @ line == pytest.approx(-0.2)
    assert projection_weights(X, 2.6) @ line == pytest.approx(3 - 0.2 * 2.6)
    assert deviation_weights(X) @ line == pytest.approx(0, abs=1e-12)
    assert deviation_weights(X) @ [*line[:3], line[3] + 0.07] == pytest.approx(0.07)
    assert held_weights(X, 2.6) @ [*line, 3 - 0.2 * 2.6 + 0.01] == pytest.approx(0.01)
    assert slope_weights(X, 1.7) @ (line + 0.3 * X**2) == pytest.approx(-0.2 + 0.6 * 1.7)
    with pytest.raises(ValueError, match="a line needs two rungs"):
        trend_weights([1.0, 1.0])
    with pytest.raises(ValueError, match="a parabola needs 3 rungs"):
        slope_weights([1.0, 2.0, 2.0], 1.0)


def test_a_multiplier_says_how_much_more_compute_the_baseline_needs():
    assert compute_multiplier(-0.01, -0.1) == pytest.approx(1.2589254)
    assert compute_multiplier(0.01, -0.1) == pytest.approx(1 / 1.2589254)
    assert compute_multiplier(-1000, -0.01) == np.inf
    falling = (5 - 0.1 * X)[:, None, None] + np.random.default_rng(0).normal(0, 1e-3, (4, 3, 20))
    assert baseline_slope(falling, X, 1.7) == pytest.approx(-0.1, abs=0.01)
    assert baseline_slope(-falling, X, 1.7) is None  # rising
    assert baseline_slope(-falling, X, 1.7, better=1) == pytest.approx(0.1, abs=0.01)
    assert baseline_slope(falling[:2], X[:2], 0.5) is None
    slopes = np.array([-0.3, -0.1, 0.1])[:, None]  # less than two standard errors from zero
    assert baseline_slope(5 + np.multiply.outer(X, slopes) + 1e-3 * falling, X, 1.7) is None
    assert baseline_slope(5 + np.multiply.outer(X, slopes - 0.3) + 1e-3 * falling, X, 1.7) == pytest.approx(
        -0.4, abs=0.01
    )


# an independent recomputation, from the predictions alone


def pseudo(path: Path) -> np.ndarray:
    rows = pd.read_parquet(path)
    loss, tokens = rows["loss_sum"].to_numpy(), rows["n_tokens"].to_numpy()
    n, whole = len(rows), loss.sum() / tokens.sum()
    return n * whole - (n - 1) * (loss.sum() - loss) / (tokens.sum() - tokens)


def crossed(table: np.ndarray) -> tuple[float, float]:
    """The mean of a table (seeds, examples) in articles of one size, and the half width of its interval."""
    clusters = table.reshape(len(table), EXAMPLES // ARTICLES, ARTICLES).mean(1)
    k, n = clusters.shape
    mean, rows, columns = clusters.mean(), clusters.mean(1), clusters.mean(0)
    seeds = n * ((rows - mean) ** 2).sum() / (k - 1)
    examples = k * ((columns - mean) ** 2).sum() / (n - 1)
    noise = ((clusters - rows[:, None] - columns + mean) ** 2).sum() / (k - 1) / (n - 1)
    t_seeds, t_examples = stats.t.ppf(0.975, k - 1), stats.t.ppf(0.975, n - 1)
    return mean, np.sqrt((t_seeds**2 * seeds + t_examples**2 * max(examples - noise, 0)) / k / n)


def test_the_numbers_of_a_ladder_are_those_of_the_predictions(ladder):
    d = {
        rung: np.stack(
            [
                np.subtract(*(pseudo(ladder / f"{arm}_{rung}_{seed}/predictions/validation.parquet") for arm in arms))
                for seed in DEFAULT_SEEDS
            ]
        )
        for rung in (1, 2, 3, 4, 6)
        for arms in [("dnas", "softmax")]
    }
    x = {rung: np.log10(250 * WIDTHS[rung] ** 2 * 300 * WIDTHS[rung] ** 2) for rung in d}
    [arm] = compared(ladder).arms
    fitted = np.array([x[rung] for rung in (1, 2, 3, 4)])
    lines = np.stack([d[rung] for rung in (1, 2, 3, 4)])
    slope, level = np.polyfit(fitted, lines.reshape(4, -1), 1).reshape(2, *lines.shape[1:])
    others = np.polyfit(fitted[:3], lines[:3].reshape(3, -1), 1).reshape(2, *lines.shape[1:])
    expected = {
        "largest": (d[4], arm.contrasts["largest"]),
        "trend": (slope, arm.contrasts["trend"]),
        "projection": (slope * (x[4] + 1) + level, arm.contrasts["projection"]),
        "deviation": (d[4] - others[0] * x[4] - others[1], arm.contrasts["deviation"]),
        "held": (d[6] - slope * x[6] - level, arm.contrasts["held"]),
    }
    expected |= {f"rung {r.rung.number}": (d[r.rung.number], r.difference) for r in arm.rungs}
    assert len(expected) == 9
    for name, (table, difference) in expected.items():
        mean, half = crossed(table)
        ends = difference.new_seeds_and_examples
        assert (difference.estimate, ends.low, ends.high) == pytest.approx(
            (mean, mean - half, mean + half), abs=1e-9
        ), name
    assert arm.projected == pytest.approx(10 ** (x[4] + 1))
    losses = [
        np.mean([pseudo(ladder / f"softmax_{rung}_{seed}/predictions/validation.parquet") for seed in DEFAULT_SEEDS])
        for rung in (1, 2, 3, 4)
    ]
    at = np.polyval(np.polyder(np.polyfit(fitted, losses, 2)), x[4])
    top = arm.rungs[-1]
    assert top.multiplier[0] == pytest.approx(10 ** (d[4].mean() / at), rel=1e-9)
    mean, half = crossed(d[4])
    ends = [10 ** ((mean + half) / at), 10 ** ((mean - half) / at)]
    assert [top.multiplier[1].low, top.multiplier[1].high] == pytest.approx(ends, rel=1e-9)
    seconds = [np.median([1 / (s * 1e6 / WIDTHS[4] + seed) for seed in DEFAULT_SEEDS]) for s in (0.8, 1.0)]
    assert top.net[0] == pytest.approx(top.multiplier[0] / (seconds[0] / seconds[1]), rel=1e-9)


# which runs count


@pytest.mark.parametrize("of_rungs", [[], slow(["model.dropout"])])  # whether the rungs set what is tuned
def test_arms_are_told_apart_without_the_settings_of_rungs_and_rates(ladder, tmp_path, of_rungs):
    for rung in (1, 2, 3):  # a ladder of its own, with other rates
        for seed in DEFAULT_SEEDS[:3]:
            own = {"optimizer.lr": 1.0, "optimizer.weight_decay": 0.1 * rung, "model.dropout": 0.2 * rung}
            more = {"settings": own, "keys": [*KEYS, "optimizer.weight_decay", *of_rungs], "tuned": "model.dropout"}
            make_ladder_run(tmp_path / f"hnas_{rung}_{seed}", "hnas", rung, seed, own_parameters=10**9, **more)
    scores = scores_of_runs(find_runs([ladder, tmp_path]))
    assert scores.arms == ["dnas", "softmax", "hnas"]
    more = "hnas has more parameters than softmax on its largest rung: 1,000,000,000 instead of 460,800."
    assert [note for note in scores.notes if "parameters" in note] == [more]
    dnas, hnas = compare_ladder(scores).arms
    assert [len(arm.compared) for arm in (dnas, hnas)] == [4, 3]
    assert (len(dnas.seeds), len(hnas.seeds)) == (5, 3)
    assert hnas.notes[0] == (
        "hnas is compared on rungs 1 to 3, because it and softmax share fewer than 3 seeds on rung 4."
    )
    p = [arm.contrasts[name].p_value for arm in (dnas, hnas) for name in PRIMARIES]
    order = np.argsort(p)
    expected, floor = [0.0] * 4, 0.0
    for place, index in enumerate(order):
        expected[index] = floor = max(floor, min(1, (4 - place) * p[index]))
    found = [arm.adjusted[name] for arm in (dnas, hnas) for name in PRIMARIES]
    assert found == pytest.approx(expected)
    words = {arm.verdict(name) for arm in (dnas, hnas) for name in PRIMARIES}
    assert words <= {"shown at these rates only", "not shown"}


def test_a_diverged_run_stands_in_the_row_and_its_seed_is_left_out(tmp_path):
    make_ladder(tmp_path, rungs=(1, 2, 3))
    summary = json.loads((tmp_path / "dnas_3_111/summary.json").read_text())
    (tmp_path / "dnas_3_111/summary.json").write_text(json.dumps({**summary, "state": "failed"}))
    with_table(tmp_path / "dnas_3_112", lambda rows: rows.__setitem__("loss_sum", np.nan))
    [arm] = compared(tmp_path).arms
    assert [result.diverged for result in arm.rungs] == ["", "", "diverged: 2 of 5 at rung 3"]
    assert arm.seeds == [110, 113, 114]
    assert "dnas: seeds 111 and 112 left out, because not every rung has scores of both arms." in arm.notes
    assert arm.contrasts["trend"].seeds == arm.rungs[0].difference.seeds == 3
    for folder in tmp_path.glob("dnas_3_*"):
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps({**summary, "state": "failed"}))
    comparison = compared(tmp_path)
    [arm] = comparison.arms
    assert [*arm.contrasts] == ["largest"] and arm.rungs[-1].difference is None
    assert arm.rungs[-1].diverged == "diverged: 5 of 5 at rung 3"
    assert len(ladder_sentences(comparison, arm)) == 1
    assert (
        "dnas: no trend, because 2 rungs and 5 seeds are too few; at least 3 rungs and 3 seeds are needed." in arm.notes
    )
    write_scores(comparison.scores, tmp_path / "scores.csv")  # a table keeps what has diverged
    [again] = compare_ladder(scores_of_tables([tmp_path / "scores.csv"])).arms
    assert [result.diverged for result in again.rungs] == [result.diverged for result in arm.rungs]


def test_a_rung_that_the_baseline_lacks_plays_no_part(tmp_path):
    make_ladder(tmp_path, rungs=(1, 2, 3))
    [before] = compared(tmp_path).arms
    make_ladder(tmp_path, arms=("softmax",), rungs=(4,), seeds=(110, 111))
    [after] = compared(tmp_path).arms
    assert [result.net for result in after.rungs] == [result.net for result in before.rungs]
    assert after.contrasts == before.contrasts


def test_a_first_look_with_two_seeds_has_estimates_but_no_claim(tmp_path):
    make_ladder(tmp_path, rungs=(1, 2, 3), seeds=(110, 111))
    comparison = compared(tmp_path)
    [arm] = comparison.arms
    assert len(arm.compared) == 3 and [*arm.contrasts] == ["largest"]
    assert all(result.net is None and result.difference.estimate < 0 for result in arm.rungs)
    [said] = ladder_sentences(comparison, arm)
    assert said.endswith("no verdict: at least 3 seeds are needed (found 2) (2 seeds, 60 examples in 20 groups).")
    assert "dnas: no trend, because 3 rungs and 2 seeds are too few" in " ".join(arm.notes)


def test_a_rung_beyond_with_two_seeds_is_not_judged(tmp_path):
    make_ladder(tmp_path, rungs=(1, 2, 3))
    make_ladder(tmp_path, rungs=(6,), seeds=(110, 111))
    comparison = compared(tmp_path)
    [arm] = comparison.arms
    assert [result.rung.number for result in arm.rungs] == [1, 2, 3]
    assert ladder_sentences(comparison, arm)[-1] == (
        "Rung 6, beyond the ladder, minus the projection to it (2 seeds): not judged, at least 3 seeds are needed "
        "(found 2)."
    )


def test_other_values_of_a_tuned_ladder_are_not_trained(ladder):
    assert further_values(ladder) == []


@pytest.mark.parametrize(
    ("largest", "trend", "words"),
    [
        (-0.1, -0.2, "towards a larger gain"),
        (-0.1, 0.2, "towards a smaller gain"),
        (0.1, -0.2, "towards a smaller loss"),
        (0.1, 0.2, "towards a larger loss"),
    ],
)
def test_the_trend_is_said_in_words(ladder, largest, trend, words):
    comparison = compared(ladder)
    [arm] = comparison.arms
    estimates = {"largest": largest, "trend": trend}
    found = {name: replace(each, estimate=estimates.get(name, 0.0)) for name, each in arm.contrasts.items()}
    said = ladder_sentences(comparison, replace(arm, contrasts=found))
    assert said[1].startswith(f"Over rungs 1 to 4, the difference changes by {trend:+.4f} per factor of ten")
    assert words in said[1] and f": {largest:+.4f} loss (lower is better)" in said[0]


def test_projections_go_to_any_compute(ladder):
    [arm] = compared(ladder, project=1e15).arms
    slope, at = arm.contrasts["trend"].estimate, arm.contrasts["projection"].estimate
    [other] = compared(ladder, project=1e16).arms
    assert other.contrasts["projection"].estimate - at == pytest.approx(slope)
    assert arm.projected == 1e15


# what is refused


def changed(folder: Path, **more) -> None:
    record = json.loads((folder / "run.json").read_text())
    record["settings"]["run"]["ladder"] |= more
    (folder / "run.json").write_text(json.dumps(record))


def with_table(folder: Path, change) -> None:
    path = Run(folder).predictions_file()
    rows = pd.read_parquet(path)
    change(rows)
    rows.to_parquet(path, index=False)


REFUSED = {
    "no ladder": (
        lambda place: changed(place / "dnas_1_110", rung=None),
        "has not recorded its rung: rung, parameters",
    ),
    "another size": (
        lambda place: changed(place / "dnas_1_110", train_tokens=9.0),
        r"rung 1 is not the same everywhere: tokens is .* in dnas, rung 1, seed 110 .* and .* in",
    ),
    "another input": (
        lambda place: with_table(
            place / "dnas_2_111", lambda rows: rows.__setitem__("input_hash", ["f" * 16, *rows["input_hash"][1:]])
        ),
        "dnas, rung 2, seed 111 .*: example p0 has another input than in",
    ),
    "other tokens": (
        lambda place: with_table(
            place / "dnas_2_111", lambda rows: rows.__setitem__("n_tokens", rows["n_tokens"] + (rows["id"] == "p3"))
        ),
        "dnas, rung 2, seed 111 .*: example p3 has another number of tokens than in",
    ),
    "another group": (
        lambda place: with_table(
            place / "dnas_2_111", lambda rows: rows.__setitem__("group", [*rows["group"][:-1], "another"])
        ),
        "dnas, rung 2, seed 111 .*: example p59 has another group than in",
    ),
    "other examples": (
        lambda place: with_table(place / "dnas_2_111", lambda rows: rows.__setitem__("id", "q" + rows["id"])),
        "no example in common",
    ),
    "two settings": (
        lambda place: make_ladder_run(place / "x", "dnas", 1, 115, settings={"optimizer.lr": 3.0}),
        "dnas has different settings on rung 1: .*; compare one of them",
    ),
    "unequal rungs": (
        lambda place: [
            make_ladder_run(place / f"x{seed}", "hnas", 1, seed, settings={"model.d_model": 50}) for seed in (110, 111)
        ],
        "rung 1 is not the same for all arms: .*model.d_model=48 and hnas with model.d_model=50",
    ),
    "another run": (lambda place: make_run(place / "x", "hnas", 1), "x: belongs to no ladder"),
    "another task": (
        lambda place: make_ladder_run(place / "x", "dnas", 1, 110, settings={"task.name": "mlm"}),
        "runs of different tasks cannot be compared: causal_lm, mlm",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_does_not_fit_is_refused_in_one_sentence(tmp_path, kind):
    make_ladder(tmp_path, rungs=(1, 2), seeds=(110, 111))
    change, message = REFUSED[kind]
    change(tmp_path)
    with pytest.raises(RunError, match=message) as refusal:
        compared(tmp_path)
    assert "\n" not in str(refusal.value)


# tables of scores


@pytest.fixture(scope="module")
def published(ladder, tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("published") / "scores.csv.xz"
    write_scores(scores_of_runs(find_runs([ladder])), file)
    return file


def test_a_table_gives_the_numbers_of_its_runs(ladder, published):
    of_runs, of_table = compared(ladder), compare_ladder(scores_of_tables([published]))
    assert table_of(of_table).csv == table_of(of_runs).csv
    for one, other in zip(of_runs.arms, of_table.arms, strict=True):
        assert ladder_sentences(of_table, other) == ladder_sentences(of_runs, one)


def test_a_stranger_adds_an_arm_without_training_the_baseline(published, tmp_path):
    make_ladder(tmp_path / "runs", arms=("hnas",), rungs=(1, 2, 3))
    mine = tmp_path / "mine.csv"

    def write() -> pd.DataFrame:
        write_scores(scores_of_runs(find_runs([tmp_path / "runs"])), mine)
        rows = pd.read_csv(mine, dtype=str, keep_default_na=False).assign(device="my machine")
        rows.to_csv(mine, index=False)
        return rows

    write()
    hnas = {arm.label: arm for arm in compare_ladder(scores_of_tables([published, mine])).arms}["hnas"]
    assert "trend" in hnas.contrasts and len(hnas.compared) == 3
    assert all(result.multiplier is not None and result.net is None for result in hnas.rungs)
    assert any("no net multiplier on rungs 1 to 3" in note for note in hnas.notes)
    make_ladder_run(tmp_path / "runs/softmax", "softmax", 1, 110)
    rows = write()
    is_mine = rows["arm"] == "softmax"
    rows.loc[is_mine, "loss_sum"] = "1000"  # published scores exist: only the seconds count
    rows.to_csv(mine, index=False)
    comparison = compare_ladder(scores_of_tables([published, mine]))
    again = {arm.label: arm for arm in comparison.arms}["hnas"]
    assert again.contrasts["trend"] == hnas.contrasts["trend"]
    seconds = np.median([1 / (0.5e6 / 48 + seed) for seed in DEFAULT_SEEDS]) * (1e6 / 48 + 110)
    assert [result.seconds_ratio for result in again.rungs] == pytest.approx([seconds] * 3, rel=0.01)
    assert "hnas: the ratio of seconds on rungs 2 and 3 is that of rung 1." in again.notes
    assert any("only the seconds count" in note for note in comparison.scores.notes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.drop(columns="flops"), "no column flops; a table of a ladder has arm, seed, rung"),
        (lambda rows: rows.assign(rung="one"), "mine.csv:2: rung='one': expected a whole number above 0"),
        (
            lambda rows: rows.assign(flops=["-1", *rows["flops"][1:]]),
            "mine.csv:2: flops=.-1.: expected a",
        ),
        (lambda rows: rows.assign(loss_sum=["", *rows["loss_sum"][1:]]), "mine.csv:2: loss_sum='': expected a finite"),
        (lambda rows: rows.assign(arm=[*rows["arm"][:-1], ""]), "arm='': expected a value"),
        (lambda rows: rows.assign(beyond="maybe"), "mine.csv:2: beyond='maybe': expected 0 or 1"),
        (lambda rows: pd.concat([rows, rows.tail(1)]), "dnas, rung 1, seed 110: example p59 has a second row"),
        (lambda rows: rows.assign(device=["other", *rows["device"][1:]]), "seed 110: the rows differ in device"),
    ],
)
def test_a_wrong_table_is_refused_with_its_line(tmp_path, change, message):
    make_ladder(tmp_path / "runs", arms=("dnas",), rungs=(1,), seeds=(110,))
    file = tmp_path / "mine.csv"
    write_scores(scores_of_runs(find_runs([tmp_path / "runs"])), file)
    change(pd.read_csv(file, dtype=str, keep_default_na=False)).to_csv(file, index=False)
    with pytest.raises(DataError, match=message):
        scores_of_tables([file])


def test_tables_of_other_rungs_do_not_fit(published, tmp_path):
    make_ladder(tmp_path / "runs", arms=("hnas",), rungs=(1,), seeds=(110,), parameters=7)
    write_scores(scores_of_runs(find_runs([tmp_path / "runs"])), tmp_path / "mine.csv")
    with pytest.raises(
        RunError, match=r"rung 1 is not the same everywhere: parameters is 115,200 in .* and 7 in .*mine"
    ):
        scores_of_tables([published, tmp_path / "mine.csv"])


# the command


def test_the_command_prints_and_writes_a_ladder(ladder, published, tmp_path, capsys):
    made = [tmp_path / f"of.{ending}" for ending in ("json", "csv", "tex", "md")]
    run_compare([f"against={ladder}", f"out=[{','.join(map(str, made))}]", f"scores_out={tmp_path / 'all.csv'}"])
    printed = capsys.readouterr().out
    record = json.loads(made[0].read_text())
    [arm] = record["arms"]
    assert [line for line in arm["sentences"] if line not in " ".join(printed.split())] == []
    assert [rung["rung"] for rung in arm["rungs"]] == [1, 2, 3, 4]
    assert {*arm["rungs"][0]} == {
        *("rung", "parameters", "tokens", "flops", "seconds_ratio", "difference", "low", "high"),
        *("multiplier", "net_multiplier"),
    }
    for name in ("largest", "trend"):
        assert {*arm[name]} == {"difference", "low", "high", "p", "verdict"}
    assert {"difference", "low", "high"} <= {*arm["projection"]} & {*arm["deviation"]} & {*arm["held"]}
    assert len(pd.read_csv(made[1])) == 4
    assert r"\toprule" in made[2].read_text() and "| dnas | 4 |" in made[3].read_text()
    run_compare([f"scores={tmp_path / 'all.csv'}"])
    assert arm["sentences"][1] in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["plan=0.1"], "plan"),
        (["metric=rougeL"], "metric"),
        (["baseline=[a,b]"], "baseline"),
        (["baseline=nosuch"], "baseline"),
        (["project=-1"], "project"),
        (["scores_out=mine.parquet"], "scores_out"),
    ],
)
def test_keys_that_do_not_go_with_a_ladder_are_refused(ladder, tmp_path, arguments, key, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refusal:
        run_compare([f"against={ladder}", "out=made.csv", *arguments])
    assert [problem.key for problem in refusal.value.problems] == [key]
    assert not list(tmp_path.iterdir())


def test_keys_of_a_ladder_are_refused_elsewhere(tmp_path):
    make_run(tmp_path / "a", "softmax", 1)
    with pytest.raises(ConfigError, match="has no effect on anything but a ladder"):
        run_compare([f"against={tmp_path}", "project=1e15"])


def test_one_arm_alone_gives_a_table_for_others(tmp_path, capsys):
    make_ladder(tmp_path / "runs", arms=("hnas",), rungs=(1,), seeds=(110,))
    with pytest.raises(ConfigError, match="there is nothing to compare with the baseline, hnas"):
        run_compare([f"against={tmp_path / 'runs'}"])
    run_compare([f"against={tmp_path / 'runs'}", f"scores_out={tmp_path / 'mine.csv.gz'}"])
    assert "written to" in capsys.readouterr().out
    assert pd.read_csv(tmp_path / "mine.csv.gz")["arm"].unique() == ["hnas"]


# the report


@pytest.mark.slow
def test_the_report_has_a_ladder_beside_other_runs(ladder, tmp_path):
    make_runs(tmp_path, {"softmax": 0, "dnas": 3}, examples=40)
    report = collect([ladder, tmp_path])
    assert [task.name for task in report.tasks] == ["gigaword"]
    [page], html = report.ladders, html_of(report)
    comparison = compared(ladder)
    shown = Page(html)
    for line in ladder_sentences(comparison, comparison.arms[0]):
        assert line in shown.text
    assert ["softmax", "6"] in [row[:2] for row in shown.rows]  # the values of the figures
    ids = [attributes["id"] for _, attributes in shown.elements if "id" in attributes]
    assert len(ids) == len({*ids})
    svgs = [chart.svgs() for chart in page.charts]
    assert [[*each] for each in svgs] == [["only-wide", "only-narrow"]] * 3
    assert all("var(--c1)" in svg and "#0072b2" not in svg for each in svgs for svg in each.values())
    names = ("loss_against_compute", "difference_from_softmax_in_loss_against_compute", "loss_against_seconds")
    assert {*names} < {*figures_of_report(report)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda place: shutil.rmtree(place / "dnas_1_110"), "There is nothing to compare with softmax, the only arm"),
        (
            lambda place: changed(place / "dnas_1_110", rung=None),
            "The ladder is not compared: .* has not recorded its rung",
        ),
    ],
)
def test_the_report_says_why_a_ladder_is_not_compared(tmp_path, change, words):
    make_ladder(tmp_path, rungs=(1,), seeds=(110,))
    change(tmp_path)
    [page] = collect([tmp_path]).ladders
    assert re.match(words, page.refused) and page.sentences == []


def test_a_ladder_is_compared_when_all_its_runs_have_ended(tmp_path):
    make_ladder(tmp_path, rungs=(1,), seeds=(110,))
    waiting = r"not finished yet: 1 planned run .*dnas_1_110"
    with folder_lock(tmp_path / "dnas_1_110"):
        with pytest.raises(RunError, match=waiting):
            run_compare([f"against={tmp_path}"])
        [page] = collect([tmp_path]).ladders
    assert page.refused == "No verdict yet: 1 planned run is not finished." and page.sentences == []
