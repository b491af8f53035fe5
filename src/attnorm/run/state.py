"""What a run folder is doing: running, finished, interrupted, failed, or killed before it could say so.

The process of a run holds a lock on its folder for as long as it lives. The kernel releases the lock when the process
ends, however it ends, so the lock is a reliable answer to the question whether a run is still going.
"""

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

from attnorm.errors import RunError

LOCK, SUMMARY, PROGRESS = "run.lock", "summary.json", "progress.json"
SAFELY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a link is not followed, a pipe not waited for
PATIENCE = 1.0  # seconds to wait for somebody who only looks at a lock
_held: set[int] = set()  # the open files of all locks of this process; a process that it forks inherits them


class RunState(StrEnum):
    """The state of a run folder.

    ABSENT:      no run has recorded its settings there. RUNNING: a process holds its lock.
    FINISHED, INTERRUPTED, FAILED: what summary.json says; INTERRUPTED runs were stopped by a signal or a time limit.
    KILLED:      the process ended without writing summary.json.
    """

    ABSENT = "absent"
    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    KILLED = "killed"

    @property
    def is_unfinished(self) -> bool:
        """Whether such a run has started, has ended, and can be resumed."""
        return self in (RunState.INTERRUPTED, RunState.FAILED, RunState.KILLED)


class FolderLock:
    """An exclusive lock on a folder, held until it is released or the process ends.

    Processes that were forked from the holder hold it as well, unless they call `drop_inherited_locks`.
    """

    def __init__(self, folder: Path, name: str = LOCK):
        self.path = folder / name
        self.descriptor: int | None = None
        self.before = b""  # what the file held

    def acquire(self, patience: float = PATIENCE) -> bool:
        """Whether the lock could be taken within `patience` seconds. The file then holds the number of the process."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, end = os.open(self.path, os.O_RDWR | os.O_CREAT | SAFELY, 0o644), time.monotonic() + patience
        while not _try(descriptor, fcntl.LOCK_EX):
            if time.monotonic() >= end:
                os.close(descriptor)
                return False
            time.sleep(0.02)
        self.before = os.pread(descriptor, 32, 0)
        _write(descriptor, f"{os.getpid()}\n".encode())
        self.descriptor = descriptor
        _held.add(descriptor)
        return True

    def release(self, unchanged: bool = False) -> None:
        """Releases the lock if it is held. unchanged: leave the file as it was."""
        if self.descriptor is not None:
            if unchanged:
                _write(self.descriptor, self.before)
            _held.discard(self.descriptor)
            os.close(self.descriptor)
            self.descriptor = None

    def holder(self) -> int | None:
        """The number of the process that holds the lock; None if nobody does."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | SAFELY)
        except OSError:
            return None
        try:
            if _try(descriptor, fcntl.LOCK_SH):
                return None
            text = os.pread(descriptor, 32, 0).strip()
            return int(text) if text.isdigit() else 0
        finally:
            os.close(descriptor)


def drop_inherited_locks() -> None:
    """Called in a forked process that does not belong to the run, such as a data worker: it lives on for some seconds
    after the process of the run was killed, and must not keep the locks for so long."""
    while _held:
        os.close(_held.pop())


def _write(descriptor: int, content: bytes) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, content, 0)


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
            return False
        raise
    return True


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the lock of a run folder. Raises RunError if another process holds it."""
    lock = FolderLock(folder)
    if not lock.acquire():
        raise RunError(f"{folder}: this run is still going, in process {lock.holder() or 'unknown'}")
    try:
        yield
    finally:
        lock.release(unchanged=True)


def is_running(folder: Path) -> bool:
    """Whether a process holds the lock of a run folder."""
    return FolderLock(folder).holder() is not None


def check_there(folder: Path) -> None:
    """Raises RunError if the folder of a run that is going has been moved or removed. Nothing may be written then,
    since that would make a second folder, which has no settings and cannot be resumed."""
    if not (folder / "config.yaml").is_file():
        raise RunError(
            f"{folder}: was moved or removed while its run was going, so the run has ended; to continue it where it "
            "was saved last: attnorm train resume=<the moved folder>"
        )


def state_of(folder: Path) -> RunState:
    """The state of a run folder."""
    if is_running(folder):
        return RunState.RUNNING
    config = folder / "config.yaml"
    if not config.is_file() or not config.stat().st_size:
        return RunState.ABSENT  # also if it was stopped before it had recorded its settings: it cannot be resumed
    state = read_json(folder / SUMMARY).get("state")
    return RunState(state) if state in (RunState.FINISHED, RunState.INTERRUPTED, RunState.FAILED) else RunState.KILLED


def read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file; {} if it is missing or no JSON object can be read from it."""
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads(path.read_text(encoding="utf-8"))
        return content if isinstance(content, dict) else {}
    return {}
