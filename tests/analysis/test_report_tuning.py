"""What the report says about tuning, from made-up runs of a sweep."""

import json
import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import runs
from made_up_runs import make_run, values_of, without_charts, write_state
from marks import slow

from attnorm.analysis import compare
from attnorm.analysis.arms import arms_of, find_runs
from attnorm.analysis.report.content import collect
from attnorm.analysis.report.page import html_of
from attnorm.analysis.statistics.tuned import DISMISSAL
from attnorm.analysis.study import further_values
from attnorm.analysis.tuning_record import tunings_of
from attnorm.cli.compare import run_compare
from attnorm.cli.sweep import values_to_try
from attnorm.sweeps.job_record import recorded

RATES = ("0.001", "0.002", "0.004")


def tuned_sweep(folder, gains, scores, metric="rougeL", further=None):
    """A sweep of softmax and hnas with the seeds 110 to 113.

    gains: of the comparison, by arm. scores: of the tuning, by arm and rate: two seeds each, None for a failed run.
    further: the gain of softmax at other rates, or the state of its runs there; by default, it is worse.
    """
    further, seeds = {"0.001": -2, "0.004": -2} if further is None else further, (110, 111, 112, 113)
    jobs, arms = [], []
    for arm, gain in gains.items():
        entry = {"arm": f"attention={arm}", "monitor": "val/loss", "mode": "min", "best": "0.002", "means": {}}
        entry |= {"tune": {rate: [] for rate in RATES}, "compare": [f"{arm}_{seed}" for seed in seeds], "further": {}}
        common = {"arm": f"attention={arm}", "steps": 3000, "seconds": 60.0, "metric": metric}
        for rate in RATES:
            means = scores[arm][rate]
            entry["means"][rate] = None if None in means else 5 - sum(means) / 20
            for seed, score in zip((100, 101), means, strict=True):
                name, state = f"{arm}_{rate}_{seed}", "failed" if score is None else "finished"
                entry["tune"][rate].append(name)
                value = None if score is None else 5 - score / 10
                job = {"name": name, "purpose": "tune", "state": state, "score": score, "best_value": value}
                jobs.append({**common, **job})
                (folder / "tune" / name).mkdir(parents=True)
                summary = {"state": state, "validation": {"metrics": {"rougeL": score}}}
                (folder / "tune" / name / "summary.json").write_text(json.dumps(summary))
                (folder / "tune" / name / "run.json").write_text("{}")
        for seed, name in zip(seeds, entry["compare"], strict=True):
            settings = {"optimizer.lr": 0.002 if arm == "softmax" else 0.004, "trainer.max_steps": 3000}
            make_run(folder / name, arm, seed, gain=gain, examples=60, settings=settings)
            job = {"name": name, "purpose": "compare", "state": "finished", "score": 1, "best_value": 2}
            jobs.append({**common, **job})
        for rate, gain in further.items() if arm == "softmax" else ():
            entry["further"][rate] = [f"{arm}_{rate}_{seed}" for seed in seeds]
            for seed, name in zip(seeds, entry["further"][rate], strict=True):
                its = {"gain": gain} if isinstance(gain, (int, float)) else {"state": gain}
                make_run(folder / "tune" / name, arm, seed, examples=60, settings={"optimizer.lr": float(rate)}, **its)
        arms.append(entry)
    tuning = {"key": "optimizer.lr", "values": RATES, "added": ["0.004"], "seeds": ["100", "101"]}
    content = {"jobs": jobs, "tuning": {**tuning, "notes": ["At the edge."], "arms": arms}}
    write_state(folder, content)
    return folder


def at(*pairs):
    return dict(zip(RATES, pairs, strict=True))


SOFTMAX = at((20, 20.2), (21, 21.2), (20, 20.2))
BETTER = at((24, 24.3), (25, 25.1), (24, 24.5))


