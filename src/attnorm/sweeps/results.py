"""What has become of each job, for the tables and for sweep.json."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnorm.run.config_file import FURTHER, TUNE
from attnorm.run.scalars import read_csv
from attnorm.run.state import PROGRESS, SUMMARY, read_json
from attnorm.spec.compose import as_typed
from attnorm.sweeps.jobs import Job
from attnorm.sweeps.state import CONSOLE, JobState, Journal, state_of_job

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
    summary, progress = read_json(job.folder / SUMMARY), read_json(job.folder / PROGRESS)
    if state in (JobState.RUNNING, JobState.KILLED):
        summary = {}  # of an earlier attempt
    both = {**{key: value for key, value in progress.items() if value is not None}, **summary}
    why = None if state in (JobState.FINISHED, JobState.RUNNING, JobState.WAITING) else summary.get("why")
    if state is JobState.FAILED and not why:
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


def why_ended(job: Job) -> str | None:
    """Why a job has ended before it had finished: what its summary says, or the last line of its output."""
    return read_json(job.folder / SUMMARY).get("why") or last_line(job.folder / CONSOLE)


def last_line(path: Path) -> str | None:
    """The last line of a text file that says something."""
    if not path.is_file():
        return None
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    said = [line for line in lines if line and "HYDRA_FULL_ERROR" not in line]
    return said[-1] if said else None


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


def validations(folder: Path, monitor: str) -> list[tuple[int, float]]:
    """The steps and values of the metric in metrics.csv, as far as they are written."""
    values: dict[int, float] = {}
    with suppress(OSError, ValueError, KeyError):
        for row in read_csv(folder / "metrics.csv"):
            if row.get(monitor) and row.get("step"):
                values[int(row["step"])] = float(row[monitor])
    return sorted(it for it in values.items() if it[1] == it[1])
