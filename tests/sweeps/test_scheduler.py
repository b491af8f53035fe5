"""Sweeps of jobs that take milliseconds: each job runs once, whatever happens to it and to the sweep."""

import json
import os
import random
import re
import signal
import time

import processes
import pytest
from marks import slow
from sweeping import assert_each_once, attempts, begin, end, events, kill, report, steps, sweep, wait_for

from attnorm.analysis.arms import run_folders

pytestmark = pytest.mark.training  # it starts processes
in_both_ways = pytest.mark.parametrize("way", ["fresh", slow("forked")], indirect=True)


@in_both_ways
def test_each_job_runs_once_with_cores_of_its_own(tmp_path, way):
    said = sweep(tmp_path, "out=s", "x=1,2", "y=1,2", "jobs=2", "steps=4")
    assert_each_once(tmp_path / "s", 4, 4)
    ran = [attempt for job in attempts(tmp_path / "s") for attempt in job]
    assert len(ran) == 4 and {(it["resumed"], it["forked"]) for it in ran} == {(False, way == "forked")}
    cores = sorted(os.sched_getaffinity(0))
    halves = {tuple(cores[: len(cores) // 2]), tuple(cores[len(cores) // 2 :])} - {()}
    assert {tuple(it["cores"]) for it in ran} == halves
    most = int(os.environ.get("OMP_NUM_THREADS", 99))
    assert {int(it["threads"]) for it in ran} == {max(1, min(len(cores) // 2, most))}
    assert "unfinished" not in said and len(report(tmp_path / "s")["jobs"]) == 4
    assert len(re.findall("│ finished +│", said)) == 4  # the closing table


@pytest.mark.parametrize(
    ("typed", "lines"),
    [
        (("x=1,2", "seed=1"), ["x=1: finished", "x=2: waiting"]),
        (
            ("x=1", "seed=110,111", "tune=y=1,2", "tune_seeds=100"),
            ["y=1 seed=100: waiting", "y=2 seed=100: waiting", "and then 2 runs at the best values of the arms"],
        ),
    ],
)
def test_a_dry_sweep_says_what_would_be_trained_and_writes_nothing(tmp_path, typed, lines):
    sweep(tmp_path, "out=s", "x=1", "seed=1", "steps=1")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for folder in ("s", "new"):
        _, *said, last = sweep(tmp_path, f"out={folder}", *typed, "steps=1", "dry=true").splitlines()
        assert said == [line.replace("finished", "waiting") if folder == "new" else line for line in lines]
        assert last == f"nothing was written; the sweep folder would be {folder}"
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.slow
def test_what_is_finished_is_skipped_and_what_is_new_is_added_in_the_folder_of_the_command(tmp_path):
    sweep(tmp_path, "out=s", "x=1,2", "steps=3")
    sweep(tmp_path, "out=s", "x=1,2", "steps=3")
    sweep(tmp_path, "out=s", "x=1,2,3", "steps=3")
    sweep(tmp_path, "out=s", "x=1,2", "y=5", "steps=3")
    assert [len(job) for job in attempts(tmp_path / "s")] == [1] * 5 and not (tmp_path / "s/doubled.txt").exists()
    for typed in (["x=1,2", "y=3"], ["y=3", "x=1,2", "jobs=2", "retries=3"], ["x=1,2", "y=4"]):
        sweep(tmp_path, *typed)
    folders = sorted((tmp_path / "logs/sweeps").iterdir())
    assert len(folders) == 2 and all(folder.name.startswith("fake_") for folder in folders)
    assert [len(job) for folder in folders for job in attempts(folder)] == [1] * 4


@pytest.mark.slow
def test_jobs_with_the_same_configuration_are_one_job(tmp_path):
    said = sweep(tmp_path, "out=s", "x=1,1,2", "tags=[a],[b]")
    assert_each_once(tmp_path / "s", 2, 3)
    assert "checked 6 jobs" in said and "4 of them equal another one" in said


@pytest.mark.slow
@pytest.mark.parametrize(("retries", "fails", "ran"), [slow(0, 1, 1), (1, 1, 2), slow(2, 5, 3), slow(3, 2, 3)])
def test_a_failure_is_tried_again_so_many_times(tmp_path, retries, fails, ran):
    finishes = fails <= retries
    said = sweep(tmp_path, "out=s", f"retries={retries}", f"broken={fails}", "x=1,2", code=0 if finishes else 1)
    assert [[it["resumed"] for it in job] for job in attempts(tmp_path / "s")] == [[False] + [True] * (ran - 1)] * 2
    found = report(tmp_path / "s")
    assert {(it["state"], it["attempts"]) for it in found["jobs"]} == {("finished" if finishes else "failed", ran)}
    if not finishes:
        assert "2 of 2 jobs are unfinished; repeat the command to continue: attnorm sweep out=s" in said
        assert {it["why"] for it in found["jobs"]} == {"it was told to fail"}
        sweep(tmp_path, "out=s", f"retries={fails}", f"broken={fails}", "x=1,2")  # the next command tries again
        assert_each_once(tmp_path / "s", 2, 3)


def test_with_fail_fast_the_first_failure_stops_the_sweep_which_can_be_continued(tmp_path):
    typed = ("out=s", "x=3,1,2", "diverges=3", "steps=120", "pause=0.02", "jobs=2", "retries=0")
    said = sweep(tmp_path, *typed, "fail_fast=true", code=1)
    assert "stopping: one run saves" in said and "3 of 3 jobs are unfinished; saved; repeat the command" in said
    assert sorted(it["state"] for it in report(tmp_path / "s")["jobs"]) == ["failed", "interrupted", "waiting"]
    sweep(tmp_path, *typed, code=1)
    assert sorted(it["state"] for it in report(tmp_path / "s")["jobs"]) == ["failed", "finished", "finished"]
    assert [it.name[:3] for it in run_folders(tmp_path / "s")] == ["x-3", "x-1", "x-2"]  # in the order of typing


@pytest.mark.slow
def test_wrong_settings_are_not_tried_again_and_do_not_stop_the_others(tmp_path):
    sweep(tmp_path, "out=s", "retries=3", "code=2", "x=1", code=1)
    assert len(events(tmp_path / "s", "start")) == 1
    [only] = report(tmp_path / "s")["jobs"]
    assert (only["state"], only["code"], only["why"]) == ("failed", 2, "error: this job cannot be run")
    said = sweep(tmp_path, "out=s", "retries=1", "x=1,2", "broken=9,0", code=1)
    assert "2 of 4 jobs are unfinished" in said


def test_why_a_stopped_job_cannot_be_resumed_is_said(tmp_path):
    """A refused job records nothing, so its summary still says why an earlier attempt ended."""
    job = ("out=s", "x=1", "steps=40", "pause=0.02")
    running = begin(tmp_path, *job)
    wait_for(lambda: steps(tmp_path / "s") > 3)
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=60)
    [path] = (tmp_path / "s").glob("*/run.json")
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "typed": record["typed"] | {"code": 2}}))
    said = sweep(tmp_path, *job, code=1)
    assert "interrupted: error: this job cannot be run" in said and "Traceback" not in said


@in_both_ways
@pytest.mark.slow
def test_a_job_that_is_killed_is_resumed(tmp_path, way):
    running = begin(tmp_path, "out=s", "x=1", "steps=40", "pause=0.02")
    wait_for(lambda: steps(tmp_path / "s") > 3)
    os.kill(attempts(tmp_path / "s")[0][0]["pid"], signal.SIGKILL)
    assert "killed (exit code 137); it will be tried again" in end(running)
    assert_each_once(tmp_path / "s", 1, 40)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "way"),
    [
        *((number, "fresh") for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)),
        (signal.SIGTERM, "forked"),
    ],
    indirect=["way"],
)
def test_a_signal_lets_the_jobs_save_and_the_same_command_continues(tmp_path, number, way):
    typed = ("out=s", "x=1,2,3", "steps=30", "pause=0.05", "jobs=2", "retries=0")
    running = begin(tmp_path, *typed)
    wait_for(lambda: len([*tmp_path.glob("s/*/steps.txt")]) == 2)
    os.kill(running.pid, number)
    said = end(running, 128 + number)
    assert "3 of 3 jobs are unfinished; saved; repeat the command to continue: attnorm sweep out=s" in said
    assert "stopping" in said and report(tmp_path / "s")["exit_code"] == 128 + number
    states = [it["state"] for it in report(tmp_path / "s")["jobs"]]
    assert states == ["interrupted", "interrupted", "waiting"]
    sweep(tmp_path, *typed)
    assert_each_once(tmp_path / "s", 3, 30)
    assert [len(job) for job in attempts(tmp_path / "s")] == [2, 2, 1]


