"""What the experiments share: sweeps that continue where they stopped, their results, and tables beside a paper's."""

import io
import json
import shlex
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

from attnorm.cli.main import run
from attnorm.sweeps.job_record import recorded

ROOT = Path(__file__).parents[1]
NOTHING = "-"
FAILED = 1  # the exit code of a sweep in which a job has failed


@dataclass(frozen=True)
class Run:
    """A finished run of a sweep.

    settings:  its overrides, as {key: value}.
    folder:    its run folder.
    metrics:   the scores of its best model on the validation split, by name.
    baselines: the scores of simple methods on that split, by method and name.
    """

    settings: dict[str, str]
    folder: Path
    metrics: dict[str, float]
    baselines: dict[str, dict[str, float]]


def sweep(folder: Path, *overrides: str, failures: bool = False) -> list[Run]:
    """Runs `attnorm sweep <overrides> out=<folder>` and returns its runs, without those that tune or
    are at other values than the best one.

    The runs are in the order of their seeds. In the state of the sweep, the best one is first.

    failures: whether jobs may fail; they are not returned. Otherwise, all jobs have finished.

    A sweep that was interrupted continues when the experiment is repeated, and finished runs are not run again. Raises
    SystemExit if the sweep ends before all of its jobs have ended; its messages say why and how to continue.
    """
    arguments = [*overrides, f"out={folder}"]
    print(f"\n$ attnorm sweep {shlex.join(arguments)}", flush=True)
    if (code := run("sweep", arguments)) and not (failures and code == FAILED):
        sys.exit(code)
    if not (jobs := recorded(folder).get("jobs")):  # the sweep was refused
        sys.exit(code)
    jobs = [job for job in jobs if job.get("purpose") not in ("tune", "further")]
    if code:
        if any(job["state"] not in ("finished", "failed") for job in jobs):
            sys.exit(code)
        jobs = [job for job in jobs if job["state"] == "finished"]
    runs = [read_run(Path(job["folder"]), job["overrides"]) for job in jobs]
    return sorted(runs, key=lambda it: int(it.settings.get("seed", 0)))


def on_test(runs: Iterable[Run]) -> list[Run]:
    """The runs with their scores on the test split, from `attnorm eval`, which is not repeated for runs that have them.

    Raises SystemExit if a run cannot be scored.
    """
    scored = []
    for it in runs:
        path = it.folder / "eval_test.json"
        if not path.is_file():
            with redirect_stdout(io.StringIO()):
                code = run("eval", [f"run={it.folder}", "split=test"])
            if code:
                sys.exit(code)
            print(f"scored on the test split: {it.folder}", flush=True)
        record = json.loads(path.read_text())
        scored.append(replace(it, metrics=record["metrics"], baselines=record["baselines"]))
    return scored


def print_cost(seconds: Mapping[str, float], runs: int, updates: int, others: float) -> None:
    """Prints the estimated cost of `runs` runs of each arm.

    seconds: CPU seconds of an update, by arm. updates: of a run. others: CPU seconds of a run besides its updates.
    """
    hours = sum(runs * (updates * each + others) for each in seconds.values()) / 3600
    print(f"estimated cost: {runs * len(seconds)} runs of {updates:,} updates, {hours:.1f} core-hours", flush=True)


def read_run(folder: Path, overrides: Iterable[str] = ()) -> Run:
    """Reads a finished run from its folder."""
    summary = json.loads((folder / "summary.json").read_text())
    settings = dict(override.split("=", 1) for override in overrides if "=" in override)
    scores = summary["validation"]
    return Run(settings, folder, scores["metrics"], scores["baselines"])


def several(values: Iterable[object]) -> str:
    """The values of one key, as a sweep takes them: "1,2,3"."""
    return ",".join(map(str, values))


def spread(values: Sequence[float], digits: int = 2) -> str:
    """'31.20' for one value, '31.20 ± 0.41' for several: mean and standard deviation; '-' for none."""
    if not values:
        return NOTHING
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def of_paper(values: Sequence[float | None] | None, columns: int) -> list[str]:
    """The cells of a paper's row; '-' for numbers that it does not have."""
    return [NOTHING if value is None else f"{value:.2f}" for value in values or [None] * columns]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def beside_paper(
    columns: Sequence[str],
    ours: Mapping[str, Sequence[Sequence[float]]],
    paper: Mapping[str, Sequence[float | None]],
    paper_columns: Sequence[str],
) -> str:
    """A Markdown table with a row per system: our means and standard deviations, then the numbers of the paper.

    columns:       the names of our columns. ours: for each system, the values of all seeds per column.
    paper_columns: the names of the paper's columns. paper: its rows, None for a number that is not there. Systems that
                   only the paper has follow ours.
    """
    header = ["", *columns, *(f"paper: {name}" for name in paper_columns)]
    rows = []
    for system in dict.fromkeys([*ours, *paper]):
        found = ours.get(system) or [[]] * len(columns)
        rows.append([system, *map(spread, found), *of_paper(paper.get(system), len(paper_columns))])
    return table(header, rows)


def values_of(runs: Iterable[Run], metrics: Sequence[str], **settings: str) -> list[list[float]]:
    """For each metric, its values in the runs with these settings, one value per run."""
    found = [run for run in runs if settings.items() <= run.settings.items()]
    return [[run.metrics[name] for run in found] for name in metrics]


def report(*folders: Path, **options: object) -> None:
    """Compares the runs of the sweeps, or single runs, with `attnorm report`. options: such as its `baseline`."""
    run("report", [*map(str, folders), *(f"{name}={value}" for name, value in options.items())])


def figures(folder: Path, *arguments: str) -> None:
    """Draws figures of the papers into a folder with `attnorm figures`. Raises SystemExit if that fails."""
    if code := run("figures", [*arguments, f"out={folder}"]):
        sys.exit(code)
