"""What sweeps have still to do: there is no verdict on an arm that waits for one of their jobs."""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from attnorm.analysis.arms import expanded
from attnorm.run.folder import EVENTS, FolderLock, RunState
from attnorm.run.run import Run
from attnorm.sweeps.jobs import Job, override_key
from attnorm.sweeps.state import SWEEP_LOCK, JobState, Journal, state_of_job


def waiting_jobs(paths: Iterable[str | Path]) -> list[str]:
    """The labels of the jobs that a sweep in one of these places has not started yet.

    Of a sweep from which single run folders are given, these are the jobs that differ from one of them only in the
    seed.
    """
    roots = [path.absolute() for each in paths for path in expanded(each)]
    sweeps = dict.fromkeys(path.parent for root in roots for path in sorted(root.rglob(EVENTS)))
    labels = [job.label for folder in sweeps for job in waiting_in(folder)]
    named: dict[Path, set[str]] = defaultdict(set)
    for root in roots:
        if root.parent not in sweeps and Run(root).exists and (root.parent / EVENTS).is_file():
            named[root.parent].add(root.name)
    return labels + [job.label for folder, names in named.items() for job in waiting_in(folder, names)]


def waiting_in(sweep: Path, names: Container[str] | None = None) -> Iterator[Job]:
    """The jobs of a sweep that have not started; with names of run folders, only those of their arms."""

    def arm(job: Job) -> frozenset[str]:
        return frozenset(override for override in job.overrides if override_key(override) != "seed")

    journal = Journal(sweep)
    asked = {arm(job) for job in journal.jobs() if names is None or job.name in names}
    for job in journal.jobs():
        state = state_of_job(job, journal)  # a job that failed before it had a run folder is not waiting
        has_run = job.run.state is not RunState.ABSENT
        if arm(job) in asked and (state is JobState.WAITING or (state is JobState.RUNNING and not has_run)):
            yield job


def sweep_at_work(places: Iterable[str | Path]) -> bool:
    """Whether the process of a sweep is at work in one of these places, and may start or resume runs there."""
    for root in (path for pattern in places for path in expanded(pattern)):
        with suppress(OSError):
            events = [root.parent / EVENTS, *sorted(root.rglob(EVENTS))] if root.is_dir() else []
            if any(FolderLock(path.parent, SWEEP_LOCK).holder() is not None for path in events if path.is_file()):
                return True
    return False
