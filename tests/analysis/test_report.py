"""What the report says: the numbers against independent computations, and what it keeps silent about."""

import json
import re
import sys

import numpy as np
import pandas as pd
import pytest
import runs
from made_up_runs import LAYERS, make_run, make_runs, values_of, without_charts

from attnorm.analysis.colours import styles_of_arms
from attnorm.analysis.comparison import Terms
from attnorm.analysis.report.charts import curves
from attnorm.analysis.report.content import collect
from attnorm.analysis.report.curves import POINTS, Point, aggregated, difference_curves
from attnorm.analysis.report.examples import marked
from attnorm.analysis.report.page import html_of
from attnorm.analysis.statistics.crossed import paired_difference
from attnorm.analysis.study import study_of
from attnorm.analysis.study_files import write_study
from attnorm.analysis.table import NOTHING
from attnorm.run.folder import FolderLock

HALVES = [  # two seeds of two arms; a third seed of one of them
    {"series": series, "run": seed - 1, "seed": seed, "step": 1, "value": value}
    for series, seed, value in (("a", 1, 1.0), ("a", 2, 2.0), ("b", 1, 1.25), ("b", 2, 2.75), ("b", 3, 9.0))
]
SMALL = {"examples": 80, "steps": 600}


@pytest.fixture(scope="module")
def nine(tmp_path_factory):
    """Three arms with three seeds; hnas is better by far."""
    place = tmp_path_factory.mktemp("nine")
    make_runs(place, {"softmax": 0, "dnas": 0.2, "hnas": 9}, **SMALL)
    return place


def task_of(report):
    [task] = report.tasks
    return task


@pytest.fixture(scope="module")
def of_nine(nine):
    return task_of(collect([nine]))


@pytest.fixture
def uncharted(monkeypatch):
    without_charts(monkeypatch)


def cells(table, row):
    """The cells of a row by the name of their column."""
    [found] = [its for its in table.rows if its[0].text == row]
    return {column.name: cell for column, cell in zip(table.columns, found, strict=True)}


def scores_of(place, arm, metric="rougeL"):
    """The scores (seeds, examples) of an arm on the half that did not select the checkpoint."""
    tables = [pd.read_parquet(place / f"{arm}_{seed}" / "predictions" / "validation.parquet") for seed in (1, 2, 3)]
    return np.stack([table.loc[~table["selecting"], metric].to_numpy() for table in tables])


def test_scores_differences_speed_and_memory_are_those_of_the_runs(nine, of_nine):
    for arm in ("softmax", "hnas"):
        row, scores = cells(of_nine.main, arm), scores_of(nine, arm)
        assert row["ROUGE-L F1 ↑"].value == pytest.approx(scores.mean(), abs=1e-9)
        assert row["s.d."].value == pytest.approx(scores.mean(1).std(ddof=1), abs=1e-9)
        assert row["seeds"].value == 3
        summaries = [json.loads((nine / f"{arm}_{seed}" / "summary.json").read_text()) for seed in (1, 2, 3)]
        assert row["tokens/s"].value == pytest.approx(np.mean([it["tokens_per_second"] for it in summaries]))
        assert row["memory (MB)"].value == pytest.approx(np.mean([it["peak_memory"]["process_mb"] for it in summaries]))
        assert row["hours per run"].value == pytest.approx(np.mean([it["wall_seconds"] for it in summaries]) / 3600)
    found = paired_difference(scores_of(nine, "hnas") - scores_of(nine, "softmax"))
    assert row["difference"].value == pytest.approx(found.estimate, abs=1e-9)
    low, high = found.new_seeds_and_examples.low, found.new_seeds_and_examples.high
    assert row["95 % interval"].text == f"{low:.2f} to {high:.2f}".replace("-", "−")
    assert cells(of_nine.main, "softmax")["verdict"].text == "baseline"
    names = [column.name for column in of_nine.main.columns]
    assert names[:4] == ["arm", "verdict", "difference", "95 % interval"]  # what a phone shows without scrolling
    assert all(len(its) == len(names) for its in of_nine.main.rows)


