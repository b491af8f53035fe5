"""The loop that starts jobs, watches them and notes how they end."""

import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from attnorm import progress
from attnorm.errors import stopping
from attnorm.sweeps.jobs import Job
from attnorm.sweeps.launchers.base import Handle, Launcher
from attnorm.sweeps.plan import Plan
from attnorm.sweeps.state import JobState, Journal, state_of_job
from attnorm.sweeps.view import View

POLL = 0.05  # seconds between two looks at the jobs
WRONG_CONFIG = 2  # exit code


class Scheduler:
    """Runs the jobs of a plan until all of them have ended, or a signal or a failure stops the sweep.

    retries:   how many more times a job that failed is started.
    view:      is told what happens, and draws itself about twenty times per second.
    fail_fast: whether the other jobs save and exit once a job is not tried again.
    """

    def __init__(self, plan: Plan, launcher: Launcher, journal: Journal, retries: int, view: View, fail_fast: bool):
        self.plan, self.launcher, self.journal, self.retries, self.view = plan, launcher, journal, retries, view
        self.fail_fast = fail_fast
        self.running: dict[str, Handle] = {}
        self.waiting: deque[Job] = deque()
        self.code = 0  # the exit code of a sweep that is stopped: 128 + the first signal, or 1 after a failure
        self.forced = self.announced = False

    def run(self) -> int:
        """Runs all jobs. Returns the exit code if a signal or a failure stopped the sweep, or else 0."""
        with handling(self.receive):
            while True:
                if self.code and not self.announced:
                    self.announced = True
                    self.view.stops(len(self.running))
                for name, handle in list(self.running.items()):
                    if handle.has_ended():
                        del self.running[name]
                        self.note_end(handle.job, handle.code)
                if not self.code:
                    self.fill()
                self.view.show()
                if not self.running and (self.code or not self.waiting):
                    return self.code
                time.sleep(POLL)

    def receive(self, number: int, _: FrameType | None) -> None:
        """The first signal asks all jobs to save and to exit. A second Ctrl-C ends them at once."""
        if number == signal.SIGHUP:
            progress.leave_terminal()
        if not self.code:
            self.stop(128 + number)
        elif number == signal.SIGINT:
            self.forced = True
            for handle in list(self.running.values()):
                handle.kill()

    def stop(self, code: int) -> None:
        """Asks all jobs to save and to exit."""
        self.code = code
        for handle in list(self.running.values()):
            handle.stop()

    def fill(self) -> None:
        """Starts jobs as long as there is room for more."""
        while self.launcher.has_room() and not self.code:
            if not self.waiting and (job := self.plan.next()):
                self.waiting.append(job)
            if not self.waiting or not self.place(self.waiting[0]):
                return
            self.waiting.popleft()

    def place(self, job: Job) -> bool:
        """Starts a job, or finds that it is running or need not run. False if there is no room for it."""
        state = state_of_job(job, self.journal)
        if self.plan.is_done(job, state) or self.has_failed(job):
            self.view.said(job, f"{state} before")
            self.plan.ended(job, state)
            return True
        placed = self.journal.of(job.name, "place")
        if handle := self.launcher.attach(job, placed[-1] if placed else {}):
            self.view.said(job, "still running; waiting for it")
            self.running[job.name] = handle
            if self.code:
                handle.stop()
            return True
        if not self.launcher.has_room(job):
            return False
        self.journal.add("start", job.name, attempt=len(self.journal.of(job.name, "start")) + 1)
        handle = self.launcher.start(job)
        if handle is None:
            return False
        self.running[job.name] = handle
        self.journal.add("place", job.name, **handle.placed)
        self.view.said(job, "started" if state is JobState.WAITING else f"resumed ({state})")
        if self.code:  # a signal arrived while the process was being started
            handle.kill() if self.forced else handle.stop()
        return True

    def has_failed(self, job: Job) -> bool:
        """Whether a job has failed so often, or in such a way, that it is not tried again."""
        failures = self.journal.failed[job.name]
        repeats = self.journal.last_end(job.name).get("code") in (0, WRONG_CONFIG)
        return failures > self.retries or (failures > 0 and repeats)

    def note_end(self, job: Job, code: int | None) -> None:
        """Writes down how a job has ended. code: its exit code; None if it is not known.

        A job that ended before it had finished has failed, unless this sweep stopped it, or an earlier sweep started
        it and may have stopped it. Wrong settings (exit code 2) and a time limit (exit code 0) would only repeat.
        """
        state = state_of_job(job, self.journal)
        failure = state is not JobState.FINISHED and code is not None and not self.code
        why = None if state is JobState.FINISHED else (code != WRONG_CONFIG and job.run.why) or job.run.last_output
        again = state is not JobState.FINISHED and not self.code
        self.journal.add("end", job.name, code=code, state=str(state), why=why, failure=failure)
        state = state_of_job(job, self.journal)
        if again and not self.has_failed(job):
            self.view.said(job, f"{state} ({why or f'exit code {code}'}); it will be tried again")
            self.waiting.append(job)
            return
        self.view.said(job, str(state))
        if not self.code:
            self.plan.ended(job, state)
            if again and self.fail_fast:
                self.announced = True  # now: the others may have ended by the next look
                self.view.stops(len(self.running))
                self.stop(1)


@contextmanager
def handling(receive: Callable[[int, Any], None]) -> Iterator[None]:
    """Passes signals, and SIGPIPE if the console is closed, to a function instead of ending the process."""
    before = {number: signal.signal(number, receive) for number in stopping()}
    progress.stops.append(receive)
    try:
        yield
    finally:
        progress.stops.remove(receive)
        for number, handler in before.items():
            signal.signal(number, handler)
