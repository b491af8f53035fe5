"""Stopping: every signal at any moment gives its exit code, time limits say so, and a sweep ends with its job."""

import contextlib
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import runs
import torch
from marks import slow

from attnorm.cli import errors
from attnorm.errors import SIGNALS
from attnorm.run.run import Run
from attnorm.tasks.task import Task
from attnorm.training.callbacks import checkpointing
from attnorm.training.callbacks import throughput as callbacks
from attnorm.training.callbacks.graceful_stop import EarlyStopping, GracefulStop, TimeLimit

BUSY = ("attention=hnas", "data.train_size=60", "task.max_steps=8", "task.validations=2")


def kill_before(monkeypatch, owner: object, name: str, *numbers: signal.Signals) -> None:
    """Sends signals to this process at the first call of `owner.name`."""
    left = list(numbers)

    def send(*_, **__) -> None:
        while left:
            os.kill(os.getpid(), left.pop(0))

    runs.before(monkeypatch, owner, name, send)


def code_of(folder, *overrides: str) -> int:
    """The exit code of a tiny run."""

    def job() -> int:
        runs.tiny_run(folder, *BUSY, *overrides)
        return 0

    return errors.exit_code(job)


MOMENTS = {
    "before the data are read": (Task, "splits"),
    "when the trainer starts": (checkpointing.ResumeState, "on_fit_start"),
    "before the first update": (callbacks.Throughput, "on_train_batch_start"),
    "while it is scored": (Task, "evaluate"),
}
PAIRS = [*itertools.product(enumerate(MOMENTS), enumerate(SIGNALS))]


@pytest.mark.parametrize(  # by default, each moment and each signal once
    ("moment", "number"), [(m, s) if i == j % len(MOMENTS) else slow(m, s) for (i, m), (j, s) in PAIRS]
)
def test_a_signal_gives_its_exit_code_at_any_moment(monkeypatch, tmp_path, capsys, moment, number):
    handlers = list(map(signal.getsignal, SIGNALS))
    kill_before(monkeypatch, *MOMENTS[moment], number)
    assert code_of(tmp_path) == 128 + number
    summary = runs.summary_of(tmp_path)
    assert (summary["state"], summary["why"]) == ("interrupted", f"Interrupted: stopped by {number.name}")
    last = tmp_path / "checkpoints/last.ckpt"
    saved = moment in ("before the first update", "while it is scored")  # the first one waits for the update
    end = f"; to continue it: attnorm train resume={tmp_path}" if saved else " before a checkpoint was saved"
    assert last.exists() == saved
    assert capsys.readouterr().err == f"stopped by {number.name}{end}\n"
    assert list(map(signal.getsignal, SIGNALS)) == handlers


def test_a_signal_inside_a_destructor_stops_the_step_in_which_it_came(monkeypatch, tmp_path, capsys):
    """Python ignores what is raised there."""

    class Trap:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)

    def wait(*_, **__) -> None:
        Trap()
        time.sleep(5)
        pytest.fail("the signal was lost")

    runs.before(monkeypatch, Task, "splits", wait)
    assert code_of(tmp_path) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "stopped by SIGTERM before a checkpoint was saved\n"


@pytest.mark.slow
def test_a_second_interrupt_stops_at_once(monkeypatch, tmp_path):
    kill_before(monkeypatch, callbacks.Throughput, "on_train_batch_end", signal.SIGINT, signal.SIGINT)
    assert code_of(tmp_path) == 130
    assert runs.load(tmp_path)["global_step"] == 0  # the update in progress was not saved


@pytest.mark.slow
def test_signals_to_data_workers_are_ignored(monkeypatch, tmp_path):
    """A terminal or a cluster sends them to every process."""
    hit = []

    def send(self, trainer, *_) -> None:
        for worker in multiprocessing.active_children():
            hit.append(worker.pid)
            for number in SIGNALS:
                os.kill(worker.pid, number)

    runs.before(monkeypatch, callbacks.Throughput, "on_train_batch_end", send)
    assert code_of(tmp_path, "data.num_workers=1") == 0
    assert hit
    assert runs.summary_of(tmp_path)["state"] == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("pieces", [1, slow(3)])