def test_the_price_of_a_gain_stands_beside_its_verdict(nine, of_nine, tmp_path, uncharted):
    speeds, seconds = {}, {}
    for arm in ("softmax", "hnas", "dnas"):
        summaries = [json.loads((nine / f"{arm}_{seed}" / "summary.json").read_text()) for seed in (1, 2, 3)]
        speeds[arm] = np.median([it["tokens_per_second"] for it in summaries])
        seconds[arm] = summaries[0]["seconds_per_update"]
    ratio = speeds["hnas"] / speeds["softmax"]
    assert 0 < ratio < 0.7 and cells(of_nine.main, "hnas")["speed"].value == pytest.approx(ratio)
    assert cells(of_nine.main, "softmax")["speed"].text == ""
    assert f"Speed: {ratio:.2f} times the tokens/s of softmax." in of_nine.verdicts[1].sentence()
    write_study(study_of(nine, None, None, Terms()), tmp_path / "a.json")
    arms = {it["label"]: it["verdict"] for it in json.loads((tmp_path / "a.json").read_text())["arms"]}
    assert arms["hnas"]["speed"] == pytest.approx(ratio) and arms["softmax"] is None
    by_update, by_second = (
        values_of(next(it for it in of_nine.drawings.curves if it.title == f"validation loss (nats){along}"))
        for along in ("", " against seconds of training")
    )
    steps = [it["update"] * seconds[it["arm"]] for it in by_update]
    assert [it["seconds of training"] for it in by_second] == pytest.approx(steps, rel=1e-3)
    assert [it["mean"] for it in by_second] == [it["mean"] for it in by_update]


@pytest.mark.parametrize("differ", ["summary", "run"])
def test_speeds_that_are_unknown_or_of_different_machines_are_not_compared(tmp_path, uncharted, differ):
    make_runs(tmp_path, {"softmax": 0, "hnas": 5}, **SMALL)
    path = tmp_path / f"hnas_2/{differ}.json"
    changed = {"summary": {"tokens_per_second": None, "seconds_per_update": None}, "run": {"gpus": ["A100"]}}
    path.write_text(json.dumps(json.loads(path.read_text()) | changed[differ]))
    page = task_of(collect([tmp_path]))
    assert page.verdicts[0].speed is None and "tokens/s" not in page.verdicts[0].sentence()
    assert cells(page.main, "hnas")["speed"].text == NOTHING
    assert not any("seconds" in it.title for it in page.drawings.curves)


def test_the_verdict_is_in_words_and_comes_with_the_weaker_claim(of_nine):
    dnas, hnas = of_nine.verdicts
    assert hnas.is_shown and ": shown, adjusted p" in hnas.sentence() and dnas.word == "not shown"
    assert hnas.claim_for_this_test_set().startswith("For new seeds on these examples only")
    assert of_nine.headline.startswith("1 of 2 arms differs from softmax in ROUGE-L F1: hnas")
    assert [row["verdict"] for row in values_of(of_nine.forest)] == ["not shown", "shown"]


def test_p_values_are_adjusted_over_all_tasks(tmp_path, uncharted):
    make_runs(tmp_path / "a", {"softmax": 0, "hnas": 5}, **SMALL)
    alone = task_of(collect([tmp_path])).main
    make_runs(tmp_path / "b", {"softmax": 0, "dnas": 0.1}, task="classify", **SMALL)
    together = {task.name: task.main for task in collect([tmp_path]).tasks}
    p, q = (cells(alone, "hnas")["adjusted p"].value, cells(together["classify"], "dnas")["adjusted p"].value)
    both = cells(together["gigaword"], "hnas")["adjusted p"].value
    unadjusted = paired_difference(
        np.stack([*scores_of(tmp_path / "b", "dnas")]) - np.stack([*scores_of(tmp_path / "b", "softmax")])
    ).p_value
    assert p < unadjusted  # so that the first of the two is multiplied by two, and the second by one
    assert both == pytest.approx(min(1, 2 * p)) and q == pytest.approx(max(both, unadjusted))


