"""What has become of each job of a sweep, and the state of the sweep in jobs.jsonl."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnorm.run.folder import FURTHER, TUNE
from attnorm.sweeps.jobs import Job, as_typed
from attnorm.sweeps.plan import Plan
from attnorm.sweeps.state import JobState, Journal, state_of_job

ORDER = (  # of states in the closing table
    *(JobState.FINISHED, JobState.RUNNING, JobState.INTERRUPTED, JobState.KILLED),
    *(JobState.FAILED, JobState.WAITING),
)


@dataclass(frozen=True)
class JobResult:
    """A job and what has become of it.

    attempts: number of processes that were started for it.
    code:     exit code of the last of them; None if it was not seen.
    steps:    number of updates.
    seconds:  time that its processes took.
    metric:   the primary metric of its task; score: its value in the final evaluation, on the whole validation split.
    simple:   the same metric of simple methods, by name.
    """

    job: Job
    state: JobState
    attempts: int
    code: int | None
    why: str | None
    monitor: str | None
    best_value: float | None
    steps: int | None
    seconds: float
    metric: str | None
    score: float | None
    simple: dict[str, float]

    def record(self) -> dict[str, Any]:
        """The result as an entry of the state."""
        job = self.job
        values = {name: value for name, value in asdict(self).items() if name != "job"}
        known: dict[str, Any] = {"name": job.name, "key": job.key, "arm": job.arm, "purpose": job.purpose}
        known |= {"overrides": as_typed(job.overrides), "folder": str(job.folder)}
        return {**known, **values, "state": str(self.state), "seconds": round(self.seconds, 1)}


def result_of(job: Job, journal: Journal) -> JobResult:
    """What has become of a job, from its run folder and from the events of the sweep."""
    state, end = state_of_job(job, journal), journal.last_end(job.name)
    # of a job that runs or was killed, the summary is that of an earlier attempt
    run, is_current = job.run, state not in (JobState.RUNNING, JobState.KILLED)
    summary = run.summary if is_current else {}
    both = {**{key: value for key, value in run.progress.items() if value is not None}, **summary}
    why = None if state in (JobState.FINISHED, JobState.RUNNING, JobState.WAITING) else summary.get("why")
    if (state is JobState.FAILED and not why) or (state is JobState.INTERRUPTED and end.get("failure")):
        why = end.get("why")
    evaluation = summary.get("validation") or {}
    metric = summary.get("primary")
    return JobResult(
        job,
        state,
        len(journal.of(job.name, "start")),
        end.get("code"),
        why,
        both.get("monitor"),
        both.get("best_value"),
        both.get("steps", both.get("step")),
        journal.seconds(job.name) or summary.get("wall_seconds", 0.0),  # its end was not seen if the sweep was killed
        metric,
        evaluation.get("metrics", {}).get(metric),
        {name: scores[metric] for name, scores in evaluation.get("baselines", {}).items() if metric in scores},
    )


def ranked(results: Iterable[JobResult], mode: str | None) -> list[JobResult]:
    """Results by state; among equal states the best value first. Runs that compare come first.

    mode: "min" or "max" of the metric is best.
    """

    def place(result: JobResult) -> tuple:
        value, compares = result.best_value, result.job.purpose not in (TUNE, FURTHER)
        rank = 0.0 if value is None or mode is None else -value if mode == "max" else value
        return not compares, ORDER.index(result.state), value is None, rank

    return sorted(results, key=place)


class SweepRecord:
    """The state of a sweep, as it is recorded in jobs.jsonl: the command, what became of each job, and what was tuned.

    command: as it has to be repeated. mode: "min" or "max" of the metric is best; None: not known.
    """

    def __init__(self, command: str, plan: Plan, journal: Journal, mode: str | None):
        self.command, self.mode, self.plan, self.journal = command, mode, plan, journal
        self.is_due = False  # whether something has happened since it was recorded
        self.decided: object = None  # what the state that was recorded last says of the choices of the plan

    def refresh(self) -> None:
        """Records the state if values have been chosen or added; all else follows from the folders of the runs."""
        if self.is_due and choices_in(self.plan.record()) != self.decided:
            self.write(self.results())
        self.is_due = False

    def results(self) -> list[JobResult]:
        """What has become of each job so far, the best one first."""
        return ranked((result_of(job, self.journal) for job in self.plan.jobs), self.mode)

    def unfinished(self, results: list[JobResult]) -> int:
        """The number of jobs that are left to do."""
        return self.plan.total - sum(self.plan.is_done(result.job, result.state) for result in results)

    def write(self, results: list[JobResult], code: int | None = None) -> None:
        """Records the state. code: the exit code of the sweep; None while it runs."""
        tuning, left, jobs = self.plan.record(), self.unfinished(results), [result.record() for result in results]
        self.decided = choices_in(tuning)
        self.journal.add("state", command=self.command, unfinished=left, exit_code=code, tuning=tuning, jobs=jobs)


def choices_in(tuning: Mapping[str, Any]) -> object:
    """The grid, and the best and further values of each arm."""
    return tuning and (tuning["values"], [(arm["best"], *arm["further"]) for arm in tuning["arms"]])


def recorded(folder: Path) -> dict[str, Any]:
    """The state that was recorded last in a sweep folder, which anyone may have written; {} without it."""
    states = Journal(folder).of("", "state")
    return states[-1] if states else {}
