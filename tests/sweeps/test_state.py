"""What is written down about a sweep, and how cores and GPUs are divided among its jobs."""

import os

import pytest

from attnorm.run.folder import JOB_LOCK, FolderLock
from attnorm.sweeps.job_record import JobResult, ranked
from attnorm.sweeps.jobs import Job
from attnorm.sweeps.launchers.local import Places, environment
from attnorm.sweeps.state import JobState, Journal, holders, state_of_job


def job(folder, **values):
    return Job("a", "0" * 64, "x=1", ("++x=1",), folder / "a", **values)


def test_a_line_that_was_torn_by_a_kill_is_left_out_and_the_next_one_is_whole(tmp_path):
    journal = Journal(tmp_path)
    journal.add("start", "a", attempt=1)
    with open(journal.path, "ab") as file:
        file.write(b'{"event": "end", "na')
    again = Journal(tmp_path)
    again.add("end", "a", code=1, failure=True)
    assert [it["event"] for it in Journal(tmp_path).of("a", "start", "end")] == ["start", "end"]
    assert Journal(tmp_path).failed["a"] == again.failed["a"] == 1


def test_failures_count_until_the_sweep_ends_by_itself(tmp_path):
    journal = Journal(tmp_path)
    for code in (1, 1):
        journal.add("start", "a")
        journal.add("end", "a", code=code, failure=True)
    assert Journal(tmp_path).failed["a"] == 2  # the sweep was killed
    journal.add("close", code=1)
    assert Journal(tmp_path).failed["a"] == 0 and len(Journal(tmp_path).of("a", "start")) == 2


def test_the_state_of_a_job_is_that_of_its_folder(tmp_path):
    one, journal = job(tmp_path), Journal(tmp_path)
    one.folder.mkdir()
    assert state_of_job(one, journal) is JobState.WAITING
    journal.add("end", "a", code=2, failure=True)
    assert state_of_job(one, journal) is JobState.FAILED  # before it had a configuration
    (one.folder / "run.json").touch()
    assert state_of_job(one, journal) is JobState.KILLED
    (one.folder / "summary.json").write_text('{"state": "interrupted"}')
    assert state_of_job(one, journal) is JobState.INTERRUPTED
    (one.folder / "summary.json").write_text('{"state": "finished"}')
    assert state_of_job(one, journal) is JobState.FINISHED
    for name in (JOB_LOCK, "run.lock"):
        lock = FolderLock(one.folder, name)
        assert lock.acquire()
        assert state_of_job(one, journal) is JobState.RUNNING
        lock.release()


def test_holders_of_a_lock_are_found(tmp_path):
    lock = FolderLock(tmp_path, JOB_LOCK)
    assert lock.acquire() and lock.descriptor is not None
    assert holders(lock.path) == []  # this process itself does not count
    if (child := os.fork()) == 0:
        os.read(os.pipe()[0], 1)
    try:
        assert holders(lock.path) == [child]
        lock.release()
        assert FolderLock(tmp_path, JOB_LOCK).holder() is not None  # the child still has it
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert FolderLock(tmp_path, JOB_LOCK).holder() is None and holders(lock.path) == []


@pytest.mark.parametrize(("jobs", "cores"), [(1, 8), (2, 8), (3, 8), (8, 8), (5, 7)])
def test_cores_are_divided_among_the_jobs(jobs, cores):
    places = Places(jobs, range(cores))
    taken = [places.take() for _ in range(jobs)]
    used = [core for place in taken for core in place.cores]
    assert sorted(used) == list(range(cores))
    sizes = {len(place.cores) for place in taken}
    assert max(sizes) - min(sizes) <= 1 and places.take() is None
    places.give_back(taken[0])
    assert places.take() == taken[0]


def test_more_jobs_than_cores_or_gpus_share_them_evenly_and_others_have_gpus_of_their_own():
    places = Places(5, [4, 6])
    assert [places.take().cores for _ in range(5)] == [(4,), (6,), (4,), (6,), (4,)]
    places = Places(4, range(4), ["0", "1"])
    assert [places.take(1).gpus for _ in range(4)] == [("0",), ("1",), ("0",), ("1",)]
    places = Places(4, range(8), ["0", "1", "2", "3"])
    first, second = places.take(2), places.take(1)
    assert first.gpus == ("0", "1") and second.gpus == ("2",)
    assert places.take(2) is None  # only one is left
    assert places.take(1).gpus == ("3",) and places.take(1) is None
    places.give_back(first)
    assert places.take(1, {"slot": 0, "gpus": ["1"]}).gpus == ("1",)  # one that an earlier sweep has started


def test_threads_follow_from_cores_and_processes(monkeypatch, tmp_path):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    place = Places(1, range(8), ["3"]).take(1)
    assert environment(job(tmp_path), place) == {"OMP_NUM_THREADS": "8", "CUDA_VISIBLE_DEVICES": "3"}
    assert environment(job(tmp_path, devices=3), place)["OMP_NUM_THREADS"] == "2"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert environment(job(tmp_path), place)["OMP_NUM_THREADS"] == "1"


def test_results_are_ranked_by_state_and_value(tmp_path):
    found = (("failed", None), ("finished", 1.0), ("finished", None), ("killed", 0.1), ("finished", 3.0))
    rest = (1, 1.0, None, None, {})
    values = [JobResult(job(tmp_path), JobState(state), 1, 0, None, "m", value, *rest) for state, value in found]
    assert [it.best_value for it in ranked(values, "max")] == [3.0, 1.0, None, 0.1, None]
    assert [it.best_value for it in ranked(values, "min")] == [1.0, 3.0, None, 0.1, None]
