"""`attnorm report`: one HTML page about any set of runs."""

import webbrowser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from attnorm.config.command import Command, read
from attnorm.errors import Problem, UserError
from attnorm.progress import console
from attnorm.run.folder import check_links, find_folder, is_of_run, why_not_writable
from attnorm.schema import ColumnWidth, Level, PictureFormats, Text

PAGE = "report.html"
MOST_VERDICTS = 12  # of a task, that are printed one by one; of more, one sentence on all arms


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """The keys of `attnorm report`.

    runs: run folders, folders with runs below them, or patterns. out: the file to write; None for report.html in the
    place, or in the current folder for several places. formats: of its charts as files, in figures/ beside the page.
    column: see `FigureSet.save`. baseline, metric, split, level: see `collect`. open: open it in the web browser.
    """

    runs: tuple[Text, ...] = ()
    out: Text | None = None
    formats: PictureFormats = ()
    column: ColumnWidth = 3.3
    baseline: Text | None = None
    metric: Text | None = None
    split: Literal["auto", "test", "validation"] = "auto"
    level: Level = 0.95
    open: bool = False

    @property
    def path(self) -> Path:
        """The file to write."""
        if self.out is not None:
            return Path(self.out)
        only = find_folder(self.runs[0], "runs", sweeps=True) if len(self.runs) == 1 else Path()
        return only / PAGE if only.is_dir() else Path(PAGE)


OWN = tuple(key.name for key in fields(ReportSettings))


def run_report(arguments: Sequence[str]) -> int:
    """Writes the page. Returns the exit code."""
    settings = read_report(arguments)
    write_page(settings)
    if settings.open:
        webbrowser.open(settings.path.resolve().as_uri())
    return 0


def read_report(arguments: Sequence[str]) -> ReportSettings:
    """Reads the arguments. What is no `key=value`, or exists, is a place. Raises ConfigError with every problem."""
    typed = [word for word in arguments if "=" in word and (word.partition("=")[0] in OWN or not Path(word).exists())]
    places = [word for word in arguments if word not in typed]

    def check(command: Command[ReportSettings]) -> Iterator[Problem]:
        if (out := command.settings.out) is not None and (why := why_not_writable(Path(out).parent, Path(out).name)):
            yield Problem("out", why, out)
        if command.settings.formats and (obstacle := why_not_writable(command.settings.path.parent / "figures")):
            yield Problem("formats", f"{command.settings.path.parent / 'figures'}: {obstacle}")
        if not (places or command.settings.runs):
            yield Problem("runs", "must be given, as in attnorm report <run folder> <run folder>")

    settings = read(typed, ReportSettings, "attnorm report", check=check).settings
    settings = replace(settings, runs=(*places, *settings.runs))
    if is_of_run(settings.path.parent):
        check_links(settings.path.parent)
    return settings


def write_page(settings: ReportSettings, ended: bool = False) -> None:
    """Writes the page and its pictures, and prints the verdicts. ended: see `collect`."""
    from attnorm.analysis.report.content import collect
    from attnorm.analysis.report.page import figures_of_report, write_report

    options: dict[str, Any] = {"split": settings.split, "level": settings.level, "ended": ended}
    report = collect(settings.runs, settings.baseline, settings.metric, **options)
    size = write_report(report, settings.path)
    if settings.formats:
        figures_of_report(report).save(settings.path.parent / "figures", settings.formats, settings.column)
    for page in report.ladders:
        for line in page.sentences or [page.refused]:
            console.print(line, markup=False)
    for task in report.tasks:
        for line in task.withheld:
            console.print(line, style="bold yellow", markup=False)
        verdicts = [verdict.sentence() for verdict in task.verdicts]
        for line in verdicts if len(verdicts) <= MOST_VERDICTS else [task.headline]:
            console.print(line, markup=False)
    console.print(f"written to {settings.path} ({size / 1e6:.1f} MB)", markup=False)


def write_report_of_sweep(folder: Path) -> None:
    """Writes report.html into the folder of a sweep that has ended. A problem is one line, and never an error."""
    try:
        write_page(ReportSettings(runs=(str(folder),)), ended=True)
    except Exception as error:  # the runs are done: nothing about a page may change how the sweep ends
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        console.print(f"no {PAGE}: {kind}{' '.join(str(error).splitlines())}", markup=False)