@pytest.mark.slow
def test_recorded_measures_are_drawn_by_layer(tmp_path):
    make_run(tmp_path / "softmax", steps=300, measures=True)
    make_run(tmp_path / "dnas", "dnas", steps=300, measures=True)
    make_run(tmp_path / "without", "hnas", steps=300)
    [task] = collect([tmp_path]).tasks
    charts = {chart.title: values_of(chart) for chart in task.drawings.measures}
    entropies = charts["entropy / log n"]
    assert {row["layer"] for row in entropies} == set(LAYERS)
    assert all((row["mean"], row["smallest"], row["largest"]) == (0.55, 0.5, 0.6) for row in entropies)
    above = charts["objective above its minimum, rows constrained (nats)"]
    assert {(row["arm"], row["mean"]) for row in above} == {("softmax", 0), ("dnas", 0.25)}
    likelihoods = charts["log-likelihood of the keys (nats)"]  # only where it is defined
    assert {row["layer"] for row in likelihoods} == {"encoder/0", "encoder/1"}
    cosines = [charts[f"mean cosine of two states, {place}"] for place in ("output", "residual")]
    assert [{row["mean"] for row in rows} for rows in cosines] == [{0.25}, {0.75}]
    assert not any("largest activation" in title for title in charts)  # a column that is not there


@pytest.mark.parametrize(("value", "domain"), [(0.75, [0.375, 1.125]), (-4.0, [-6.0, -2.0]), (0.0, [0.0, 1.0])])
def test_a_constant_has_room_on_its_axis(value, domain):
    points = [Point("softmax", step, value, value, value, 3) for step in (0, 100)]
    figure = curves("one", "a title", points, styles_of_arms(["softmax"]))
    assert figure.figure().axes[0].get_ylim() == pytest.approx(domain)


def test_curves_of_differences_are_paired_by_seed(nine, of_nine):
    def curve(arm, seed, name):
        table = pd.read_csv(nine / f"{arm}_{seed}" / "metrics.csv").set_index("step")
        return table[name].dropna()

    charts = {figure.title: figure for figure in of_nine.drawings.differences}
    for title, name in (("training loss (nats)", "train/loss"), ("validation ROUGE-L F1", "val/rougeL")):
        figure = charts[f"{title}, difference from softmax"]
        by_seed = pd.concat([curve("hnas", it, name) - curve("softmax", it, name) for it in (1, 2, 3)], axis=1)
        rows = pd.DataFrame([row for row in values_of(figure) if row["arm"] == "hnas"]).set_index("update")
        expected = {"mean": by_seed.mean(axis=1), "smallest": by_seed.min(axis=1), "largest": by_seed.max(axis=1)}
        for column, values in expected.items():
            np.testing.assert_allclose(rows[column], values, rtol=1e-3)
        assert [text.get_text() for text in figure.figure().legends[0].get_texts()] == ["dnas", "hnas"]
    assert not any("gradient" in title for title in charts)


def test_arms_with_equal_curves_have_no_curve_of_differences():
    rows = {"val/loss": pd.DataFrame(HALVES)}
    [point] = difference_curves(rows, "a", ["b"])["val/loss"]
    assert (point.series, point.step, point.mean, point.low, point.high, point.size) == ("b", 1, 0.5, 0.25, 0.75, 2)
    equal = {"val/loss": rows["val/loss"].assign(value=3.0)}
    assert difference_curves(equal, "a", ["b"]) == {"val/loss": []}
    assert difference_curves(rows, "a", []) == {"val/loss": []}


