"""Launchers other than this machine: SLURM by submitit, with its executor for one machine, and Ray if it is there."""

import importlib.util
import os
import signal
import sys
import time
from dataclasses import replace

import pytest
import runs
from driver import PROGRAM
from sweeping import assert_each_once, attempts, begin, end, events, kill, report, steps, sweep, wait_for

from attnorm.errors import ConfigError
from attnorm.run.folder import JOB_LOCK, FolderLock
from attnorm.sweeps.jobs import Job, job_folder
from attnorm.sweeps.process import Remote, command_of, start_process

pytestmark = pytest.mark.training  # it starts processes
SLURM = ("launcher=submitit", "submitit.cluster=local")
needs_submitit = pytest.mark.skipif(not importlib.util.find_spec("submitit"), reason="submitit is not installed")
needs_ray = pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="ray is not installed")
RAY = ("launcher=ray", "ray.num_cpus=2")
in_both = pytest.mark.parametrize(
    "launcher", [pytest.param(SLURM, marks=[needs_submitit, pytest.mark.slow]), pytest.param(RAY, marks=needs_ray)]
)


def job(folder, *overrides):
    return Job("a", "0" * 64, "x=1", overrides, folder)


def test_a_run_is_started_or_continued_by_what_its_folder_holds(tmp_path):
    one = job(tmp_path / "a (1)", "++seed=1", "++tags=[a]")
    quoted = f"'{tmp_path}/a (1)'"
    assert command_of(one, ("train",)) == ["train", *one.overrides, f"hydra.run.dir={quoted}"]
    one.folder.mkdir()
    (one.folder / "config.yaml").touch()  # stopped before it had recorded its settings
    (one.folder / "summary.json").write_text('{"state": "interrupted"}')
    assert command_of(one, ("train",))[1:-1] == [*one.overrides]
    (one.folder / "run.json").touch()
    assert command_of(one, ("train",)) == ["train", f"resume={quoted}"]


@pytest.mark.parametrize(
    ("recorded", "is_trusted"),
    [
        ({}, True),
        ({"attention": {"encoder": "lab.normalizer:Power"}}, True),
        ({"attention": {"encoder": "lab.normalizer:Evil"}}, False),
        ({"task": {"_target_": "lab.normalizer.Power", "name": "a"}}, False),  # typed, but for another key
        ({"logger": {"csv": {"save_dir": "/elsewhere"}}}, False),
        ({"paths": {"cache_dir": "/elsewhere"}}, False),
        ({"seed": [["a"]]}, False),  # no settings of a run
    ],
)
def test_a_run_continues_with_trust_if_it_names_what_was_typed(tmp_path, recorded, is_trusted):
    settings = {"seed": 1, "task": {"name": "a"}, "model": {}, "attention": {}, "data": {}, "optimizer": {"lr": 1.0}}
    named = (("attention.encoder", "lab.normalizer:Power"), ("paths.cache_dir", "None"))
    one = replace(job(tmp_path, "callbacks.progress.samples=1"), named=named)
    runs.write_settings(tmp_path, settings | recorded)
    assert command_of(one, ("train",)) == ["train", f"resume={tmp_path}", *["trust_code=true"][: int(is_trusted)]]


@pytest.mark.slow
def test_a_job_that_was_submitted_twice_runs_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = job(tmp_path / "a", "++steps=5", "++pause=0.05")
    remote = Remote(one, PROGRAM, str(tmp_path), {"A": "b", "HOME": None})
    if (child := os.fork()) == 0:
        os._exit(remote())
    wait_for(lambda: FolderLock(one.folder, JOB_LOCK).holder() is not None)
    assert remote() == 0
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(attempts(tmp_path)[0]) == 1 and steps(tmp_path) == 5