@pytest.mark.slow
def test_the_state_of_a_sweep_is_recorded_when_it_begins_and_when_it_ends(tmp_path):
    def states():
        return [it["state"] for it in report(tmp_path / "s")["jobs"]]

    sweep(tmp_path, "out=s", "x=1", "steps=5")
    assert states() == ["finished"] and report(tmp_path / "s")["exit_code"] == 0
    running = begin(tmp_path, "out=s", "x=1,2", "steps=5", "pause=1")  # the pause makes both of them new jobs
    wait_for(lambda: len(states()) == 2)
    assert report(tmp_path / "s")["exit_code"] is None and report(tmp_path / "s")["unfinished"] == 2
    wait_for(lambda: len(events(tmp_path / "s", "start")) == 3)
    os.kill(running.pid, signal.SIGTERM)
    end(running, 128 + signal.SIGTERM)


@in_both_ways
@pytest.mark.slow
def test_a_second_ctrl_c_ends_jobs_that_do_not_listen(tmp_path, way):
    running = begin(tmp_path, "out=s", "x=1,2", "steps=20000", "pause=0.02", "jobs=2", "hang=true")
    wait_for(lambda: len([*tmp_path.glob("s/*/steps.txt")]) == 2)
    os.kill(running.pid, signal.SIGINT)
    wait_for(lambda: running.stdout.readline().startswith("stopping"))
    assert running.poll() is None
    os.kill(running.pid, signal.SIGINT)
    end(running, 130)
    pids = [job[0]["pid"] for job in attempts(tmp_path / "s")]
    assert not any(processes.is_running(pid) for pid in pids)


