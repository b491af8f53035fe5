"""`attnorm report`: one HTML page about any set of runs."""

import time
import webbrowser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from attnorm.config.command import Command, read
from attnorm.errors import Problem, UserError
from attnorm.progress import console
from attnorm.run.folder import check_links, is_of_run, why_not_writable
from attnorm.schema import Count, Level, PictureFormats, Text

PAGE = "report.html"
LIBRARIES = {"altair": "altair", "vl_convert": "vl-convert-python", "jinja2": "jinja2"}  # modules and packages
MOST_VERDICTS = 12  # of a task, that are printed one by one; of more, one sentence on all arms


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """The keys of `attnorm report`.

    runs: run folders, folders with runs below them, or patterns. out: the file to write; None for report.html in the
    place, or in the current folder for several places. formats: of its charts as files, in figures/ beside the page.
    baseline, metric, split, level: see `collect`. watch: write the page every so many seconds until all runs have
    ended. open: open it in the web browser.
    """

    runs: tuple[Text, ...] = ()
    out: Text | None = None
    formats: PictureFormats = ()
    baseline: Text | None = None
    metric: Text | None = None
    split: Literal["auto", "test", "validation"] = "auto"
    level: Level = 0.95
    watch: bool = False
    every: Count = 30
    open: bool = False

    @property
    def path(self) -> Path:
        """The file to write."""
        if self.out is not None:
            return Path(self.out)
        only = Path(self.runs[0]) if len(self.runs) == 1 else Path()
        return only / PAGE if only.is_dir() else Path(PAGE)


OWN = tuple(key.name for key in fields(ReportSettings))


def run_report(arguments: Sequence[str]) -> int:
    """Writes the page, and with `watch` again and again while runs train. Returns the exit code."""
    settings = read_report(arguments)
    check_installed()
    is_open = False
    while True:
        started = time.monotonic()
        goes_on = write_once(settings)
        if settings.open and not is_open:
            is_open = webbrowser.open(settings.path.resolve().as_uri())
        if not goes_on:
            return 0
        time.sleep(max(0.0, settings.every - (time.monotonic() - started)))


def check_installed() -> None:
    """Raises UserError if a library of the page is missing."""
    for name in LIBRARIES:
        try:
            __import__(name)
        except ImportError as error:
            if error.name != name:
                raise
            needed = f"pip install {' '.join(LIBRARIES.values())}"
            raise UserError(f"the report needs the package {name}; install it with: {needed}") from error


def read_report(arguments: Sequence[str]) -> ReportSettings:
    """Reads the arguments. What is no `key=value`, or exists, is a place. Raises ConfigError with every problem."""
    typed = [word for word in arguments if "=" in word and (word.partition("=")[0] in OWN or not Path(word).exists())]
    places = [word for word in arguments if word not in typed]

    def check(command: Command[ReportSettings]) -> Iterator[Problem]:
        if "every" in command.typed - command.wrong and not {"watch"} & command.wrong and not command.settings.watch:
            yield Problem("every", "has no effect without watch=true", command.settings.every)
        if (out := command.settings.out) is not None and (why := why_not_writable(Path(out).parent, Path(out).name)):
            yield Problem("out", why, out)
        if command.settings.formats and (obstacle := why_not_writable(command.settings.path.parent / "figures")):
            yield Problem("formats", f"{command.settings.path.parent / 'figures'}: {obstacle}")
        if not (places or command.settings.runs or "runs" in command.wrong):
            yield Problem("runs", "must be given, as in attnorm report <run folder> <run folder>")

    settings = read(typed, ReportSettings, "attnorm report", check=check).settings
    if is_of_run(settings.path.parent):
        check_links(settings.path.parent)
    return replace(settings, runs=(*places, *settings.runs))


def write_once(settings: ReportSettings, ended: bool = False) -> bool:
    """Writes the page once. Returns whether it is to be written again. ended: see `collect`."""
    from attnorm.analysis.pictures import save_pictures
    from attnorm.analysis.report.content import Report, collect
    from attnorm.analysis.report.page import write_report
    from attnorm.analysis.report.pictures import pictures_of

    def collected(refresh: int | None) -> Report:
        options: dict[str, Any] = {"split": settings.split, "level": settings.level, "refresh": refresh, "ended": ended}
        return collect(settings.runs, settings.baseline, settings.metric, **options)

    report = collected(settings.every if settings.watch else None)
    goes_on = settings.watch and bool(report.running or report.at_work)
    if settings.watch and not goes_on:
        report = collected(None)  # the last page does not load itself again, and contains what has ended meanwhile
    size = write_report(report, settings.path)
    if not goes_on:
        ladders = {name: figure for page in report.ladders for name, figure in page.pictures.items()}
        save_pictures({**pictures_of(report), **ladders}, settings.path.parent / "figures", settings.formats)
        for page in report.ladders:
            for line in page.sentences or [page.refused]:
                console.print(line, markup=False)
        for task in report.tasks:
            for line in task.withheld:
                console.print(line, style="bold yellow", markup=False)
            verdicts = [verdict.sentence() for verdict in task.verdicts]
            for line in verdicts if len(verdicts) <= MOST_VERDICTS else [task.headline]:
                console.print(line, markup=False)
    left = f"; {len(report.running)} running, {len(report.waiting)} waiting" if report.running or report.waiting else ""
    console.print(f"written to {settings.path} ({size / 1e6:.1f} MB){left}", markup=False)
    return goes_on


def write_report_of_sweep(folder: Path) -> None:
    """Writes report.html into the folder of a sweep that has ended. A problem is one line, and never an error."""
    try:
        check_installed()
        write_once(ReportSettings(runs=(str(folder),)), ended=True)
    except Exception as error:  # the runs are done: nothing about a page may change how the sweep ends
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        console.print(f"no {PAGE}: {kind}{' '.join(str(error).splitlines())}", markup=False)
