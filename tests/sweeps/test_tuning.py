"""Tuning every arm: which values are tried, what chooses among them, and that nothing else does."""

import json
import os
import shutil
import signal

import pytest
from sweeping import attempts, begin, end, events, report, steps, sweep, wait_for

from attnorm.analysis.arms import find_runs, run_folders
from attnorm.analysis.unfinished_jobs import waiting_jobs
from attnorm.errors import ConfigError, Problem, RunError
from attnorm.sweeps.job_record import result_of
from attnorm.sweeps.jobs import Job, job_folder
from attnorm.sweeps.state import JobState, Journal
from attnorm.sweeps.tuning import MOST_ADDED, Tuned, TunedArm, Tuning, best_of, beyond
from attnorm.sweeps.view import print_tuning

TUNE = ("out=s", "seed=110,111", "tune=x=0.1,0.2,0.4", "tune_seeds=100,101", "steps=1", "jobs=6")


class Bench:
    """A tuned sweep without processes. metric: of arm, value and seed; None: the run fails."""

    def __init__(self, folder, metric, values=("1", "2", "4"), modes=("min",), largest=1e9):
        self.folder, self.metric, self.largest, self.told = folder, metric, largest, {}
        folder.mkdir(exist_ok=True)
        self.journal = Journal(folder)
        tuning = Tuning("optimizer.lr", tuple(values), ("100", "101"), ("110", "111"))
        arms = [TunedArm(f"arm {number}", "val/loss", mode) for number, mode in enumerate(modes)]
        self.plan = Tuned(tuning, arms, self.journal, self.make)
        self.ran = []

    def make(self, purpose, choices):
        if any(float(value) > self.largest for _, value, _ in choices):
            raise ConfigError([Problem("optimizer.lr", "too large")])
        jobs = []
        for arm, value, seed in choices:
            name = f"{arm}-{value}-{seed}"
            jobs.append(Job(name, name, name, (), job_folder(self.folder, name, purpose), purpose=purpose))
            self.told[name] = (arm, float(value), int(seed))
            self.journal.add("job", name, key=name, label=name, overrides=[], purpose=purpose)
        return jobs

    def run(self):
        """Runs all jobs in order, and returns those that compare, as (arm, value, seed)."""
        while job := self.plan.next():
            self.finish(job)
        return [it for it in self.ran if it[2] >= 110]

    def finish(self, job):
        self.ran.append(self.told[job.name])
        value = self.metric(*self.told[job.name])
        job.folder.mkdir(parents=True, exist_ok=True)
        summary = {"state": "failed"} if value is None else {"state": "finished", "best_value": value}
        (job.folder / "run.json").touch()
        (job.folder / "summary.json").write_text(json.dumps(summary))
        self.plan.ended(job, JobState(summary["state"]))


def test_each_arm_compares_at_its_best_mean_over_the_tuning_seeds(tmp_path):
    scores = {  # by arm and value: of the seeds 100 and 101; one seed alone would choose another value
        0: {1: (3, 3), 2: (1, 4), 4: (2, 2), 8: (9, 9)},
        1: {1: (5, 5), 2: (7, 6), 4: (9, 1), 8: (0, 0)},
    }
    bench = Bench(tmp_path, lambda arm, x, seed: scores[arm][x][seed - 100] if seed < 110 else 0, modes=("min", "max"))
    assert bench.run() == [(0, 4, 110), (0, 4, 111), (1, 2, 110), (1, 2, 111)]
    assert [it[1] for it in bench.ran if it[2] < 110].count(8) == 4  # the first arm's best was at the edge: for all
    assert bench.plan.record()["arms"][0]["means"] == {"1": 3, "2": 2.5, "4": 2, "8": 9}


def test_a_run_that_has_not_trained_is_not_said_to_have_failed(tmp_path, capsys):
    bench = Bench(tmp_path, lambda arm, x, seed: None if x == 2 else x)
    for _ in range(4):  # the sweep is stopped after both runs of 1 and of 2
        bench.finish(bench.plan.next())
    print_tuning(bench.plan.record(), [result_of(job, bench.journal) for job in bench.plan.jobs])
    [row] = [line for line in capsys.readouterr().out.splitlines() if "val/loss" in line]
    assert [cell.strip() for cell in row.strip(" │").split("│")][2:] == ["1", "failed", "waiting"]


