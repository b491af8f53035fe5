"""The same cost for every arm: the updates that a budget pays for, and measurements that are made once."""

import json

import pytest
from marks import slow
from sweeping import events, report, sweep

from attnorm.analysis.arms import run_folders
from attnorm.analysis.waiting import waiting_jobs
from attnorm.errors import RunError
from attnorm.sweeps.cost import MEASURING, ArmCost, check_machines, equalized, refuse_other_budget
from attnorm.sweeps.jobs import Job
from attnorm.sweeps.state import Journal

ARMS = ("attention=dnas,softmax,hnas", "price=0.2", "steps=1", "seed=1,2", "dir=s")


def test_the_updates_of_a_hand_made_case():
    """Softmax: 1,000 updates of 0.10 s are 100 s, which are 800 updates of 0.125 s, 500 of 0.2 s and 333 of 0.3 s."""
    seconds = {"dnas": 0.125, "softmax": 0.1, "hnas": 0.2, "ot": 0.3, "huge": 900.0}
    costs = [ArmCost(name, "mlm", name == "softmax", 1000, cost, "CPU seconds") for name, cost in seconds.items()]
    found = {cost.arm: cost for cost in equalized(costs)}
    updates = {"dnas": 800, "softmax": 1000, "hnas": 500, "ot": 333, "huge": 1}
    assert {name: cost.updates for name, cost in found.items()} == updates
    assert [name for name, cost in found.items() if cost.is_baseline] == ["softmax"]
    without = equalized([cost for cost in costs if cost.arm != "softmax"])
    assert [(cost.arm, cost.updates) for cost in without if cost.is_baseline] == [("dnas", 1000)]
    of_each_task = [  # which has a budget of its own
        ArmCost(f"{arm} {task}", task, arm == "softmax", updates, cost, "FLOPs")
        for task, updates, arms in (
            ("mlm", 1000, {"softmax": 1.0, "dnas": 2.0}),
            ("vqa", 300, {"softmax": 4.0, "dnas": 2.0}),
        )
        for arm, cost in arms.items()
    ]
    assert [cost.updates for cost in equalized(of_each_task)] == [1000, 500, 300, 600]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "unit", "scale"), [("time", "CPU seconds", 1), slow("flops", "FLOPs", 10)])
def test_every_arm_trains_as_long_as_its_budget_lasts(tmp_path, kind, unit, scale):
    typed = ("attention=dnas,softmax,hnas", "price=0.1,0.2,0.4", "steps=1", "seed=1,2", "dir=s", f"cost={kind}")
    said = sweep(tmp_path, *typed)
    found = report(tmp_path / "s")
    updates = {it["arm"]: it["updates"] for it in found["cost"]["arms"]}
    assert updates["attention=softmax price=0.1"] == 1000  # the first arm with softmax is the baseline
    for name in ("softmax", "dnas", "hnas"):
        assert [updates[f"attention={name} price={price}"] for price in (0.1, 0.2, 0.4)] == [1000, 500, 250]
    assert {it["total"] for it in found["cost"]["arms"]} == {100.0 * scale} and unit in said
    for job in found["jobs"]:
        config = json.loads((tmp_path / job["folder"] / "config.yaml").read_text())
        assert config["trainer.max_steps"] == str(updates[job["arm"]])
        assert config["seed"] in "12" and "callbacks.update_cost._target_" not in config


@pytest.mark.slow
def test_a_run_that_measures_is_of_no_arm_has_as_many_cores_as_a_job_and_is_not_repeated(tmp_path):
    """The planted fault: costs that would be others by now."""
    sweep(tmp_path, *ARMS, "cost=time", "jobs=2")
    folder, started = tmp_path / "s", len(events(tmp_path / "s", "start"))
    assert len(list((folder / "cost").iterdir())) == 3 and not waiting_jobs([folder])
    assert {path.parent for path in run_folders(folder)} == {folder} and len(run_folders(folder)) == 6  # those of arms
    assert "++trainer.val_check_interval=null" in MEASURING and "++task.validations=1" in MEASURING
    measured, jobs = (
        [json.loads((run / "attempts.txt").read_text()) for run in runs]
        for runs in ((folder / "cost").iterdir(), run_folders(folder))
    )
    threads = {it["threads"] for it in jobs}
    assert {it["threads"] for it in measured} == threads
    assert len({tuple(it["cores"]) for it in measured}) == 1 and measured[0]["cores"] in [it["cores"] for it in jobs]
    assert started == 3 + 6
    costs = report(folder)["cost"]
    sweep(tmp_path, *ARMS, "cost=time")
    assert len(events(folder, "start")) == started and report(folder)["cost"] == costs
    more = [it.replace("hnas", "hnas,sink").replace("seed=1,2", "seed=2,1,3") for it in ARMS]
    sweep(tmp_path, *more, "cost=time")  # another arm and another seed: only the arm is measured
    assert len(events(folder, "start")) == started + 1 + 3 + 3
    assert [it for it in report(folder)["cost"]["arms"] if "sink" not in it["arm"]] == costs["arms"]