@pytest.fixture(scope="module")
def better(tmp_path_factory):
    """A sweep in which hnas is better at every rate."""
    return tuned_sweep(
        tmp_path_factory.mktemp("better"), {"softmax": 0, "hnas": 9}, {"softmax": SOFTMAX, "hnas": BETTER}
    )


@pytest.fixture(scope="module")
def report(better):
    return collect([better])


def sweep_copied(folder, better, **content):
    """A copy of the sweep with another state."""
    shutil.copytree(better, folder)
    write_state(folder, {**recorded(better), **content})
    return folder


def test_what_the_sweep_chose_stands_beside_the_verdict(better, report, monkeypatch, capsys):
    [page] = report.tasks
    tuned, *_ = page.notes
    assert tuned == "Each arm has its best optimizer.lr: softmax 0.002, hnas 0.002."
    monkeypatch.setitem(sys.modules, "jinja2", None)  # the library of pages is not needed
    assert runs.call(monkeypatch, "compare", f"against={better}", "baseline=softmax") == 0
    said = " ".join("".join(capsys.readouterr()).split())
    assert tuned in said


CLOSE = at((20.8, 20.4), (21, 21.2), (20.9, 20.5))
RULED_OUT = at((2, 2.2), (21, 21.2), (20.9, 20.5))
EVERY, NO_RUNS = "It holds at every optimizer.lr of softmax: ", "has no runs with these seeds; repeat the command"


@pytest.mark.parametrize(
    ("softmax", "further", "word", "said"),
    [
        (CLOSE, {"0.001": -1, "0.004": -2}, "shown", f"{EVERY}also at 0.001, 0.004."),
        slow(RULED_OUT, {"0.004": -2}, "shown", f"{EVERY}also at 0.004; tuning shows 0.001 to be worse."),
        slow(at((None, 9), (21, 21.2), (1, 1)), {}, "shown", "need no comparison; tuning shows 0.004 to be worse and"),
        slow(CLOSE, {"0.001": "failed", "0.004": -2}, "shown", f"{EVERY}also at 0.004; runs failed at 0.001."),
        (CLOSE, {"0.001": -1, "0.004": 9}, "only", "softmax at optimizer.lr=0.004 is not shown to be worse"),
        slow(CLOSE, {"0.004": -2}, "only", f"softmax at optimizer.lr=0.001 {NO_RUNS}"),
        slow(CLOSE, {"0.001": "interrupted", "0.004": -2}, "only", f"softmax at optimizer.lr=0.001 {NO_RUNS}"),
        (CLOSE, {}, "only", f"softmax at optimizer.lr=0.001, 0.004 {NO_RUNS}"),
    ],
)
def test_a_difference_is_shown_only_if_it_holds_at_every_value_of_the_worse_arm(tmp_path, softmax, further, word, said):
    scores = {"softmax": softmax, "hnas": BETTER}
    folder = tuned_sweep(tmp_path, {"softmax": 0, "hnas": 9}, scores, further=further)
    [verdict] = compare(folder).verdicts
    assert verdict.word == {"only": "shown at these rates only"}.get(word, word) and said in verdict.sentence()
    at_rates = verdict.difference
    assert verdict.interval.high == at_rates.new_seeds_and_examples.high
    ends = [it.new_seeds_and_examples.low for it in (at_rates, *verdict.others.differences.values())]
    assert verdict.interval.low == (min(ends) if verdict.is_shown else ends[0])
    largest = max(it.p_value for it in (at_rates, *verdict.others.differences.values()))
    assert verdict.p_value == pytest.approx((largest if verdict.is_shown else at_rates.p_value) + DISMISSAL)
    assert verdict.strict_level == 1 - (0.05 - DISMISSAL)
    ruled_out = {"0.002", *verdict.others.worse, *(rate for rate, scores in softmax.items() if None in scores)}
    assert {*further_values(folder)} == {(0, rate) for rate in RATES if rate not in ruled_out}