def test_further_values_are_trained_once_the_comparison_has_ended(tmp_path):
    """Only where a verdict depends on them, with the comparison seeds, and as runs of no arm."""
    bench = Bench(tmp_path, lambda arm, x, seed: (x - 2) ** 2, modes=("min", "min"))
    asked = []
    bench.plan.further = lambda: asked.append(len(bench.ran)) or [(1, "1"), (1, "4")]
    assert bench.run()[4:] == [(1, x, seed) for x in (1, 4) for seed in (110, 111)]
    assert asked == [2 * 3 * 2 + 4] and bench.plan.total == len(bench.ran)
    assert bench.plan.record()["arms"][1]["further"] == {"1": ["1-1-110", "1-1-111"], "4": ["1-4-110", "1-4-111"]}
    assert {job.folder.parent.name for job in bench.plan.jobs[-4:]} == {"tune"}
    again = Bench(tmp_path, lambda arm, x, seed: (x - 4) ** 2 if arm else (x - 2) ** 2, modes=("min", "min"))
    again.run()  # one of the further values is the best one now, and nothing depends on the others
    assert not again.journal.has("1-1-110") and again.journal.has("1-4-110")


def test_no_score_of_a_comparison_changes_what_is_chosen(tmp_path):
    """The planted fault: runs of comparison seeds that lie in the folder, far better at other values."""

    def planted(arm, x, seed):
        return (x - 2) ** 2 if seed < 110 else -1000 * abs(x - 2)

    first = Bench(tmp_path / "a", planted, modes=("min", "min"))
    chosen = first.run()
    assert {it[1] for it in chosen} == {2}
    again = Bench(tmp_path / "b", planted, modes=("min", "min"))
    for name in ("0-1-110", "0-4-110", "1-1-111", "0-1-111"):  # as left by a command with other tuning seeds
        folder = tmp_path / "b" / name
        folder.mkdir(parents=True)
        (folder / "run.json").touch()
        (folder / "summary.json").write_text('{"state": "finished", "best_value": -1000000}')
        again.journal.add("job", name, key=name, label=name, overrides=[], purpose="compare")
    read, score = [], again.plan.score
    again.plan.score = lambda job: read.append(job) or score(job)
    assert again.run() == chosen
    assert read and {job.purpose for job in read} == {"tune"}
    assert {again.told[job.name][2] for job in read} == {100, 101}
    assert all(job.folder.parent == tmp_path / "b" / "tune" for job in read)


def test_the_grid_is_extended_for_all_arms_by_its_ratio_within_a_bound(tmp_path):
    bench = Bench(tmp_path, lambda arm, x, seed: x if arm else -x, values=("0.001", "0.003"), modes=("min", "min"))
    bench.run()
    assert len(bench.plan.values) == 2 + 2 * MOST_ADDED
    ratios = [float(b) / float(a) for a, b in zip(bench.plan.values, bench.plan.values[1:], strict=False)]
    assert ratios == pytest.approx([3] * len(ratios), rel=1e-5)
    tried = {(arm, x) for arm, x, seed in bench.ran if seed < 110}
    assert tried == {(arm, float(x)) for arm in (0, 1) for x in bench.plan.values}
    assert len(bench.plan.notes) == 2 and all("which is the limit" in note for note in bench.plan.notes)


def test_a_value_that_is_not_allowed_ends_the_grid(tmp_path):
    bench = Bench(tmp_path, lambda arm, x, seed: -x, largest=8)
    assert {it[1] for it in bench.run()} == {8}
    [note] = bench.plan.notes
    assert "optimizer.lr=8" in note and "16 is not allowed: optimizer.lr: too large" in note


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf")])
def test_a_run_that_failed_or_diverged_is_the_worst(tmp_path, bad):
    """The larger the better, but one seed of the largest value fails, whatever the other one reached."""
    bench = Bench(tmp_path, lambda arm, x, seed: bad if x == 4 and seed == 101 else -x)
    assert {it[1] for it in bench.run()} == {2}
    failed = [job for job in bench.plan.jobs if job.name == "0-4-101"]
    assert bench.plan.is_done(failed[0], JobState.FAILED) == (bad is None)  # and it need not run again
    assert not bench.plan.is_done(bench.plan.jobs[0], JobState.FAILED)


