"""What a launcher has to offer: starting a job, finding one that an earlier sweep left running, and stopping it."""

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol

from attnorm.run.folder import RunState
from attnorm.sweeps.jobs import Job
from attnorm.sweeps.state import holders


class Handle(Protocol):
    """A job that has been started.

    code:   the exit code once the job has ended; None if nobody knows it.
    placed: where it runs, as far as another sweep needs it to find the job again; written into jobs.jsonl.
    """

    job: Job
    code: int | None
    placed: dict[str, Any]

    def has_ended(self) -> bool:
        """Whether no process of the job is left. Costs little: it is asked several times per second."""

    def stop(self) -> None:
        """Asks the job to save and to exit."""

    def kill(self) -> None:
        """Ends the job at once."""


class Launcher(Protocol):
    """Starts jobs."""

    def has_room(self, job: Job | None = None) -> bool:
        """Whether a job, or any job at all, can be started now."""

    def start(self, job: Job) -> Handle | None:
        """Starts a job; None if it turns out to be running already."""

    def attach(self, job: Job, placed: Mapping[str, Any]) -> Handle | None:
        """The job if an earlier sweep left it running; otherwise None. placed: its `Handle.placed`, or {}."""

    def close(self) -> None:
        """Gives back what the launcher uses. Called once, when no job is running."""


class Attached:
    """A job whose process is not a child of this one. It ends when its locks are released."""

    def __init__(self, job: Job):
        self.job = job
        self.code: int | None = None
        self.placed: dict[str, Any] = {}
        self.stopped = False

    def has_ended(self) -> bool:
        if self.job.run.job_lock.holder() is not None:
            return False
        # a run that somebody resumed by hand holds only the lock of its own: it is waited for, but not stopped
        return self.stopped or self.job.run.state is not RunState.RUNNING

    def stop(self) -> None:
        self.stopped = True
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self.stopped = True
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for pid in holders(self.job.run.job_lock.path):
            with suppress(ProcessLookupError, PermissionError):
                if os.getsid(pid) == pid:  # the process that was started, not one that it has forked
                    if number == signal.SIGKILL:
                        os.killpg(pid, number)
                    else:
                        os.kill(pid, number)