@pytest.mark.slow
def test_more_than_the_attention_differs(monkeypatch, tmp_path, capsys, of_nine, uncharted):
    assert of_nine.warnings == []
    make_runs(tmp_path, {"softmax": 0, "hnas+lr=0.01": 1}, **SMALL)
    task = task_of(collect([tmp_path]))
    assert task.confounds == ["optimizer.lr"]
    [warning] = task.warnings
    assert "optimizer.lr" in warning and "cannot be attributed to the normalizer" in warning
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in task.differing.rows}
    assert rows["optimizer.lr"] == ["0.001", "0.01"] and rows["attention.encoder"] == ["softmax", "hnas"]
    assert "attention.options.hnas.start" in rows and "attention.options" not in rows  # {} for softmax says no more
    assert ("d_model", "128") in task.equal["model"]
    assert runs.call(monkeypatch, "compare", f"against={tmp_path}") == 0
    assert "in more than their attention: optimizer.lr." in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_runs_that_did_not_finish_are_listed_with_the_reason(tmp_path, nine, uncharted):
    make_run(tmp_path / "failed", "hnas", 4, state="failed", why="OutOfMemoryError: no memory left", **SMALL)
    make_run(tmp_path / "stopped", "hnas", 5, state="interrupted", why="Interrupted: stopped by SIGTERM", **SMALL)
    killed = make_run(tmp_path / "killed", "hnas", 6, state=None, **SMALL)
    (killed / "console.log").write_text("step 12\nBus error\n")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "run.json").write_text("!!python/object:os.system {}")
    report = collect([nine, tmp_path])
    found = {it.name: (it.state, it.why) for it in report.troubles}
    assert found["hnas, seed 4"] == ("failed", "OutOfMemoryError: no memory left")
    assert found["hnas, seed 5"] == ("interrupted", "Interrupted: stopped by SIGTERM")
    assert found["hnas, seed 6"][0] == "killed" and found["hnas, seed 6"][1].endswith("Bus error")
    assert found[str(tmp_path / "odd")][0] == "unreadable"
    assert len(found) == 4
    assert cells(report.tasks[0].main, "hnas")["seeds"].value == 3
    assert any("hnas, seed 4" in note for note in report.tasks[0].notes)


@pytest.mark.slow
def test_there_is_no_verdict_while_a_run_trains(tmp_path):
    make_runs(tmp_path, {"softmax": 0, "hnas": 9}, **SMALL)
    last = make_run(tmp_path / "late", "hnas", 4, state=None, **SMALL)
    lock = FolderLock(last)
    assert lock.acquire()
    try:
        report = collect([tmp_path])
    finally:
        lock.release()
    task = task_of(report)
    assert task.headline.startswith("No verdict yet")
    assert [it.word for it in task.verdicts] == ["no verdict"] and "no verdict" in task.verdicts[0].sentence()
    row = cells(task.main, "hnas")
    assert (row["difference"].text, row["95 % interval"].text, row["adjusted p"].text) == ("–", "–", "–")
    assert task.forest is None and task.contrasts == [] and task.drawings.differences == []
    assert not any("interval" in column.name for column in task.others.columns)
    assert report.overview == [("runs finished", "6 of 7")] and report.troubles == []
    assert task_of(collect([tmp_path])).verdicts[0].is_shown


@pytest.mark.slow
def test_arms_that_have_not_learned_the_task_get_a_box_and_no_verdict(tmp_path):
    make_runs(tmp_path, {"softmax": 0, "hnas": 9}, lead=70.0, **SMALL)
    report = collect([tmp_path])
    task = task_of(report)
    assert "no arm beats the simple baseline lead-8" in task.withheld[0] and task.headline.startswith("No verdict")
    assert task.verdicts == [] and task.forest is None and task.contrasts == []
    row = cells(task.main, "hnas")
    assert (row["difference"].text, row["95 % interval"].text, row["verdict"].text) == ("–", "–", "no verdict")
    [label] = [its[0].text for its in task.main.rows if its[0].text.startswith("lead-8")]
    simple = cells(task.main, label)
    assert simple["ROUGE-L F1 ↑"].value == 70.0
    assert all(cell.text == "" for name, cell in simple.items() if name not in ("arm", "ROUGE-L F1 ↑"))
    assert task.drawings.differences == []
    assert "no arm beats the simple baseline lead-8" in html_of(report)