def test_an_arm_that_always_fails_is_not_compared_and_stays_unfinished(tmp_path):
    bench = Bench(tmp_path, lambda arm, x, seed: None if arm else (x - 2) ** 2, modes=("min", "min"))
    assert bench.run() == [(0, 2, 110), (0, 2, 111)]
    assert bench.plan.record()["arms"][1]["best"] is None
    done = sum(bench.plan.is_done(job, result_of(job, bench.journal).state) for job in bench.plan.jobs)
    assert bench.plan.total - done == 2 + 6  # its comparison, and its tuning


def test_a_flat_metric_extends_nothing():
    assert best_of({"1": 5.0, "2": 5.0, "4": 5.0}, "max") == "2"
    assert best_of({"1": None, "2": None}, "min") is None
    assert best_of({"1": 2.0, "2": None, "4": 3.0}, "max") == "4"


@pytest.mark.parametrize(
    ("values", "below", "above"),
    [
        (("0.001", "0.002", "0.004"), "0.0005", "0.008"),
        (("1e-5", "1e-4"), "1e-06", "0.001"),
        (("2", "4"), "1", "8"),
        (("1", "2"), None, "4"),  # a whole number stays one
        (("1", "3", "12"), None, "48"),
    ],
)
def test_the_next_value_continues_the_grid(values, below, above):
    assert (beyond(values, upwards=False), beyond(values, upwards=True)) == (below, above)


def test_a_sweep_tunes_and_then_compares(tmp_path):
    typed = ("out=s", "seed=110", "tune=x=0.2,0.4", "tune_seeds=100", "steps=1", "jobs=6", "center=0.4,0.8")
    sweep(tmp_path, *typed)
    found = report(tmp_path / "s")
    seeds = {(it["purpose"], it["overrides"][-1]) for it in found["jobs"]}
    assert seeds == {("tune", "seed=100"), ("compare", "seed=110")}
    assert [(it["arm"], it["best"]) for it in found["tuning"]["arms"]] == [("center=0.4", "0.4"), ("center=0.8", "0.8")]
    assert found["tuning"]["added"] == ["0.8", "1.6"] and found["unfinished"] == 0
    compared = [it for it in found["jobs"] if it["purpose"] == "compare"]
    assert {(it["arm"], it["overrides"][-2]) for it in compared} == {("center=0.4", "x=0.4"), ("center=0.8", "x=0.8")}
    started = len(events(tmp_path / "s", "start"))
    said = sweep(tmp_path, *typed)
    assert len(events(tmp_path / "s", "start")) == started == 4 * 2 + 2  # nothing runs again
    assert "tuning x with seed 100" in said and "0 *" in said


@pytest.mark.slow
def test_tuning_runs_are_no_runs_of_arms_and_those_of_arms_tune_nothing(tmp_path):
    """However the place is named: as the sweep, by a pattern, or as a run of the tuning itself."""
    sweep(tmp_path, *TUNE, "center=0.2")
    folder = tmp_path / "s"
    for place in (folder, folder / "*", folder / "*/*", folder / "**"):
        assert {it.parent for it in run_folders(place)} <= {folder}, place
    assert len(run_folders(folder)) == 2
    said = sweep(tmp_path, "out=s", "seed=120", "tune=x=0.2,0.4", "tune_seeds=110", "center=0.2", "steps=1", code=2)
    assert "error: out=s: the run x=0.2 seed=110 is there already, to compare" in said
    [tuned, *_] = sorted((folder / "tune").iterdir())
    for place in (folder / "tune", tuned):
        with pytest.raises(RunError, match="those in tune/ of a sweep folder are not compared"):
            find_runs([place])
    shutil.move(tuned, tmp_path / "copy")  # outside of a sweep, it is a run like any other
    assert run_folders(tmp_path / "copy") == [tmp_path / "copy"]


@pytest.mark.slow
def test_failed_tuning_runs_are_not_tried_again_once_a_value_is_chosen(tmp_path):
    typed = (*TUNE, "center=0.2", "diverges=0.4", "retries=0")
    sweep(tmp_path, *typed)
    started = len(events(tmp_path / "s", "start"))
    said = sweep(tmp_path, *typed)
    assert len(events(tmp_path / "s", "start")) == started == 6 + 2
    assert report(tmp_path / "s")["unfinished"] == 0 and "failed before" in said
    assert report(tmp_path / "s")["tuning"]["arms"][0]["means"]["0.4"] is None