def test_a_run_whose_time_is_up_is_not_finished_and_can_be_resumed(monkeypatch, tmp_path, pieces):
    overrides = (*BUSY, f"trainer.accumulate_grad_batches={pieces}")
    runs.tiny_run(tmp_path / "whole", *overrides)
    with monkeypatch.context() as patch:
        elapsed = lambda self, *_: 100.0 * (self.seen >= 2 * pieces + 1)  # noqa: E731 - in the middle of update 3
        patch.setattr(TimeLimit, "time_elapsed", elapsed)
        patch.setattr(TimeLimit, "seen", 0, raising=False)
        runs.before(patch, TimeLimit, "on_train_batch_end", lambda self, *_: setattr(self, "seen", self.seen + 1))
        summary = runs.tiny_run(tmp_path / "first", *overrides, "trainer.max_time=00:00:00:50")
    assert summary["state"] != "finished"
    assert summary["why"] == "trainer.max_time was reached after 3 of 8 updates"
    assert runs.load(tmp_path / "first")["global_step"] == 3
    runs.tiny_run(tmp_path / "second", *overrides, f"ckpt_path={tmp_path}/first/checkpoints/last.ckpt")
    assert runs.unequal(runs.parameters(tmp_path / "whole"), runs.parameters(tmp_path / "second")) == []


def test_a_run_that_continues_has_the_whole_time_again_and_the_patience_that_is_set_now():
    first, second = TimeLimit("00:00:00:50"), TimeLimit("00:00:00:50")
    first._start_time["train"], first._end_time["train"] = 0.0, 60.0  # as Lightning's `Timer` keeps them
    assert first.time_remaining() < 0
    second.load_state_dict(first.state_dict())
    assert second.time_remaining() == 50
    before, now = EarlyStopping("val/loss", "min", 1), EarlyStopping("val/loss", "min", 5)
    before.wait_count, before.best_score = 1, torch.tensor(2.0)
    now.load_state_dict(before.state_dict())
    assert (now.patience, now.wait_count, now.best_score) == (5, 1, 2.0)


class Scripted(pl.LightningModule):
    """One update and one validation per epoch, whose losses are given."""

    def __init__(self, losses):
        super().__init__()
        self.losses, self.weight = losses, torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch):
        return self.weight

    def validation_step(self, batch):
        self.log("val/loss", self.losses[self.current_epoch])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)

    def train_dataloader(self):
        return torch.utils.data.DataLoader([0])

    val_dataloader = train_dataloader


@pytest.mark.parametrize("cls", [EarlyStopping, pl.callbacks.EarlyStopping])
@pytest.mark.parametrize(
    ("losses", "least", "epochs"),
    [
        ((5.0, 6.0, 4.0, 3.0, 2.0, 1.0), 4, 6),  # it improves after it has been stopped for
        ((5.0, 6.0, 6.0, 6.0, 6.0, 6.0), 4, 4),
        ((5.0, 6.0, 4.0, 3.0, 2.0, 1.0), None, 2),
    ],
)
def test_early_stopping_before_the_smallest_number_of_epochs_is_decided_anew(tmp_path, cls, losses, least, epochs):
    stopping: Any = cls("val/loss", mode="min", patience=1)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    length: Any = {"min_epochs": least, "max_epochs": len(losses), "val_check_interval": 1}
    trainer = pl.Trainer(accelerator="cpu", callbacks=[stopping, GracefulStop(Run(tmp_path))], **length, **quiet)
    trainer.fit(Scripted(losses))
    assert trainer.current_epoch == epochs