def test_only_a_verdict_that_would_be_shown_needs_further_values(tmp_path):
    folder = tuned_sweep(tmp_path, {"softmax": 0, "hnas": 0}, {"softmax": CLOSE, "hnas": BETTER}, further={})
    [verdict] = compare(folder).verdicts
    assert verdict.word == "not shown" and NO_RUNS not in verdict.sentence() and further_values(folder) == []


def test_a_sweep_asks_for_further_values_once_it_has_written_which_runs_compare(tmp_path, capsys):
    scores = {"softmax": CLOSE, "hnas": BETTER}
    folder = tuned_sweep(tmp_path / "s", {"softmax": 0, "hnas": 9}, scores, further={})
    content = recorded(folder)
    (folder / "jobs.jsonl").unlink()
    make_run(folder / "dnas", "dnas", 7)  # an arm that cannot be compared
    record = SimpleNamespace(results=list, write=lambda results: write_state(folder, content))
    assert values_to_try(folder, record) == [(0, "0.001"), (0, "0.004")]
    assert "verdicts depend on 2 further values, which are trained now" in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    assert values_to_try(tmp_path / "empty", SimpleNamespace(results=list, write=list)) == []
    assert "no further values: " in capsys.readouterr().out


def test_an_arm_that_was_not_tuned_with_the_others_is_named(better, tmp_path):
    folder = sweep_copied(tmp_path / "sweep", better)
    make_run(folder / "dnas", "dnas", 1)
    arms = arms_of(find_runs([folder]))
    [tuning] = tunings_of(arms)
    assert tuning.choice(arms).startswith("Only some arms have their best optimizer.lr: ")
    assert tuning.choice(arms).endswith(". Not tuned with them: dnas.")


@pytest.mark.slow
def test_the_whole_curve_and_the_budget_are_shown(report):
    [page] = report.tasks
    [tuning] = page.tunings
    rows = [[cell.text for cell in row] for row in tuning.table.rows]
    assert rows == [
        ["softmax", "0.002", "2.9900", "2.8900", "2.9900"],
        ["hnas", "0.002", "2.5850", "2.4950", "2.5750"],
    ]
    assert [[cell.mark for cell in row] for row in tuning.table.rows] == [["", "", "", "shown", ""]] * 2
    points = [(it["arm"], it["optimizer.lr"], it["values"]) for it in values_of(tuning.figures[0])]
    assert points == [(arm, float(rate), 2) for arm in ("softmax", "hnas") for rate in RATES]
    assert "12 runs, 36,000 updates, 0.20 hours" in tuning.about and "0.004 were added" in tuning.about
    assert "8 runs compare the worse arm of a verdict at its other values, with the comparison seeds" in tuning.about
    assert not any("depends on" in warning for warning in page.warnings)  # hnas is better at every rate


@pytest.mark.slow
def test_what_the_sweep_chose_is_no_confound(monkeypatch, tmp_path, better, report):
    [page] = report.tasks
    assert page.confounds == [] and page.chosen == ["optimizer.lr"]
    assert "and in what the sweep chose for each of them: optimizer.lr." in html_of(report)
    without_charts(monkeypatch)
    make_run(tmp_path / "other", "dnas", 110, examples=60, settings={"optimizer.lr": 0.03})  # not of the sweep
    [page] = collect([better, tmp_path / "other"]).tasks
    assert "optimizer.lr" in page.confounds


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["rougeL", "another"])  # the scores, or else the metric that chose
@pytest.mark.parametrize(
    ("scores", "said"),
    [
        (at((19, 19.1), (25, 25.1), (24, 24.5)), "has the opposite sign at 0.001"),
        (at((20.1, 20.1), (25, 25.1), (24, 24.5)), "is not of one sign over the tuning seeds at 0.001"),
        (at((24, 24), (25, 25), (None, 3)), "has the opposite sign at 0.004"),
        (at((24, 24), (25, 25), (20, 20.2)), "is not of one sign over the tuning seeds at 0.004"),
        (BETTER, None),
    ],
)
def test_a_verdict_that_depends_on_the_rate_is_said(tmp_path, report, scores, said, metric):
    [verdict] = report.tasks[0].verdicts
    assert verdict.is_shown
    folder = tuned_sweep(tmp_path, {"softmax": 0, "hnas": 9}, {"softmax": SOFTMAX, "hnas": scores}, metric=metric)
    [tuning] = tunings_of(arms_of(find_runs([folder])))
    line = tuning.dependence(verdict)
    assert tuning.dependence(replace(verdict, no_verdict="why")) is None  # it is not shown
    assert line is None if said is None else line.startswith("The verdict on hnas depends on optimizer.lr: ")
    assert said is None or said in line