@pytest.mark.slow
def test_an_interrupted_tuning_is_continued(tmp_path):
    typed = (*TUNE[:-2], "steps=8", "pause=0.05", "jobs=3", "center=0.2")
    running = begin(tmp_path, *typed)
    wait_for(lambda: (tmp_path / "s/tune").exists() and steps(tmp_path / "s/tune") > 4)
    os.kill(running.pid, signal.SIGTERM)
    end(running, 143)
    assert report(tmp_path / "s")["tuning"]["arms"][0]["best"] is None and waiting_jobs([tmp_path / "s"])
    sweep(tmp_path, *typed)
    assert max(len(job) for job in attempts(tmp_path / "s/tune")) == 2
    assert report(tmp_path / "s")["tuning"]["arms"][0]["best"] == "0.2" and not waiting_jobs([tmp_path / "s"])


@pytest.mark.slow
def test_another_best_value_takes_the_earlier_comparison_out_of_the_arm(tmp_path):
    """With another grid, another value is best: runs at the old one are no runs of the arm, until it is best again."""
    sweep(tmp_path, *TUNE, "center=0.3")
    folder = tmp_path / "s"
    old = names_of(folder)
    finer = [it.replace("0.1,0.2,0.4", "0.15,0.3,0.6") for it in TUNE]
    sweep(tmp_path, *finer, "center=0.3,0.35")
    assert len(names_of(folder)) == 4 and not names_of(folder) & old
    assert all((folder / "tune" / name).exists() for name in old) and not waiting_jobs([folder])
    started = len(events(folder, "start"))
    sweep(tmp_path, *TUNE, "center=0.3")
    assert names_of(folder) == old and len(events(folder, "start")) == started and not waiting_jobs([folder])


@pytest.mark.slow
def test_a_further_value_may_become_the_best_one_and_return(tmp_path, monkeypatch):
    """Its runs are used again, in the folder where they belong."""
    monkeypatch.setenv("FURTHER", '[[0, "0.4"]]')
    coarse, fine = (
        tuple(it.replace("0.1,0.2,0.4", values) for it in TUNE) for values in ("0.2,0.4,0.8", "0.2,0.3,0.4")
    )
    sweep(tmp_path, *fine, "center=0.34")
    folder, further = tmp_path / "s", [f"x-0.4_seed-{seed}" for seed in (110, 111)]
    assert all(list((folder / "tune").glob(f"{name}_*")) for name in further) and report(folder)["unfinished"] == 0
    assert {it.split("_")[0] for it in names_of(folder)} == {"x-0.3"} and not waiting_jobs([folder])
    started = len(events(folder, "start"))
    monkeypatch.setenv("FURTHER", "[]")
    sweep(tmp_path, *coarse, "center=0.34")
    assert {it.split("_")[0] for it in names_of(folder)} == {"x-0.4"} and not waiting_jobs([folder])
    assert len(events(folder, "start")) == started + 2  # 0.8 with the tuning seeds
    monkeypatch.setenv("FURTHER", '[[0, "0.4"]]')
    sweep(tmp_path, *fine, "center=0.34")
    assert len(events(folder, "start")) == started + 2 and not waiting_jobs([folder])
    assert {it.split("_")[0] for it in names_of(folder)} == {"x-0.3"}


def names_of(folder):
    """The names of the runs that form arms."""
    return {path.name for path in run_folders(folder)}


@pytest.mark.slow
def test_a_value_that_a_job_refuses_is_named(tmp_path):
    said = sweep(tmp_path, "out=s", "seed=110", "tune=x=1,3", "tune_seeds=100", "upper=2", code=2)
    assert "error: x=3: at most 2 (in x=3 seed=100)" in said
    sweep(tmp_path, "out=t", "seed=110", "tune=x=0.75,1.5", "tune_seeds=100", "center=9", "upper=2", "steps=1")
    [note] = report(tmp_path / "t")["tuning"]["notes"]
    assert "x=1.5: 3 is not allowed: x=3" in note
