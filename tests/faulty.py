"""Runs that are disturbed on purpose, each in a process of its own."""

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path

import runs

from attnorm.cli.errors import exit_code
from attnorm.cli.train import resume_in
from attnorm.run.checkpoint import read_checkpoint
from attnorm.run.folder import PATIENCE, RunState
from attnorm.run.resume import newest_good
from attnorm.run.run import Run
from attnorm.training.callbacks.checkpointing import Checkpoints

SETTINGS = (
    "attention=hnas",
    "data.train_size=60",
    "trainer.max_epochs=4",
    "task.validations=6",
    "run.save_every_steps=3",
)
fork = multiprocessing.get_context("fork")


def start(folder: Path, task: str, sabotage: Callable[[], None] = lambda: None) -> multiprocessing.Process:
    """A process that starts the run in `folder`, or continues it. It appends each saved update to <folder>.saved."""

    def work() -> None:
        saved, log = Checkpoints._save, folder.with_suffix(".saved")

        def save(self, trainer) -> None:
            saved(self, trainer)
            with open(log, "a") as file:
                file.write(f"{trainer.global_step}\n")

        Checkpoints._save = save
        sabotage()

        def job() -> int:
            if Run(folder).exists:
                return resume_in(folder, [f"resume={folder}"])
            runs.tiny_run(folder, *SETTINGS, task=task)
            return 0

        os._exit(exit_code(job))

    child = fork.Process(target=work)
    child.start()
    return child


def state_of(folder: Path) -> RunState:
    """The state of a run that was killed. A child that it was starting, such as git, holds its lock a bit longer."""
    end = time.monotonic() + PATIENCE
    while (state := Run(folder).state) is RunState.RUNNING and time.monotonic() < end:
        time.sleep(0.01)
    return state


def check_nothing_lost(folder: Path) -> None:
    """The newest good checkpoint is at least as new as the last one that was saved completely."""
    log = folder.with_suffix(".saved")
    if log.exists():
        found = newest_good(folder)
        assert found is not None
        assert read_checkpoint(found)["global_step"] >= max(map(int, log.read_text().split()))


def straight(task: str) -> tuple[Path, float]:
    """A run that was never interrupted, and how long it took."""
    folder, begun = runs.scratch("faults") / task, time.perf_counter()
    if not folder.exists():
        child = start(folder, task)
        child.join()
        assert child.exitcode == 0
        (folder / "seconds").write_text(str(time.perf_counter() - begun))
    return folder, float((folder / "seconds").read_text())
