"""The watchdog: what hangs is ended with its stacks on disk, and what is only slow is not."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import processes
import pytest
import runs
import torch

from attnorm.errors import Interrupted
from attnorm.run.writing import RunWriter
from attnorm.tasks.pairs import PairCollator
from attnorm.tasks.ranks import Ranks
from attnorm.training.callbacks import run_files, watchdog
from attnorm.training.callbacks.throughput import Throughput
from attnorm.training.module import TrainingModule
from attnorm.training.processes import Peers

LIMIT = "run.hang_timeout=1.5"
LONG = ("task.max_steps=60", "task.validations=1", "callbacks.attention_stats.every_n_steps=0")


def at_update(step: int, action):
    """A replacement of `training_step` that calls `action` before this update."""
    original = TrainingModule.training_step

    def training_step(self, batch, index):
        if self.trainer.global_step == step:
            action()
        return original(self, batch, index)

    return training_step


def sleeps_for_ever():
    time.sleep(1000)


def holds_the_interpreter_for_ever():
    time.sleep(1.2)  # until the thread has looked once more
    ctypes.PyDLL(None).sleep(1000)  # unlike CDLL, without giving up the lock


@pytest.mark.slow
def test_a_run_that_hangs_is_ended_with_its_stack_on_disk(monkeypatch, tmp_path):
    monkeypatch.setattr(TrainingModule, "training_step", at_update(20, sleeps_for_ever))
    started = time.monotonic()
    assert processes.forked(lambda: runs.tiny_run(tmp_path, *LONG, LIMIT)) == 1
    assert time.monotonic() - started < 10
    stack = (tmp_path / "stacks/rank_0.txt").read_text()
    assert "no progress for 1.5 seconds while training" in stack and "in sleeps_for_ever" in stack
    record = runs.summary_of(tmp_path)
    assert record["state"] == "failed" and "no progress for 1.5 seconds" in record["why"] and "stacks" in record["why"]


@pytest.mark.slow
def test_a_run_that_hangs_in_c_code_is_ended_by_faulthandler(monkeypatch, tmp_path):
    monkeypatch.setattr(TrainingModule, "training_step", at_update(20, holds_the_interpreter_for_ever))
    monkeypatch.setattr(watchdog, "GRACE", 0.5)
    assert processes.forked(lambda: runs.tiny_run(tmp_path, *LONG, LIMIT)) == 1
    stack = (tmp_path / "stacks/rank_0.txt").read_text()
    assert "Timeout" in stack and "in holds_the_interpreter_for_ever" in stack


@pytest.mark.slow
def test_a_hanging_data_worker_is_ended_with_its_run(monkeypatch, tmp_path):
    original, number = PairCollator.__getitem__, tmp_path / "worker"

    def get(self, part):
        if torch.utils.data.get_worker_info() is not None and 30 in part.rows:
            number.write_text(str(os.getpid()))
            sleeps_for_ever()
        return original(self, part)

    monkeypatch.setattr(PairCollator, "__getitem__", get)
    monkeypatch.setattr(watchdog, "FIRST_BATCHES", 0)
    assert processes.forked(lambda: runs.tiny_run(tmp_path / "run", *LONG, LIMIT, "data.num_workers=1")) == 1
    assert "while training" in (tmp_path / "run/stacks/rank_0.txt").read_text()
    end = time.monotonic() + 5
    while processes.is_running(number.read_text()) and time.monotonic() < end:
        time.sleep(0.05)
    assert not processes.is_running(number.read_text())


@pytest.mark.slow
def test_slow_validations_and_first_batches_are_not_ended(monkeypatch, tmp_path):
    original = TrainingModule.on_validation_epoch_end

    def slow(self):
        time.sleep(1.0)
        original(self)

    monkeypatch.setattr(TrainingModule, "on_validation_epoch_end", slow)
    monkeypatch.setattr(TrainingModule, "training_step", at_update(0, lambda: time.sleep(1.0)))
    typed = ("run.hang_timeout=0.5", "task.max_steps=2", "task.validations=1")
    assert processes.forked(lambda: runs.tiny_run(tmp_path, *typed)) == 0
    assert runs.summary_of(tmp_path)["state"] == "finished"


def test_the_folder_of_stacks_may_vanish_while_a_process_leaves_it(monkeypatch, tmp_path):
    """The other process of a job removes its empty file and the folder at the same moment."""
    dog = watchdog.Watchdog(tmp_path, 100.0, print)
    dog.folder.mkdir()
    path = dog.folder / "rank_0.txt"
    dog.file, unlink = path.open("a", encoding="utf-8"), Path.unlink

    def unlinked_by_both(self: Path) -> None:
        unlink(self)
        self.parent.rmdir()

    monkeypatch.setattr(Path, "unlink", unlinked_by_both)
    watchdog.faulthandler.register(watchdog.DUMP, file=dog.file)
    with dog:
        pass
    assert not dog.folder.exists()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
def test_a_rank_that_ends_the_job_reports_it_before_it_kills_the_first_rank(monkeypatch, tmp_path):
    """The first rank may go on when it is resumed, and then neither notices the hang nor reports it."""
    ignoring = f"signal.signal({int(watchdog.DUMP)}, signal.SIG_IGN); print('ready', flush=True); time.sleep(100)"
    command = [sys.executable, "-c", f"import signal, time; {ignoring}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as first:
        first.stdout.readline()
        reports = []
        dog = watchdog.Watchdog(tmp_path, 100.0, lambda why: reports.append((why, first.poll())))
        dog.ranks, dog.peers = Ranks(1, 2), Peers({0: os.pidfd_open(first.pid)})
        monkeypatch.setattr(watchdog, "GRACE", 0.1)
        monkeypatch.setattr(os, "_exit", lambda code: None)
        dog._end("no progress", [])
        assert first.wait() == -signal.SIGKILL
    assert reports == [(f"no progress; see {dog.folder}", None)]
    dog.peers.forget()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
@pytest.mark.parametrize("error", [RuntimeError("connection closed"), Interrupted(15, "SIGTERM")])
def test_an_exception_after_the_end_of_the_first_rank_is_reported(tmp_path, error):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as first:
        reports = []
        dog = watchdog.Watchdog(tmp_path, 100.0, reports.append)
        dog.ranks, dog.peers = Ranks(1, 2), Peers({0: os.pidfd_open(first.pid)})
        first.kill()
        assert dog.peers.ended(10.0) == [0]
        dog._record(error)
    assert reports == [f"rank 0 ended; see {dog.folder}"]


def test_another_rank_writes_the_summary_only_in_place_of_the_first(monkeypatch, tmp_path):
    monkeypatch.setattr(run_files, "is_first_rank", lambda: False)
    run = RunWriter(tmp_path)
    assert run.claim()
    other = run_files.RunFiles(run, Throughput())
    with other:
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
    other.fail("hangs")
    assert runs.summary_of(tmp_path)["why"] == "hangs"
    other.fail("hangs again")
    assert runs.summary_of(tmp_path)["why"] == "hangs"


@pytest.mark.slow
def test_an_exception_is_recorded_in_the_summary_and_with_its_traceback(monkeypatch, tmp_path):
    def crash():
        raise OSError("no space left on device")

    monkeypatch.setattr(TrainingModule, "training_step", at_update(2, crash))
    with pytest.raises(OSError, match="no space left"):
        runs.tiny_run(tmp_path)
    stack = (tmp_path / "stacks/rank_0.txt").read_text()
    assert stack.count("OSError: no space left on device") == 1 and "in crash" in stack
    summary = runs.summary_of(tmp_path)
    assert (summary["state"], summary["why"]) == ("failed", "OSError: no space left on device")
    assert {"wall_seconds", "peak_memory", "data"} <= set(summary)


@pytest.mark.slow
def test_null_means_no_limit(monkeypatch, tmp_path):
    monkeypatch.setattr(TrainingModule, "training_step", at_update(1, lambda: time.sleep(1.0)))
    monkeypatch.setattr(watchdog, "FIRST_BATCHES", 0)
    assert processes.forked(lambda: runs.tiny_run(tmp_path, "run.hang_timeout=null")) == 0


def test_the_limit_is_short_in_training_and_long_elsewhere(tmp_path):
    dog = watchdog.Watchdog(tmp_path, 100.0, print)
    limits = {}
    for name in ("on_fit_start", "on_train_batch_start", "on_validation_start", "on_save_checkpoint", "on_train_end"):
        getattr(dog, name)()
        limits[name] = dog.limit
    assert set(limits.values()) == {1000.0}  # the first batches may have to be compiled
    for _ in range(watchdog.FIRST_BATCHES):
        dog.on_train_batch_end()
    dog.on_train_batch_start()
    assert dog.limit == 100.0


@pytest.mark.slow
def test_a_process_sees_the_end_of_its_peers(tmp_path):
    """Each of three ranks ends a second after the one before it."""

    def wait(rank: int) -> None:
        torch.distributed.init_process_group("gloo")
        peers, seen = Peers.of(Ranks.present()), []
        assert peers.descriptors.keys() - {-1} == {0, 1, 2} - {rank}
        assert peers.ended(0) == []
        while len(seen) < rank:
            seen = [ended for ended in peers.ended(5.0) if ended < rank]
        (tmp_path / str(rank)).write_text(str(seen))
        time.sleep(0.3)

    processes.together(3, wait)
    assert [(tmp_path / str(rank)).read_text() for rank in range(3)] == ["[]", "[0]", "[0, 1]"]