@in_both_ways
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_sweep_that_is_killed_again_and_again_runs_each_job_once(tmp_path, seed, way):
    """kill -9 of the sweep at random moments, also before it has started anything: the jobs that it leaves running are
    found again, no step is made twice, and nothing runs twice at a time."""
    moment, typed = random.Random(seed), ("out=s", "x=1,2,3", "y=1,2", "steps=12", "pause=0.03", "jobs=2", "start=0.1")
    running, kills = begin(tmp_path, *typed), 0
    for target in sorted(moment.sample(range(70), 6)):
        wait_for(lambda target=target, running=running: steps(tmp_path / "s") >= target or running.poll() is not None)
        if running.poll() is None:
            kill(running)
            running, kills = begin(tmp_path, *typed), kills + 1
    end(running)
    assert kills >= 3
    assert_each_once(tmp_path / "s", 6, 12)
    assert [len(job) for job in attempts(tmp_path / "s")] == [1] * 6  # they outlived the sweep


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, pytest.param(0.2, marks=pytest.mark.slow)])
def test_a_job_is_found_again_before_it_has_a_lock_of_its_own(tmp_path, delay):
    """The sweep is killed while its job still imports its libraries."""
    typed = ("out=s", "x=1", "steps=5", "start=1.0")
    running = begin(tmp_path, *typed)
    wait_for(lambda: list((tmp_path / "s").glob("*/job.lock")))
    time.sleep(delay)
    kill(running)
    sweep(tmp_path, *typed)
    assert_each_once(tmp_path / "s", 1, 5)
    assert len(attempts(tmp_path / "s")[0]) == 1


@in_both_ways
@pytest.mark.slow
def test_jobs_and_sweep_that_are_all_killed_are_continued(tmp_path, way):
    typed = ("out=s", "x=1,2", "steps=30", "pause=0.02", "jobs=2", "retries=0")
    running = begin(tmp_path, *typed)
    wait_for(lambda: steps(tmp_path / "s") > 10)
    kill(running)
    for job in attempts(tmp_path / "s"):
        os.kill(job[0]["pid"], signal.SIGKILL)
    sweep(tmp_path, *typed)
    assert_each_once(tmp_path / "s", 2, 30)


@in_both_ways
@pytest.mark.slow
def test_ctrl_c_also_stops_the_jobs_of_a_sweep_that_was_killed(tmp_path, way):
    typed = ("out=s", "x=1,2", "steps=4000", "pause=0.02", "jobs=2")
    running = begin(tmp_path, *typed)
    wait_for(lambda: steps(tmp_path / "s") > 4 and len(attempts(tmp_path / "s")) == 2)
    kill(running)
    again = begin(tmp_path, *typed)
    wait_for(lambda: "still running" in again.stdout.readline())
    wait_for(lambda: "still running" in again.stdout.readline())
    os.kill(again.pid, signal.SIGINT)
    end(again, 130)
    assert {it["state"] for it in report(tmp_path / "s")["jobs"]} == {"interrupted"}


@pytest.mark.slow
def test_of_two_sweeps_on_one_folder_the_second_waits(tmp_path):
    typed = ("out=s", "x=1,2,3,4", "steps=20", "pause=0.03", "jobs=2")
    both = [begin(tmp_path, *typed) for _ in range(2)]
    said = [end(process) for process in both]
    assert_each_once(tmp_path / "s", 4, 20)
    assert [len(job) for job in attempts(tmp_path / "s")] == [1] * 4
    assert sum("another sweep (process" in it for it in said) == 1
    assert sum("finished before" in it for it in said) == 1


@pytest.mark.slow
def test_a_waiting_sweep_takes_over_from_one_that_is_killed(tmp_path):
    typed = ("out=s", "x=1,2,3,4", "steps=20", "pause=0.03", "jobs=2")
    first = begin(tmp_path, *typed)
    wait_for(lambda: steps(tmp_path / "s") > 4)
    second = begin(tmp_path, *typed)
    wait_for(lambda: "another sweep" in second.stdout.readline())
    kill(first)
    end(second)
    assert_each_once(tmp_path / "s", 4, 20)
    assert [len(job) for job in attempts(tmp_path / "s")] == [1] * 4