def test_without_scores_of_examples_the_recorded_metrics_are_shown_or_another_metric(tmp_path, uncharted):
    folder = make_run(tmp_path / "a", **SMALL)
    (folder / "predictions" / "validation.parquet").unlink()
    task = task_of(collect([folder]))
    recorded = json.loads((folder / "summary.json").read_text())["validation"]["metrics"]
    assert cells(task.main, "softmax")["ROUGE-L F1 ↑"].value == pytest.approx(recorded["rougeL"])
    assert task.verdicts == [] and task.forest is None
    task = task_of(collect([make_run(tmp_path / "b", summary={"primary": "bleu"}, **SMALL)]))
    assert task.main.columns[6].name == "ROUGE-1 F1 ↑" and "exploratory" in task.warnings[0]


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "reason"), [((1, 2, 3), "sinkhorn_2.*cannot be read"), ((9,), "no seed in common")])
def test_an_arm_that_cannot_be_compared_is_left_out_with_the_reason(tmp_path, nine, uncharted, seeds, reason):
    for folder in make_runs(tmp_path, {"sinkhorn": 1}, seeds, **SMALL):
        if folder.name == "sinkhorn_2":
            (folder / "predictions" / "validation.parquet").write_bytes(b"PAR1 and no more")
    task = task_of(collect([nine, tmp_path]))
    assert [it.label for it in task.verdicts] == ["dnas", "hnas"]
    [note] = [note for note in task.notes if note.startswith("sinkhorn is not compared: ")]
    assert re.search(reason, note) and cells(task.main, "sinkhorn")["difference"].text == "–"


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["nan", "huge", "absent"])
def test_a_further_metric_that_fails_leaves_the_verdicts(tmp_path, uncharted, broken):
    make_runs(tmp_path, {"softmax": 0.0, "dnas": 9.0})
    path = tmp_path / "dnas_2/predictions/validation.parquet"
    rows = pd.read_parquet(path)
    rows = rows.drop(columns="rouge1") if broken == "absent" else rows
    if broken != "absent":
        rows["loss_sum"] = np.nan if broken == "nan" else 1e5 * rows["n_tokens"]
    rows.to_parquet(path, index=False)
    [page] = collect([tmp_path]).tasks
    assert [verdict.word for verdict in page.verdicts] == ["shown"]
    left_out = " ".join(page.notes)
    assert ("dnas, seed 2" in left_out) is (broken != "absent")
    assert ("loss is not compared" in left_out) is (broken == "nan")
    assert ("perplexity is not compared" in left_out) is (broken != "absent")


def test_arms_without_a_finished_run_are_of_the_family(tmp_path, uncharted):
    softmax = make_runs(tmp_path, {"softmax": 0.0})
    assert task_of(collect([tmp_path])).headline.startswith("softmax is the only arm, ")
    make_runs(tmp_path, {"hnas": 0.0}, state="failed")
    assert task_of(collect([tmp_path])).headline.startswith("softmax is the only arm that can be compared, ")
    dnas = make_runs(tmp_path, {"dnas": 1.0})
    [alone], [verdict] = (task_of(collect(places)).verdicts for places in ([*softmax, *dnas], [tmp_path]))
    assert verdict.family == 2 and verdict.adjusted == pytest.approx(min(1, 2 * alone.adjusted))
    assert "hnas is not compared: no run has finished." in task_of(collect([tmp_path])).notes


def test_the_page_shows_in_which_direction_a_metric_of_the_task_is_better(tmp_path, uncharted):
    make_runs(tmp_path, {"softmax": 0.0, "dnas": 9.0}, summary={"directions": {"rougeL": "min"}})
    [page] = collect([tmp_path]).tasks
    [column] = [column for column in page.main.columns if column.name.startswith("ROUGE-L")]
    assert column.name.endswith("\u2193") and "lower is better" in column.hint
    others = {row[0].text for row in page.others.rows}
    assert any(name.endswith("ROUGE-1 F1 \u2191") for name in others) and "loss \u2193" in others


