"""The folder of a run: the names of its files, what it is doing, and its lock. It may come from anyone.

The process of a run holds a lock on its folder for as long as it lives. The kernel releases the lock when the process
ends, however it ends, so the lock is a reliable answer to the question whether a run is still going.

From a run folder, nothing is written outside the folder and the reader's own cache, and no code runs that was not typed
or trusted. Readers follow links as the file system does.
"""

import errno
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from attnorm.choices import choices
from attnorm.errors import RunError, naming

RUN, SUMMARY, LOG, LOCK = "run.json", "summary.json", "run.log", "run.lock"
CONFIG = "config.yaml"  # the settings for people; it is never read back
JOB_LOCK, CONSOLE = "job.lock", "console.log"  # of a run that is a job of a sweep
CURVES = ("metrics.csv", "attention.csv", "head_measures.csv", "state_measures.csv")  # besides learned scalars
CHECKPOINTS, PREDICTIONS = "checkpoints", "predictions"
EVENTS = "jobs.jsonl"  # a folder with this file is that of a sweep, where every folder may be that of a run
TUNE = "tune"  # a folder in a sweep folder, whose runs tune: they are no runs of arms
FURTHER = "further"  # the purpose of runs in the folder TUNE with the comparison seeds at other values
FOLLOW = "run.follow_links"
LAST = "last"  # names the run that was started or ended last
MOST_NAMES = 4  # that a message lists
SAFELY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a link is not followed, a pipe not waited for
PATIENCE = 1.0  # seconds to wait for somebody who only looks at a lock
_held: set[int] = set()  # the open files of all locks of this process; a process that it forks inherits them
_typed: set[str] = set()  # holds FOLLOW if it was typed as true; no run folder can set it


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
        with naming(self.path):
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
def folder_lock(folder: Path) -> Iterator[None]:
    """Holds the lock of a run folder. Raises RunError if another process holds it."""
    lock = FolderLock(folder)
    if not lock.acquire():
        raise RunError(f"{folder}: this run is still going, in process {lock.holder() or 'unknown'}")
    try:
        yield
    finally:
        lock.release(unchanged=True)


def read_record(path: Path) -> dict[str, Any]:
    """The content of a JSON file; {} if it is missing or no JSON object can be read from it."""
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads(path.read_text(encoding="utf-8"))
        return content if isinstance(content, dict) else {}
    return {}


def is_of_run(folder: Path) -> bool:
    """Whether a folder is that of a run or of a sweep."""
    return (folder / RUN).is_file() or (folder / EVENTS).is_file()


def check_links(folder: Path) -> None:
    """Raises RunError if something in a folder into which is written is a link, unless `run.follow_links=true` was
    typed: a stranger's link must not make a run write elsewhere, such as into another run."""
    links = [path for path in sorted(folder.iterdir()) if path.is_symlink()] if folder.is_dir() else []
    if links and not _typed:
        raise RunError(f"{links[0]}: is a link to {os.readlink(links[0])}; type {FOLLOW}=true to write where it leads")


def take_follow_links(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command without `run.follow_links=true` and `=false`, of which the last one is obeyed."""
    typed = [argument for argument in arguments if argument in (f"{FOLLOW}=true", f"{FOLLOW}=false")]
    _typed.clear()
    if typed and typed[-1].endswith("true"):
        _typed.add(FOLLOW)
    return [argument for argument in arguments if argument not in typed]


def typed_follow_links() -> list[str]:
    """The argument that lets another command follow links, if it was typed for this one."""
    return [f"{FOLLOW}=true"] if _typed else []


def folders_in(root: Path) -> list[Path]:
    """The folders of runs below a folder, or the folder itself if it is one."""
    return [root] if (root / RUN).is_file() else [path.parent for path in sorted(root.rglob(RUN))]


def find_folder(name: str | Path, key: str = "", sweeps: bool = False) -> Path:
    """The run folder that a path, the beginning of its name or "last" means; the path itself if it means none.

    The run is sought below the folder before the last slash of the name, and without a slash below `log_dir` of
    conf/paths. key: the setting, for messages. sweeps: folders of sweeps are meant as well, and "last" is then no
    single run of a sweep. Raises RunError if several runs are meant, and for "last" if there is none.
    """
    path = Path(name)
    if path.exists():
        return path
    root = path.parent if os.sep in str(name) else Path(choices("paths")["default"]["log_dir"])
    changed = {file.parent: file.stat().st_mtime for kind in (RUN, *[EVENTS] * sweeps) for file in root.rglob(kind)}
    shown = f"{key}={name}" if key else str(name)
    if path.name == LAST:
        single = [each for each in changed if not (sweeps and any((up / EVENTS).is_file() for up in each.parents))]
        if not single:
            raise RunError(f"{shown}: there is no run below {root}")
        return max(single, key=lambda folder: changed[folder])
    meant = [each for each in changed if each.name == path.name]
    meant = sorted(meant or (each for each in changed if each.name.startswith(path.name)))
    if len(meant) > 1:
        listed = ", ".join(map(str, meant[:MOST_NAMES])) + (", ..." if len(meant) > MOST_NAMES else "")
        raise RunError(f"{shown}: {len(meant)} runs below {root} have names that begin so: {listed}")
    return meant[0] if meant else path


def why_not_writable(folder: Path, name: str | None = None) -> str:
    """Why no file can be written in a folder, or in a new one with this path; "" if one can. Nothing is left behind.

    name: that of the file, which must not take the place of a file of a run or a sweep.
    """
    if name is not None and (folder / name).is_dir():
        return "expected a file, found a folder"
    if name is not None and (folder / name).exists() and not name.endswith((".html", ".tex", ".md")):
        of_run = any((place / RUN).exists() for place in (folder, folder.parent))
        if of_run or ((folder / EVENTS).exists() and name == EVENTS):
            return "is there already, in the folder of a run or a sweep; choose another name"
    while not os.path.lexists(folder):
        folder = folder.parent
    if folder.is_file():
        return "expected a folder, found a file"
    try:
        with TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"cannot write in {folder}: {error.strerror}"


def leave_out(folder: str | Path) -> None:
    """Removes a folder from the search path of Python."""
    real = os.path.realpath(folder)
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != real]
