"""`attnorm ls`: the runs and the sweeps below a folder."""

import csv
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from attnorm.analysis.arms import as_number, numbers_of
from attnorm.config.command import Command, read
from attnorm.errors import Problem, RunError
from attnorm.progress import console
from attnorm.run.folder import EVENTS, FURTHER, TUNE, FolderLock, folders_in, why_not_writable
from attnorm.run.run import Run
from attnorm.schema import Text
from attnorm.sweeps.state import SWEEP_LOCK, JobState, Journal, state_of_job
from attnorm.tasks.results import direction
from attnorm.training.console import in_digits, show_lines, show_warnings
from attnorm.wording import listed, on_one_line

UNITS = (("days", 86400), ("h", 3600), ("min", 60), ("s", 1))  # of ages, with their seconds


@dataclass(frozen=True, kw_only=True)
class LsKeys:
    """The keys of `attnorm ls`, as in conf/ls.yaml."""

    place: Text = "logs"
    out: Text | None = None


@dataclass(frozen=True)
class Listed:
    """A run or a sweep.

    seeds, attention: of a sweep, all of them. metric, score: the primary metric in the final evaluation, of a sweep
    that of its best run; before it, the best value so far of the metric that selects the model. changed: when it
    started or ended last, in seconds since 1970.
    """

    folder: Path
    task: str
    attention: str
    seed: str
    state: str
    metric: str
    score: float | None
    changed: float


def list_runs(arguments: list[str]) -> None:
    """Prints the runs and the sweeps, the newest one last, and writes the file."""
    keys = read(arguments, LsKeys, "attnorm ls", check=key_problems).settings
    place, entries, unreadable = Path(keys.place), list[Listed](), list[str]()
    sweeps = {file.parent for file in place.rglob(EVENTS)} - {place}
    for folder in sweeps | {run for run in folders_in(place) if sweeps.isdisjoint(run.parents)}:
        try:
            entries.append(listed_sweep(folder) if folder in sweeps else listed_run(Run(folder)))
        except RunError as error:
            unreadable.append(str(error))
    entries.sort(key=lambda entry: entry.changed)
    if entries:
        console.print(listing_of(entries))
    show_warnings(sorted(unreadable))
    if not (entries or unreadable):
        show_lines(f"{place}: no runs")
    if keys.out is not None:
        with open(keys.out, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(field.name for field in fields(Listed))
            for entry in entries:
                values = {**vars(entry), "changed": datetime.fromtimestamp(entry.changed).isoformat("T", "seconds")}
                writer.writerow(values.values())
        show_lines(f"written to {keys.out}")


def key_problems(command: Command[LsKeys]) -> Iterator[Problem]:
    """What is wrong with the place and the file."""
    keys = command.settings
    if not Path(keys.place).is_dir():
        yield Problem("place", "no such folder", keys.place)
    if keys.out is not None:
        file = Path(keys.out)
        if file.suffix != ".csv":
            yield Problem("out", "must end with .csv", keys.out)
        elif why := why_not_writable(file.parent, file.name):
            yield Problem("out", why, keys.out)


def listed_run(run: Run) -> Listed:
    """What a run folder says. Raises RunError if its run.json cannot be read."""
    metric, scores = str(run.outcome.get("primary")), numbers_of(run.evaluation().get("metrics"))
    if metric not in scores:
        metric, scores = str(run.progress.get("monitor", "")), {}
        if (best := as_number(run.progress.get("best_value"))) is not None:
            scores[metric] = best
    changed, task = run.record_file.stat().st_mtime, run.config["task"]["name"]
    return Listed(run.folder, task, run.label, str(run.seed), run.state, metric, scores.get(metric), changed)


def listed_sweep(folder: Path) -> Listed:
    """What the runs of a sweep say, without those that tune. Raises RunError if one of them cannot be read."""
    journal = Journal(folder)
    jobs = journal.jobs()
    done = sum(state_of_job(job, journal) is JobState.FINISHED for job in jobs)
    is_running = FolderLock(folder, SWEEP_LOCK).holder() is not None
    state = f"{done}/{len(jobs)} {'running' if is_running else 'finished'}"
    runs = [job.run for job in jobs if job.purpose not in (TUNE, FURTHER) and job.run.exists]
    entries = {run: listed_run(run) for run in runs}
    tasks, attention, seeds = (
        listed(list(dict.fromkeys(getattr(entry, key) for entry in entries.values())))
        for key in ("task", "attention", "seed")
    )
    scored = {run: entry for run, entry in entries.items() if run.evaluation() and entry.score is not None}
    metric, score = "", None
    if len({entry.metric for entry in scored.values()}) == 1:
        [run, first], *_ = scored.items()
        metric, sign = first.metric, direction(first.metric, run.record("summary").get("directions"))
        scores = [entry.score for entry in scored.values() if entry.score is not None]
        score = max(scores, key=lambda value: sign * value)
    return Listed(folder, tasks, attention, seeds, state, metric, score, journal.path.stat().st_mtime)


def listing_of(entries: list[Listed]) -> Table:
    """A row for each run and sweep. The names of sweeps end with a slash."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("name", "task", "attention", "seed", "state", "best score", "age"):
        table.add_column(name, justify="right" if name == "age" else "left", overflow="fold")
    for entry in entries:
        name = entry.folder.name + "/" * (entry.folder / EVENTS).is_file()
        score = "" if entry.score is None else in_digits(entry.score, entry.metric.removeprefix("val/"))
        score = f"{entry.metric} {score}" if score else ""
        cells = (name, entry.task, entry.attention, entry.seed, entry.state, score, age(time.time() - entry.changed))
        table.add_row(*(escape(on_one_line(cell)) for cell in cells))
    return table


def age(seconds: float) -> str:
    """A time span in its largest unit, as in "3 h"."""
    unit, size = next(((unit, size) for unit, size in UNITS if seconds >= 2 * size), UNITS[-1])
    return f"{max(0, seconds) // size:.0f} {unit}"