@pytest.mark.slow
def test_time_that_is_up_before_the_first_update_is_said(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(TimeLimit, "time_elapsed", lambda *_: 100.0)
    assert code_of(tmp_path, "trainer.max_time=00:00:00:50") == 2
    assert "error: trainer.max_time: was reached before the first update" in capsys.readouterr().err
    assert runs.summary_of(tmp_path)["state"] != "finished"


@contextlib.contextmanager
def on_a_terminal_that_closes():
    """A terminal that ends with its connection, which sends SIGHUP to the process that it controls."""
    ours, terminal = os.openpty()
    own = f"import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(1, termios.TIOCSCTTY); {AS_COMMAND}"
    yield {"stdout": terminal, "stderr": terminal}, own, lambda: (os.close(terminal), os.close(ours))


@contextlib.contextmanager
def into_a_pipe_that_closes():
    """`train | head`"""
    reading, writing = os.pipe()
    yield {"stdout": writing, "stderr": subprocess.PIPE}, AS_COMMAND, lambda: (os.close(writing), os.close(reading))


@contextlib.contextmanager
def under_nohup_without_output():
    """A hang-up does not stop a run that ignores it from the start; standard output is closed, as by `>&-`."""
    ignoring = f"import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); {AS_COMMAND}"
    yield {"preexec_fn": lambda: os.close(1)}, ignoring, None


AS_COMMAND = "from attnorm.cli.main import main; import sys; sys.exit(main())"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output", "code"),
    [(on_a_terminal_that_closes, 129), (into_a_pipe_that_closes, 141), (under_nohup_without_output, 0)],
)
def test_a_lost_terminal_or_reader_lets_the_run_save(tmp_path, output, code):
    steps = 100 if code == 0 else 100_000
    typed = (*runs.tiny_overrides(), *runs.of("task", f"max_steps={steps} validations={steps // 50}"))
    typed += (f"hydra.run.dir={tmp_path}",)
    with output() as (streams, start, closes):
        process = subprocess.Popen([sys.executable, "-c", start, "train", *typed], stdin=subprocess.DEVNULL, **streams)
        try:
            ends = time.monotonic() + 100
            while not any("train/loss" in file.read_text() for file in tmp_path.glob("metrics.csv")):
                assert time.monotonic() < ends and process.poll() is None
                time.sleep(0.1)
            closes() if closes else process.send_signal(signal.SIGHUP)
            assert process.wait(timeout=100) == code
        finally:
            process.kill()
    assert runs.load(tmp_path)["global_step"] > 0  # not the checkpoint before the first update
    assert runs.summary_of(tmp_path)["state"] == ("finished" if code == 0 else "interrupted")


def living(group: int) -> list[str]:
    """The processes of a process group that have not ended."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # ended in the meantime
            name, _, fields = file.read_text().rpartition(")")
            state, _, process_group, *_ = fields.split()
            if int(process_group) == group and state != "Z":
                found.append(name)
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see which processes are alive")
def test_a_signal_to_all_ranks_stops_them_without_a_traceback(tmp_path):
    """As a terminal or a cluster sends it, to every process of the group."""
    typed = ("trainer=ddp", *runs.tiny_overrides(), "trainer.devices=2", "task.max_steps=5000", "task.validations=1")
    process = subprocess.Popen(
        [sys.executable, str(runs.ROOT / "train.py"), *typed, f"paths.log_dir={tmp_path}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    ends = time.monotonic() + 100
    while not any("train/loss" in file.read_text() for file in tmp_path.rglob("metrics.csv")):
        assert time.monotonic() < ends and process.poll() is None
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGTERM)
    _, printed = process.communicate(timeout=60)
    assert (process.returncode, printed.count("stopped by")) == (143, 1)
    assert "Traceback" not in printed
    ends = time.monotonic() + 30
    while left := living(process.pid):
        assert time.monotonic() < ends, left  # a rank was left behind
        time.sleep(0.2)
