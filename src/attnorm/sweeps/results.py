"""What has become of each job, for the tables and for sweep.json."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from attnorm.run.folder import FURTHER, TUNE
from attnorm.sweeps.jobs import Job, as_typed
from attnorm.sweeps.state import JobState, Journal, state_of_job

ORDER = (  # of states in the closing table
    *(JobState.FINISHED, JobState.PRUNED, JobState.RUNNING, JobState.INTERRUPTED, JobState.KILLED),
    *(JobState.FAILED, JobState.WAITING),
)


@dataclass(frozen=True)
class Result:
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
        """The result as an entry of sweep.json."""
        job = self.job
        values = {name: value for name, value in asdict(self).items() if name != "job"}
        known: dict[str, Any] = {"name": job.name, "key": job.key, "arm": job.arm, "purpose": job.purpose}
        known |= {"overrides": as_typed(job.overrides), "folder": str(job.folder)}
        return {**known, **values, "state": str(self.state), "seconds": round(self.seconds, 1)}


def result_of(job: Job, journal: Journal) -> Result:
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
    return Result(
        job,
        state,
        journal.attempts(job.name),
        end.get("code"),
        "pruned by the search" if state is JobState.PRUNED else why,
        both.get("monitor"),
        both.get("best_value"),
        both.get("steps", both.get("step")),
        journal.seconds(job.name) or summary.get("wall_seconds", 0.0),  # its end was not seen if the sweep was killed
        metric,
        evaluation.get("metrics", {}).get(metric),
        {name: its[metric] for name, its in evaluation.get("baselines", {}).items() if metric in its},
    )


def ranked(results: Iterable[Result], mode: str | None) -> list[Result]:
    """Results by state; among equal states the best value first. Runs that compare come first.

    mode: "min" or "max" of the metric is best.
    """

    def place(result: Result) -> tuple:
        value = result.best_value
        sign = -1 if mode == "max" else 1
        return (
            result.job.purpose in (TUNE, FURTHER),
            ORDER.index(result.state),
            value is None,
            0.0 if value is None or mode is None else sign * value,
        )

    return sorted(results, key=place)
