"""The order in which the jobs of a sweep are given out."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from attnorm.sweeps.jobs import Job
from attnorm.sweeps.state import JobState


class Plan:
    """Gives out the jobs of a sweep. Here, all of them are known beforehand; subclasses decide them while others run.

    jobs: those that are known so far.
    """

    def __init__(self, jobs: Sequence[Job] = ()):
        self.jobs = list(jobs)
        self.left = deque(jobs)  # those that are to be given out

    @property
    def total(self) -> int:
        """The number of jobs."""
        return len(self.jobs)

    def next(self) -> Job | None:
        """A job that was not given out before; None if there is no such job at the moment."""
        return self.left.popleft() if self.left else None

    def ended(self, job: Job, state: JobState) -> None:
        """A job has come to its end and will not be started again."""

    def is_done(self, job: Job, state: JobState) -> bool:
        """Whether a job in this state need not run again, also when the command of the sweep is repeated."""
        return state is JobState.FINISHED

    def record(self) -> dict[str, Any]:
        """What it has decided, for jobs.jsonl."""
        return {}
