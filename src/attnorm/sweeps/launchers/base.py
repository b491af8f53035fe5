"""What every launcher does: starting jobs, finding those that an earlier sweep left running, and stopping them."""

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from attnorm.run.folder import RunState
from attnorm.sweeps.jobs import Job
from attnorm.sweeps.state import holders


class Handle:
    """A job that has been started. The process of this one is not a child of the sweep: it ends when its locks are
    released.

    code:   the exit code once the job has ended; None if nobody knows it.
    placed: where it runs, as far as another sweep needs it to find the job again; written into jobs.jsonl.
    """

    def __init__(self, job: Job, placed: Mapping[str, Any] | None = None):
        self.job, self.placed = job, dict(placed or {})
        self.code: int | None = None
        self.stopped = False

    def has_ended(self) -> bool:
        """Whether no process of the job is left. Costs little: it is asked several times per second."""
        if self.job.run.job_lock.holder() is not None:
            return False
        # a run that somebody resumed by hand holds only the lock of its own: it is waited for, but not stopped
        return self.stopped or self.job.run.state is not RunState.RUNNING

    def stop(self) -> None:
        """Asks the job to save and to exit."""
        self.send(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the job at once."""
        self.send(signal.SIGKILL)

    def send(self, number: int) -> bool:
        """Sends a signal to the run if it is on this machine; whether it is."""
        self.stopped = True
        for pid in (pids := holders(self.job.run.job_lock.path)):
            with suppress(ProcessLookupError, PermissionError):
                if os.getsid(pid) == pid:  # the process that was started, not one that it has forked
                    if number == signal.SIGKILL:
                        os.killpg(pid, number)
                    else:
                        os.kill(pid, number)
        return bool(pids)


class Launcher:
    """Starts jobs. jobs: how many may be running or waiting at once; None for no limit. program: trains one of them."""

    def __init__(self, jobs: int | None, program: Sequence[str]):
        self.jobs, self.program, self.running = jobs, tuple(program), 0

    def has_room(self, job: Job | None = None) -> bool:
        """Whether a job, or any job at all, can be started now."""
        return self.jobs is None or self.running < self.jobs

    def start(self, job: Job) -> Handle | None:
        """Starts a job; None if it turns out to be running already."""
        raise NotImplementedError

    def attach(self, job: Job, placed: Mapping[str, Any]) -> Handle | None:
        """The job if an earlier sweep left it running; otherwise None. placed: its `Handle.placed`, or {}."""
        return None if (handle := Handle(job)).has_ended() else handle

    def close(self) -> None:
        """Gives back what the launcher uses. Called once, when no job is running."""
