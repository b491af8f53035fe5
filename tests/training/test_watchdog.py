"""The watchdog: what hangs is ended with its stacks printed, and what is only slow is not."""

import ctypes
import os
import time

import processes
import pytest
import runs
import torch

from attnorm.run.folder import RunState
from attnorm.run.run import Run
from attnorm.tasks.pairs import PairCollator
from attnorm.training.callbacks import watchdog
from attnorm.training.module import TrainingModule

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
    ctypes.PyDLL(None).sleep(1000)  # unlike CDLL, without giving up the lock


@pytest.mark.slow
@pytest.mark.parametrize("hang", [sleeps_for_ever, holds_the_interpreter_for_ever])
def test_a_run_that_hangs_is_ended_with_its_stack_printed(monkeypatch, capfd, tmp_path, hang):
    monkeypatch.setattr(TrainingModule, "training_step", at_update(20, hang))
    assert processes.forked(lambda: runs.tiny_run(tmp_path, *LONG, LIMIT)) == 1
    printed = capfd.readouterr().err
    assert "Timeout (0:00:01.5" in printed and f"in {hang.__name__}" in printed
    assert Run(tmp_path).state is RunState.KILLED


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


@pytest.mark.slow
def test_null_means_no_limit(monkeypatch, tmp_path):
    monkeypatch.setattr(TrainingModule, "training_step", at_update(1, lambda: time.sleep(1.0)))
    monkeypatch.setattr(watchdog, "FIRST_BATCHES", 0)
    assert processes.forked(lambda: runs.tiny_run(tmp_path, "run.hang_timeout=null")) == 0


def test_the_limit_is_short_in_training_and_long_elsewhere(monkeypatch):
    limits = []
    monkeypatch.setattr(watchdog.faulthandler, "dump_traceback_later", lambda seconds, **_: limits.append(seconds))
    dog = watchdog.Watchdog(100.0)
    dog.arm()
    for _ in range(watchdog.FIRST_BATCHES + 1):
        dog.on_train_batch_start()
    for name in ("on_validation_start", "on_save_checkpoint", "on_train_end", "on_exception"):
        getattr(dog, name)()
    with dog:
        list(watchdog.progress.tracked([1], "scoring"))
    assert limits == [1000.0] * 11 + [100.0] + [1000.0] * 5  # the first batches may have to be compiled
    list(watchdog.progress.tracked([1], "scoring"))
    assert len(limits) == 17
