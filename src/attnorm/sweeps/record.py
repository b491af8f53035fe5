"""sweep.json: the command of a sweep, and what has become of each of its jobs."""

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from attnorm.files import write_json
from attnorm.run.folder import SWEEP_FILE
from attnorm.sweeps.jobs import Job
from attnorm.sweeps.results import Result, ranked, result_of
from attnorm.sweeps.scheduler import Plan
from attnorm.sweeps.state import Journal

SECONDS = 1.0  # between two writes


class SweepRecord:
    """Keeps sweep.json up to date while a sweep runs. Its `exit_code` is null until the sweep has ended.

    command: as it has to be repeated. mode: "min" or "max" of the metric is best; None: not known. about: gives further
    entries of the file.
    """

    def __init__(
        self,
        folder: Path,
        command: str,
        plan: Plan,
        journal: Journal,
        mode: str | None,
        about: Callable[[], Mapping[str, Any]] = dict,
    ):
        self.path, self.command, self.mode = folder / SWEEP_FILE, command, mode
        self.plan, self.journal, self.about = plan, journal, about
        self.is_due = False
        self.written_at = 0.0

    def note(self, job: Job, line: str) -> None:
        """Something has happened to a job."""
        self.is_due = True

    def refresh(self) -> None:
        """Writes the file if something has happened, at most once per second."""
        if self.is_due and time.monotonic() - self.written_at >= SECONDS:
            self.write(self.results())

    def results(self) -> list[Result]:
        """What has become of each job so far, the best one first."""
        return ranked((result_of(job, self.journal) for job in self.plan.jobs), self.mode)

    def unfinished(self, results: list[Result]) -> int:
        """The number of jobs that are left to do."""
        done = sum(self.plan.is_done(result.job, result.state) for result in results)
        return self.plan.total - self.plan.repeated - done

    def write(self, results: list[Result], code: int | None = None) -> None:
        """Writes the file. code: the exit code of the sweep; None while it runs."""
        content: dict[str, Any] = {
            "command": self.command,
            "written": f"{datetime.now():%Y-%m-%d %H:%M:%S}",
            "unfinished": self.unfinished(results),
            "exit_code": code,
            **self.about(),
            "jobs": [result.record() for result in results],
        }
        write_json(self.path, content)
        self.is_due, self.written_at = False, time.monotonic()