@pytest.mark.parametrize("purpose", ["", "compare", "tune", "further"])
def test_runs_are_one_group_in_wandb_and_take_no_part_in_the_slurm_job_of_the_sweep(tmp_path, monkeypatch, purpose):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NAME", "sweep")
    folder = job_folder(tmp_path / "my_sweep", "a", purpose)
    folder.mkdir(parents=True)
    one, lock = replace(job(folder), purpose=purpose), FolderLock(folder, JOB_LOCK)
    assert lock.acquire() and start_process(one, ["env"], lock, {"A": "b"}).wait() == 0
    said = (folder / "console.log").read_text().splitlines()
    assert {"WANDB_RUN_GROUP=my_sweep", "A=b", "SLURM_JOB_NAME=bash"} <= set(said)
    assert not any(line.startswith("SLURM_JOB_ID") for line in said)


@needs_submitit
@pytest.mark.slow
def test_a_job_that_slurm_interrupts_saves_and_is_requeued(tmp_path):
    """SIGUSR2 from the queue, also when the sweep is no longer there: the run saves, and continues in the same job."""
    typed = (*SLURM, "out=s", "x=1", "steps=60", "pause=0.05", "retries=0")
    running = begin(tmp_path, *typed)
    wait_for(lambda: steps(tmp_path / "s") > 4)
    [placed] = wait_for(lambda: events(tmp_path / "s", "place"))
    kill(running)
    controller = int(placed["id"])
    [worker] = (pid for pid in children(controller))
    os.kill(worker, signal.SIGUSR2)
    wait_for(lambda: len(attempts(tmp_path / "s")[0]) == 2)
    sweep(tmp_path, *typed)
    assert_each_once(tmp_path / "s", 1, 60)
    assert [it["resumed"] for it in attempts(tmp_path / "s")[0]] == [False, True]
    assert len(events(tmp_path / "s", "start")) == 1


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return list(map(int, file.read().split()))


@pytest.mark.slow
@needs_submitit
def test_wrong_parameters_of_submitit_are_refused(tmp_path):
    said = sweep(tmp_path, *SLURM, "submitit.colour=red", "out=s", "x=1", code=2)
    assert "error: submitit: " in said and "colour" in said


@pytest.mark.parametrize(("module", "typed"), [("submitit", "launcher=submitit"), ("ray", "launcher=ray")])
def test_a_launcher_without_its_package_says_what_to_install(tmp_path, monkeypatch, module, typed):
    monkeypatch.setitem(sys.modules, module, None)
    from attnorm.sweeps.launchers.ray import RayLauncher
    from attnorm.sweeps.launchers.submitit import SubmititLauncher

    needs = rf"{typed}: needs the package {module}; install it with: pip install {module}"
    with pytest.raises(ConfigError, match=needs):
        RayLauncher({}, 1) if module == "ray" else SubmititLauncher(tmp_path, {}, 1)


@in_both
def test_jobs_run_elsewhere(tmp_path, launcher):
    sweep(tmp_path, *launcher, "out=s", "x=1,2,3", "broken=1", "steps=4", "jobs=2")
    assert_each_once(tmp_path / "s", 3, 4)
    assert [[it["resumed"] for it in job] for job in attempts(tmp_path / "s")] == [[False, True]] * 3
    assert {it["code"] for it in report(tmp_path / "s")["jobs"]} == {0}


@in_both
def test_a_sweep_that_is_stopped_or_killed_is_continued(tmp_path, launcher):
    typed = (*launcher, "out=s", "x=1,2", "steps=100", "pause=0.05", "jobs=2", "retries=0")
    running = begin(tmp_path, *typed)
    wait_for(lambda: steps(tmp_path / "s") > 4)
    os.kill(running.pid, signal.SIGINT)
    end(running, 130)
    assert {it["state"] for it in report(tmp_path / "s")["jobs"]} <= {"interrupted", "waiting"}
    again = begin(tmp_path, *typed)
    reached = steps(tmp_path / "s")
    wait_for(lambda: steps(tmp_path / "s") > reached + 4)
    kill(again)
    time.sleep(1)  # the workers of Ray end with it
    said = sweep(tmp_path, *typed)
    assert_each_once(tmp_path / "s", 2, 100)
    if launcher == SLURM:  # whose jobs outlive the sweep
        assert "still running" in said and max(map(len, attempts(tmp_path / "s"))) == 2