@pytest.mark.parametrize("depends", [False, True])
def test_compare_says_what_the_report_says_of_the_sweep(monkeypatch, capsys, tmp_path, better, depends):
    without_charts(monkeypatch)
    scores = {"softmax": SOFTMAX, "hnas": at((1, 1), (25, 25), (24, 24.5))}
    folder = tuned_sweep(tmp_path, {"softmax": 0, "hnas": 9}, scores) if depends else better
    run_compare([f"against={folder}", f"out={tmp_path}/table.tex"])
    said, setup = " ".join("".join(capsys.readouterr()).split()), (tmp_path / "table.tex").read_text()
    for part in ("Every arm tried the same 3 values of optimizer.lr", "Each arm has its best optimizer.lr: softmax"):
        assert part in setup and "at every value of the worse arm" in setup and "learning rate of" not in setup
    assert "hnas minus softmax" in said and "differ in more than their attention" not in said
    lines = [line for line in collect([folder]).tasks[0].warnings if line.startswith("The verdict on hnas depends on")]
    assert len(lines) == depends == ("The verdict on hnas depends on optimizer.lr: " in said)


def test_an_arm_that_failed_at_every_value_is_named_and_counts_in_the_budget(tmp_path, better):
    content = recorded(better)
    hnas = content["tuning"]["arms"][1]
    names = {job: f"dnas {job}" for jobs in hnas["tune"].values() for job in jobs}
    tune = {value: [names[job] for job in jobs] for value, jobs in hnas["tune"].items()}
    failed = {**hnas, "arm": "attention=dnas", "best": None, "tune": tune, "compare": []}
    tuning = {**content["tuning"], "arms": [*content["tuning"]["arms"], failed]}
    jobs = [{**it, "name": names[it["name"]], "state": "failed"} for it in content["jobs"] if it["name"] in names]
    folder = sweep_copied(tmp_path / "sweep", better, tuning=tuning, jobs=[*content["jobs"], *jobs])
    [found] = tunings_of(arms_of(find_runs([folder])))
    assert found.notes[1:] == ["attention=dnas is not compared, because runs failed at every value."]
    assert "Budget: 18 runs" in found.about()


def not_compared(content):
    """The arms of a sweep that is tuning again: nothing is compared yet."""
    return [{**it, "best": None, "compare": []} for it in content["tuning"]["arms"]]


@pytest.mark.parametrize(
    "broken",
    [
        lambda content: {"tuning": {**content["tuning"], "values": ["0.001", "inf"]}},
        lambda content: {"tuning": {**content["tuning"], "arms": "x"}},
        lambda content: {"tuning": {**content["tuning"], "arms": not_compared(content)}},
        lambda content: {"tuning": []},
        lambda content: {"jobs": 3},
        lambda content: {"jobs": []},
    ],
)
def test_a_sweep_file_of_another_form_is_left_out(tmp_path, better, broken):
    folder = sweep_copied(tmp_path / "sweep", better, **broken(recorded(better)))
    assert tunings_of(arms_of(find_runs([folder]))) == []
