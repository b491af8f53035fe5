"""A run that is killed at random moments, also while it saves, loses nothing but the updates since its last checkpoint.

Each chain kills a run again and again, and continues it in its folder until it is finished. It must then be bit-equal
to a run that was never interrupted, and its curves must have neither a gap nor a repeated row.
"""

import contextlib
import itertools
import os
import random
import signal
import time
from collections.abc import Callable

import pytest
import runs
from faulty import check_nothing_lost, start, state_of, straight

from attnorm.run import checkpoint as checkpoint_files
from attnorm.run.checkpoint import read_checkpoint
from attnorm.run.csv_files import read_csv
from attnorm.run.folder import RunState
from attnorm.run.run import Run

pytestmark = pytest.mark.slow
KILLS = {"gigaword": 8, "mlm": 6, "vqa": 6}


@pytest.mark.parametrize("task", KILLS)
def test_kill_9_at_random_moments(tmp_path, task):
    whole, duration = straight(task)
    moments, folder = random.Random(task), tmp_path / "run"
    for _ in range(KILLS[task]):
        child = start(folder, task)
        child.join(moments.uniform(0.15, 0.9) * duration)
        child.kill()
        child.join()
        state = state_of(folder)
        if state is RunState.FINISHED:  # before it was killed; start again
            os.rename(folder, tmp_path / f"finished_{len(os.listdir(tmp_path))}")
            folder.with_suffix(".saved").unlink()
        elif folder.exists():
            assert child.exitcode == -signal.SIGKILL
            assert state in (RunState.KILLED, RunState.ABSENT)
            check_nothing_lost(folder)
    child = start(folder, task)
    child.join()
    assert (child.exitcode, Run(folder).state) == (0, RunState.FINISHED)
    assert runs.same_run(whole, folder)


PLACES = {  # functions of the standard library that a save calls
    "while the file is written": ("torch", "save"),
    "before the file is flushed": ("os", "fsync"),
    "between the renames": ("os", "link"),
    "before a rename": ("os", "replace"),
    "while the best one is copied": ("shutil", "copyfileobj"),
}


@pytest.mark.parametrize(
    ("place", "tmpdir"), [*((place, "as it is") for place in PLACES), ("before a rename", "on another file system")]
)
def test_kill_9_during_a_save(tmp_path, place, tmpdir):
    whole, _ = straight("gigaword")
    module, name = PLACES[place]
    folder = tmp_path / "run"

    def die_at(call: int) -> Callable[[], None]:
        def sabotage() -> None:
            if tmpdir == "on another file system":
                os.environ["TMPDIR"] = "/dev/shm"
            owner = getattr(checkpoint_files, module)
            original, calls = getattr(owner, name), itertools.count(1)

            def killed(*arguments, **options):
                # a file that is written is torn in the middle
                if next(calls) == call:
                    if name == "save":
                        arguments[1].write(b"PK\3\4" + bytes(1000))
                        arguments[1].flush()
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*arguments, **options)

            setattr(owner, name, killed)

        return sabotage

    for call in (1, 2, 3):
        child = start(folder, "gigaword", die_at(call))
        child.join()
        assert child.exitcode == -signal.SIGKILL
        check_nothing_lost(folder)
    child = start(folder, "gigaword")
    child.join()
    assert child.exitcode == 0
    assert runs.same_run(whole, folder)
    assert not list((folder / "checkpoints").glob("*.unfinished"))


@pytest.mark.parametrize(
    ("task", "number"),
    [*(("gigaword", it) for it in (signal.SIGTERM, signal.SIGUSR1)), ("mlm", signal.SIGINT), ("mlm", signal.SIGHUP)],
)
def test_a_signal_at_random_moments_loses_no_update(tmp_path, task, number):
    whole, _ = straight(task)
    moments, folder, stops = random.Random(f"{task} {number}"), tmp_path / "run", 0
    log = folder.with_suffix(".saved")
    for _ in range(3):
        before = len(log.read_text().split()) if log.exists() else 0
        child = start(folder, task)
        while child.is_alive() and len(log.read_text().split() if log.exists() else "") <= before:
            time.sleep(0.005)
        time.sleep(moments.uniform(0.0, 0.1))
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, number)
        child.join(60)
        if child.exitcode == 0:
            break
        assert (child.exitcode, Run(folder).state) == (128 + number, RunState.INTERRUPTED)
        updates = read_checkpoint(folder / "checkpoints/last.ckpt")["global_step"]
        assert updates >= max(int(row["step"]) for row in read_csv(folder / "metrics.csv"))
        stops += 1
    child = start(folder, task)
    child.join()
    assert child.exitcode == 0 and stops
    assert runs.same_run(whole, folder)
