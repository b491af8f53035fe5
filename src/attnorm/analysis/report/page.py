"""Writes the report as one HTML file, which opens from disk and loads nothing from anywhere.

Jinja escapes every text, and matplotlib those in figures. The page has a content security policy that allows only its
own script, by its hash, and no request at all.
"""

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files
from pathlib import Path

from attnorm.analysis.colours import chart_css
from attnorm.analysis.html import templates_of
from attnorm.analysis.paper import FigureSet
from attnorm.analysis.report.content import Report
from attnorm.analysis.report.ladder_page import LadderPage
from attnorm.analysis.report.task_page import TaskPage
from attnorm.files import write_text


def write_report(report: Report, path: Path) -> int:
    """Writes the page, whole or not at all, and returns its size in bytes."""
    write_text(path, html_of(report))
    return path.stat().st_size


def html_of(report: Report) -> str:
    """The page as a text."""
    script = asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    page, style = templates_of("attnorm.analysis.report").get_template("page.html"), chart_css() + asset("style.css")
    return page.render(report=report, style=style, script=script, policy=policy)


def figures_of_report(report: Report) -> FigureSet:
    """All charts of a report in the width of a column, by the name of their files."""
    figures, pages = FigureSet(), list[LadderPage | TaskPage]([*report.ladders, *report.tasks])
    for task, chart in [(page.name, chart) for page in pages for chart in page.charts]:
        name = re.sub(r"[^a-z0-9]+", "_", chart.title.lower()).strip("_")[:60]
        figures[f"{name}_{chart.name}" if name in figures or not name else name] = chart.figure(of=task)
    return figures


@cache
def asset(name: str) -> str:
    """The content of a file in assets/."""
    return (files("attnorm.analysis.report") / "assets" / name).read_text(encoding="utf-8")