def test_a_single_run_is_enough_for_a_page_and_nothing_that_it_names_is_imported(tmp_path, monkeypatch):
    (tmp_path / "stranger.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    named = {"model._target_": "stranger.Model", "task._target_": "stranger.Task", "attention.decoder": "stranger:Own"}
    task = task_of(collect([make_run(tmp_path / "run", "hnas", settings=named, **SMALL)]))
    assert task.differing is None and task.main.rows[0][0].text == "hnas"
    assert task.drawings.scalars and task.drawings.attention and "stranger" not in sys.modules


@pytest.mark.slow
def test_another_metric_is_exploratory(nine, uncharted):
    task = task_of(collect([nine], metric="loss", baseline="dnas"))
    assert "exploratory" in task.warnings[0]
    assert task.main.rows[0][0].text == "dnas" and task.main.columns[6].name == "loss ↓"
    assert {it.label for it in task.verdicts} == {"softmax", "hnas"}


def test_long_curves_are_thinned_without_losing_their_course():
    steps = np.arange(1, 20_001)
    rows = pd.concat(
        pd.DataFrame({"series": "a", "run": run, "step": steps, "value": steps / 20_000 + run}) for run in range(2)
    )
    points = aggregated(rows)
    assert len(points) == POINTS
    assert points[-1].step == 20_000
    for point in points:  # the mean over an interval that ends at the step
        assert point.mean == pytest.approx(point.step / 20_000 + 0.5, abs=1.2 / POINTS)
        assert point.high - point.low == pytest.approx(1, abs=2e-3)


def test_damaged_curves_do_not_keep_the_page_from_being_written(tmp_path):
    folder = make_run(tmp_path / "a", "hnas", **SMALL)
    (folder / "metrics.csv").write_bytes(b"step,val/loss\n1,2.5\n2,nan\nx,3\n3,inf\n4,1.5,7,8\n5\n6,2.0\xff")
    (folder / "attention.csv").write_bytes(b"\x00\x01 not a table")
    (folder / "hybrid_weights.csv").write_text(
        "step,layer,head,value,lr_factor\n1,encoder/0,,high,10\n2,encoder/0,,0.5"
    )
    drawings = task_of(collect([folder])).drawings
    assert [row["mean"] for row in values_of(drawings.curves[0])] == [2.5, 1.5]
    assert drawings.attention == [] and [row["mean"] for row in values_of(drawings.scalars[0])] == [0.5]


@pytest.mark.parametrize(
    ("text", "other"), [("a b c d", "a d"), ("", "a"), ("a b", ""), ("b a b a", "a b a b c"), ("x y", "x y")]
)
def test_marks_differ_and_the_rest_is_common(text, other):
    pieces = marked(text, other)
    assert " ".join(words for words, _ in pieces) == text
    common = [word for words, differs in pieces if not differs for word in words.split()]
    rest = iter(other.split())
    assert all(word in rest for word in common)  # a subsequence
    words = iter(other.split())
    assert any(differs for _, differs in pieces) == (not all(word in words for word in text.split()))


def test_examples_are_those_that_differ_most_and_samples_of_every_arm(nine, of_nine):
    contrast = next(it for it in of_nine.contrasts if it.label == "hnas")
    gaps = scores_of(nine, "hnas").mean(0) - scores_of(nine, "softmax").mean(0)
    table = pd.read_parquet(nine / "softmax_1" / "predictions" / "validation.parquet")
    ids = list(table.loc[~table["selecting"], "id"])
    assert [it.name for it in contrast.better] == [ids[place] for place in np.argsort(-gaps)[:4]]
    shown = [float(it.difference.replace("−", "-")) for it in contrast.better]
    assert shown == pytest.approx(sorted(gaps, reverse=True)[:4], abs=0.006)
    assert all(it.difference.startswith("−") for it in contrast.worse)
    assert [[it.label for it in example.outputs] for example in contrast.better] == [["softmax", "hnas"]] * 4
    assert len(of_nine.samples) == 4 and len({it.name for it in of_nine.samples}) == 4
    table = pd.read_parquet(nine / "dnas_1" / "predictions" / "validation.parquet").set_index("id")
    for example in of_nine.samples:
        assert [it.label for it in example.outputs] == ["softmax", "dnas", "hnas"]
        row = table.loc[example.name]
        assert " ".join(words for words, _ in example.outputs[1].words) == row["output"]
        assert example.reference == row["reference"]
