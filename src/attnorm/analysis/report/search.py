"""A search in the report: its best trial, and the value of every trial against each parameter.

Everything is read from the file sweep.json. The file is not trusted: if it has another form, the runs are compared as
any others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from attnorm.analysis.arms import as_number
from attnorm.analysis.report.charts import Figure, scatter
from attnorm.analysis.report.drawings import title_of_curve
from attnorm.analysis.report.tables import Cell, Column, Table, number
from attnorm.run.folder import EVENTS, SWEEP_FILE, read_record
from attnorm.run.run import Run
from attnorm.wording import counted


@dataclass(frozen=True)
class Search:
    """A search. headline: the best trial in words. command: trains it again.

    metric: in words. points: by parameter, its value as text and the metric of each trial, and whether its axis is
    logarithmic.
    """

    anchor: str
    title: str
    headline: str
    command: str
    metric: str
    points: dict[str, tuple[list[tuple[str, float]], bool]]
    table: Table

    @cached_property
    def figures(self) -> list[Figure]:
        """The metric against each parameter. They need the libraries of the report."""
        numbered = enumerate(self.points.items(), start=1)
        return [scatter(f"{self.anchor}-{number}", self.metric, key, *points) for number, (key, points) in numbered]


def searches_of(runs: Sequence[Run]) -> tuple[list[Search], list[Run]]:
    """The searches of which several runs are given, and the runs that belong to none of them."""
    folders: dict[Path, list[Run]] = {}
    for run in runs:
        folders.setdefault(run.folder.parent, []).append(run)
    searches, others = list[Search](), list[Run]()
    for folder, its in folders.items():
        content = read_record(folder / SWEEP_FILE).get("search") if (folder / EVENTS).is_file() else None
        try:
            searches += [search_of(f"search-{len(searches) + 1}", content)] if content and len(its) > 1 else []
            others += [] if content and len(its) > 1 else its
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            others += its  # another program has written it
    return searches, others


def search_of(anchor: str, content: dict[str, Any]) -> Search:
    """One search. content: its entry of sweep.json."""
    metric, is_min = str(content["monitor"]), content["mode"] == "min"
    trials = [{**it, "value": as_number(it["value"])} for it in content["trials"]]
    keys = list(dict.fromkeys(str(key) for it in trials for key in it["values"]))
    done = sorted((it for it in trials if it["value"] is not None), key=lambda it: it["value"] * (1 if is_min else -1))
    title = title_of_curve(metric)
    headline = "No trial has finished yet."
    if done:
        values = ", ".join(f"{key}={value}" for key, value in done[0]["values"].items())
        better = "lower" if is_min else "higher"
        of = f"number {done[0]['number']} of {counted(len(trials), 'trial')}, {len(done)} of which have finished"
        headline = f"Best trial: {of}. The {title} is {done[0]['value']:.4g} ({better} is better) with {values}."
    rest = [it for it in trials if it["value"] is None]
    rows = [
        [
            Cell(str(it["number"]), it["number"], mark="shown" if done and it is done[0] else ""),
            number(it["value"], 4),
            *(Cell(str(it["values"].get(key, "")), spelled(it["values"].get(key))) for key in keys),
            Cell(str(it["state"])),
        ]
        for it in (*done, *rest)
    ]
    columns = [Column("trial", True), Column(title, True), *(Column(key, True) for key in keys), Column("state")]
    points = dict[str, tuple[list[tuple[str, float]], bool]]()
    for key in keys:
        tried = [(str(it["values"][key]), it["value"]) for it in done if key in it["values"]]
        points |= {key: (tried, key in content["logarithmic"])} if tried else {}
    table = Table(f"{anchor}-table", "All trials, the best one first", columns, rows, can_copy=True)
    command = str(content["command"] or "")
    return Search(anchor, f"Search of {', '.join(keys)}", headline, command, title, points, table)


def spelled(value: object) -> float | None:
    """The number that a value spells, if it spells one."""
    try:
        return as_number(float(str(value)))
    except ValueError:
        return None
