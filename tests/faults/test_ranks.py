"""A process that dies or hangs ends the whole job: exit code, stacks of what hangs, no process left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import runs

from attnorm.run.checkpoint import LAST
from attnorm.run.folder import RunState
from attnorm.run.run import Run

pytestmark = [
    pytest.mark.training,
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux"),
]
TIMEOUT = 4  # seconds without progress
ENDS = 20.0  # seconds from the fault to the end of the job: the timeout, Lightning's five seconds, and a slow machine
DOORS = {
    "launcher": [sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"],
}


class Job:
    """A training run of two processes, in a folder of its own, by which its processes are found."""

    def __init__(self, folder: Path, door: str, *typed: str):
        self.folder = folder
        self.printed = open(folder / "printed.txt", "w+")  # noqa: SIM115 - closed with the process
        arguments = (
            *runs.tiny_overrides(),
            "task.max_steps=1000000",
            "task.validations=1",
            "callbacks.attention_stats.every_n_steps=0",
            f"run.hang_timeout={TIMEOUT}",
            f"paths.log_dir={folder}/logs",
        )
        self.process = subprocess.Popen(
            [*DOORS[door], str(runs.ROOT / "train.py"), *arguments, *typed],
            stdout=self.printed,
            stderr=self.printed,
            start_new_session=True,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        for number in self.living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        self.process.wait()

    def living(self) -> dict[int, str]:
        """The processes in the folder of the test by number, with the rank of each, or "launcher"."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError):
                _, _, fields = (path / "stat").read_text().rpartition(")")
                if fields.split()[0] not in "ZX" and (path / "cwd").readlink() == self.folder.resolve():
                    words = (path / "environ").read_bytes().decode(errors="replace").split("\0")
                    variables = dict(word.split("=", 1) for word in words if "=" in word)
                    launcher = "distributed.run" in (path / "cmdline").read_text()
                    found[int(path.name)] = "launcher" if launcher else variables.get("LOCAL_RANK", "0")
        return found

    def number_of(self, rank: str) -> int:
        return next(number for number, found in self.living().items() if found == rank)

    def run(self) -> Path:
        """The run folder."""
        [config] = (self.folder / "logs").rglob("metrics.csv")
        return config.parent

    def trained(self, steps: int = 15) -> "Job":
        """Waits until so many updates have been made."""
        end = time.monotonic() + 90
        while not any(f"\n{steps}," in file.read_text() for file in self.folder.rglob("metrics.csv")):
            assert time.monotonic() < end and self.process.poll() is None, self.text()
            time.sleep(0.1)
        return self

    def ended(self, most: float = ENDS) -> float:
        """Waits until no process is left, for at most so many seconds; returns how many it took."""
        start = time.monotonic()
        while left := self.living():
            assert time.monotonic() < start + most, f"{left} are left\n{self.text()}"
            self.process.poll()
            time.sleep(0.05)
        return time.monotonic() - start

    def text(self) -> str:
        self.printed.flush()
        return (self.folder / "printed.txt").read_text()[-20_000:]


@pytest.mark.parametrize(
    ("door", "strategy", "rank"), [("launcher", "ddp", "0"), ("torchrun", "ddp", "1"), ("launcher", "fsdp", "1")]
)
def test_a_rank_that_dies_ends_the_job(tmp_path, door, strategy, rank):
    with Job(tmp_path, door, f"trainer={strategy}", "trainer.devices=2", "trainer.accelerator=cpu").trained() as job:
        os.kill(job.number_of(rank), signal.SIGKILL)
        seconds, code = job.ended(), job.process.wait()
        print(f"{door} {strategy} rank {rank} killed: {seconds:.1f} s, exit code {code}")
        assert code != 0
        assert Run(job.run()).state.is_unfinished


HANG = """
import ctypes, os, time
import pytorch_lightning as pl

class Hang(pl.Callback):
    def __init__(self, rank: int, locked: bool):
        self.rank, self.locked = rank, locked

    def on_train_batch_start(self, trainer, module, batch, index):
        if trainer.global_step == 30 and trainer.global_rank == self.rank:
            ctypes.PyDLL(None).sleep(1000) if self.locked else time.sleep(1000)
"""


@pytest.mark.parametrize(("door", "rank", "locked"), [("launcher", 0, False), ("torchrun", 1, True)])
def test_a_rank_that_hangs_ends_the_job_with_its_stack(tmp_path, door, rank, locked):
    (tmp_path / "hanging.py").write_text(HANG)
    hang = f"+callbacks.hang={{_target_: hanging.Hang, rank: {rank}, locked: {locked}}}"
    with Job(tmp_path, door, "trainer=ddp", "trainer.devices=2", "trainer.accelerator=cpu", hang).trained() as job:
        print(f"{door} rank {rank} hangs: {job.ended():.1f} s")
        assert job.process.wait() != 0
        printed = job.text()
        assert "Timeout (0:00:04)!" in printed and 'hanging.py", line' in printed, printed
        assert Run(job.run()).state.is_unfinished


@pytest.mark.parametrize(("rank", "number"), [("0", signal.SIGKILL), ("1", signal.SIGSTOP)])
def test_a_rank_that_dies_or_stops_while_it_starts_ends_the_other_one(tmp_path, rank, number):
    typed = ("trainer=ddp", "trainer.devices=2", "trainer.accelerator=cpu", "run.hang_timeout=1.5")  # tenfold at first
    with Job(tmp_path, "launcher", *typed) as job:
        end = time.monotonic() + 90
        while len(living := job.living()) < 2 or rank not in living.values():  # a new process is not a rank at once
            assert time.monotonic() < end and job.process.poll() is None, job.text()
            time.sleep(0.05)
        os.kill(job.number_of(rank), number)
        if number == signal.SIGKILL:
            job.ended(ENDS + 60.0)  # the other one may still import its libraries
        assert job.process.wait(timeout=120) != 0


def test_the_end_of_the_launcher_saves_and_ends_its_ranks(tmp_path):
    with Job(tmp_path, "torchrun", "trainer=ddp", "trainer.devices=2").trained() as job:
        os.kill(job.number_of("launcher"), signal.SIGKILL)
        print(f"launcher killed: {job.ended():.1f} s")
        assert Run(job.run()).state is RunState.INTERRUPTED and Run(job.run()).checkpoint_file(LAST).exists()