@pytest.mark.slow
def test_another_budget_needs_another_folder(tmp_path):
    """softmax, which sets the budget, comes later: the runs of dnas and hnas would be arms at two budgets."""
    others, cheaper = ARMS[0].replace("softmax,", ""), "price=0.1,0.2"
    sweep(tmp_path, others, *ARMS[1:], "cost=time")
    sweep(tmp_path, *ARMS, "cost=time")  # softmax at the same price: the same budget
    assert len(run_folders(tmp_path / "s")) == 3 * 2
    said = sweep(tmp_path, ARMS[0], cheaper, *ARMS[2:], "cost=time", code=2)
    assert "dnas price=0.1 would spend 100 CPU seconds, and attention=dnas has 200; choose another folder" in said
    assert len(run_folders(tmp_path / "s")) == 3 * 2


def test_jobs_of_another_budget_that_have_not_started_are_set_aside(tmp_path):
    journal = Journal(tmp_path)
    journal.add("job", "a", key="a", label="a", overrides=["attention=dnas", "seed=1", "++trainer.max_steps=9"])
    refuse_other_budget(journal, [("attention=dnas", "seed=1", "++trainer.max_steps=9")])
    refuse_other_budget(journal, [("attention=dnas", "seed=2", "++trainer.max_steps=8")])
    assert [job.name for job in journal.jobs()] == ["a"]
    refuse_other_budget(journal, [("tags=[x]", "seed=1", "attention=dnas", "++trainer.max_steps=8")])
    assert not journal.jobs()


@pytest.mark.slow
def test_an_arm_that_cannot_be_measured_ends_the_sweep_with_the_reason(tmp_path):
    said = sweep(tmp_path, *ARMS, "cost=time", "code=1", "retries=0", code=2)
    assert "error: cost=time: the run that measures attention=dnas has no result: error: this job cannot be run" in said
    assert not run_folders(tmp_path / "s")
    started = len(events(tmp_path / "s", "start"))
    again = sweep(tmp_path, *ARMS, "cost=time", "code=1", "retries=0", code=2)
    assert len(events(tmp_path / "s", "start")) == 2 * started, "each one is tried again"
    assert "has no result: error: this job cannot be run" in again


def test_times_of_different_machines_are_not_compared(tmp_path):
    jobs = [Job(it, it, it, (), tmp_path / "cost" / it, arm=it) for it in ("softmax", "dnas", "hnas")]
    for job, cores in zip(jobs, (2, 2, 64), strict=True):
        job.folder.mkdir(parents=True)
        write_machine(job, cores, threads=2)
    check_machines(jobs[:2], "time")
    check_machines(jobs, "flops")
    for cores, threads in ((64, 2), (2, 1)):
        write_machine(jobs[2], cores, threads)
        measured = f"softmax on 2 CPU cores with 2 threads and hnas on {cores} CPU cores with {threads} threads"
        with pytest.raises(RunError, match=f"{measured}.*Delete {tmp_path / 'cost'}"):
            check_machines(jobs, "time")


def write_machine(job, cores, threads):
    (job.folder / "cost.json").write_text(json.dumps({"device": "cpu"}))
    environment = {"cpu_cores": cores, "cpu_threads": threads, "gpus": []}
    (job.folder / "environment.json").write_text(json.dumps(environment))


@pytest.mark.slow
def test_arms_are_tuned_at_equal_cost(tmp_path):
    arms = [it.replace("price=0.2", "price=0.1,0.2").replace("seed=1,2", "seed=110") for it in ARMS]
    sweep(tmp_path, *arms, "cost=time", "tune=x=0.2,0.3,0.4", "tune_seeds=100", "jobs=6")
    found = report(tmp_path / "s")
    updates = {it["arm"]: it["updates"] for it in found["cost"]["arms"]}
    assert len(updates) == 6 and set(updates.values()) == {1000, 500}
    assert {it["purpose"] for it in found["jobs"]} == {"tune", "compare"} and len(found["jobs"]) == 6 * 4
    for job in found["jobs"]:
        assert f"trainer.max_steps={updates[job['arm']]}" in job["overrides"]
