"""What a person sees of a sweep: a live table on a terminal, otherwise a line per event; and the closing table."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from rich.live import Live
from rich.markup import escape
from rich.table import Table

from attnorm.progress import console
from attnorm.sweeps.job_record import JobResult, SweepRecord
from attnorm.sweeps.jobs import Job
from attnorm.sweeps.plan import Plan
from attnorm.sweeps.state import JobState, Journal, state_of_job

REFRESH, QUIET = 1.0, 60.0  # seconds between two pictures of the live table, and between two lines without it
COLOURS = {
    JobState.RUNNING: "cyan",
    JobState.FINISHED: "green",
    JobState.FAILED: "red",
    JobState.KILLED: "red",
    JobState.INTERRUPTED: "yellow",
}


class View(AbstractContextManager["View"]):
    """Shows how far a sweep has come, while it is used as a context manager. record: is kept up to date."""

    def __init__(self, plan: Plan, journal: Journal, record: SweepRecord | None = None):
        self.plan, self.journal, self.record = plan, journal, record
        self.live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self.shown = 0.0

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def said(self, job: Job, line: str) -> None:
        """Something has happened to a job."""
        if self.record:
            self.record.is_due = True
        number = self.plan.jobs.index(job) + 1
        if not self.live:
            console.print(f"[{number}/{self.plan.total}] {job.label}: {line}", markup=False)
        self.shown = time.monotonic() if not self.live else 0.0

    def stops(self, count: int) -> None:
        """A signal stops the sweep while so many jobs are running."""
        what = "one run saves and exits" if count == 1 else f"{count} runs save and exit"
        if count:
            console.print(f"stopping: {what}; press Ctrl-C again to end at once", markup=False)

    def show(self) -> None:
        """Draws the table again if its time has come."""
        if self.record:
            self.record.refresh()
        if time.monotonic() - self.shown < (REFRESH if self.live else QUIET):
            return
        self.shown = time.monotonic()
        states = {job.name: state_of_job(job, self.journal) for job in self.plan.jobs}
        if self.live:
            self.live.start()  # for the first time
            self.live.update(self.table(states), refresh=True)
            return
        for job in self.plan.jobs:
            if states[job.name] is JobState.RUNNING:
                texts = (phase_of(job, self.journal), *progress_of(job))
                console.print(f"{job.label}: {', '.join(filter(None, texts))}", markup=False)

    def table(self, states: dict[str, JobState]) -> Table:
        """Running jobs first, then those that have ended, the latest ones first, as far as the terminal has lines."""
        counts = Counter(states.values())
        del counts[JobState.WAITING]
        waiting = self.plan.total - counts.total()
        parts = sorted(f"{count} {state}" for state, count in counts.items())
        table = Table(title=", ".join([*parts, f"{waiting} waiting"]), title_justify="left")
        for name in ("job", "state", "updates", "metric", "time left"):
            table.add_column(name, justify="left" if name in ("job", "state") else "right", no_wrap=name != "job")
        order = (JobState.RUNNING, JobState.INTERRUPTED, JobState.KILLED, JobState.FAILED, JobState.FINISHED)
        rows = [job for state in order for job in reversed(self.plan.jobs) if states[job.name] is state]
        most = max(3, console.height - 8)
        for job in rows[:most]:
            state = states[job.name]
            phase = f": {phase_of(job, self.journal)}" if state is JobState.RUNNING else ""
            table.add_row(escape(job.label), f"[{COLOURS.get(state, 'dim')}]{state}{phase}[/]", *progress_of(job))
        if len(rows) > most:
            table.add_row(f"[dim]and {len(rows) - most} more[/]")
        return table


def phase_of(job: Job, journal: Journal) -> str:
    """What a running job does: "start" until its process has begun to train, then "training", then "decoding"."""
    run, starts = job.run, journal.of(job.name, "start")
    if not run.progress or (starts and run.progressed_at < starts[-1]["time"]):
        return "start"  # the file is of an earlier process
    return run.progress.get("phase", "")


def progress_of(job: Job) -> tuple[str, str, str]:
    """Updates, metric and time left of a run, as texts; empty where nothing is known."""
    progress = job.run.progress
    step, updates, value = progress.get("step"), progress.get("updates"), progress.get("value")
    left = progress.get("seconds_left")
    metric = f"{progress.get('monitor')} {value:.4g}" if isinstance(value, (int, float)) else ""
    return f"{step:,}/{updates:,}" if step is not None and updates else "", metric, duration(left) if left else ""


def duration(seconds: float) -> str:
    """A time span as h:mm:ss, or as mm:ss."""
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60:02}:{rest % 60:02}"


def print_results(results: Sequence[JobResult]) -> None:
    """The closing table: a row per job, and a row per simple method that the models should beat."""
    metrics = list(dict.fromkeys(result.monitor for result in results if result.monitor))
    primary = list(dict.fromkeys(result.metric for result in results if result.metric and result.score is not None))
    table = Table(title_justify="left")
    table.add_column("job", overflow="fold")
    tunes = any(result.job.purpose for result in results)
    if tunes:
        table.add_column("purpose")
    table.add_column("state")
    table.add_column(f"best {metrics[0]}" if len(metrics) == 1 else "best value", justify="right")
    if primary:
        table.add_column(f"final {primary[0]}" if len(primary) == 1 else "score", justify="right")
    table.add_column("updates", justify="right")
    table.add_column("time", justify="right")

    def scored(metric: str | None, value: float | None) -> list[str]:
        if not primary:
            return []
        return ["" if value is None else f"{value:.2f}" if len(primary) == 1 else f"{metric} {value:.2f}"]

    for result in results:
        value = "" if result.best_value is None else f"{result.best_value:#.4g}".removesuffix(".")
        value = f"{result.monitor} {value}" if value and len(metrics) > 1 else value
        steps = "" if result.steps is None else f"{result.steps:,}"
        state = f"[{COLOURS.get(result.state, 'dim')}]{result.state}[/]"
        score = scored(result.metric, result.score)
        purpose = [result.job.purpose] if tunes else []
        table.add_row(escape(result.job.label), *purpose, state, value, *score, steps, duration(result.seconds))
    simple = {(name, result.metric): value for result in results for name, value in result.simple.items()}
    for (name, metric), number in simple.items():
        empty = [""] * (3 if tunes else 2)
        table.add_row(f"[dim]simple baseline {escape(name)}[/]", *empty, *scored(metric, number), "", "")
    console.print(table)
    for result in results:
        if result.why:
            console.print(f"{result.job.label}: {result.state}: {result.why}", markup=False)


def print_tuning(tuning: Mapping[str, Any], results: Sequence[JobResult]) -> None:
    """The mean of the metric by value, with the best value of each arm marked; without a mean, the state of a run that
    has none. tuning: as in jobs.jsonl. results: of the jobs of the sweep."""
    state = {result.job.name: result.state for result in results if result.state is not JobState.FINISHED}
    seeds = ", ".join(tuning["seeds"])
    table = Table(title=f"tuning {tuning['key']} with seed {seeds}; * is the best value", title_justify="left")
    table.add_column("arm", overflow="fold")
    table.add_column("metric")
    for value in tuning["values"]:
        table.add_column(value, justify="right")
    for arm in tuning["arms"]:
        cells = [
            next((state[job] for job in arm["tune"][value] if job in state), "failed")
            if mean is None
            else f"{mean:.4g}{' *' if value == arm['best'] else ''}"
            for value, mean in arm["means"].items()
        ]
        table.add_row(escape(arm["arm"]), f"{arm['monitor']} ({arm['mode']})", *cells)
    console.print(table)
    for note in tuning["notes"]:
        console.print(note, markup=False)
