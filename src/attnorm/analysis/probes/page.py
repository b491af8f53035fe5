"""The page of a comparison on probes: one HTML file, which opens from disk and loads nothing from anywhere."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from math import isnan
from pathlib import Path
from typing import Any

from attnorm.analysis.colours import chart_css
from attnorm.analysis.html import templates_of
from attnorm.analysis.paper import COLUMN, PAGE, FigureSet
from attnorm.analysis.probes.probe_charts import charts_of_cells
from attnorm.analysis.probes.verdicts import CellResults, Row
from attnorm.analysis.verdict import AT_THESE_RATES
from attnorm.files import write_text
from attnorm.probes.arm import NULLS, Arm


@dataclass(frozen=True)
class Entry:
    """A field of the heat map. colour: of the background; words: for people who do not see it."""

    text: str
    detail: str
    colour: str
    words: str


def write_page(
    cells: Sequence[CellResults],
    arms: Sequence[Arm],
    path: Path,
    command: str,
    note: str = "",
    formats: Sequence[str] = (),
    column: float = COLUMN,
) -> Path:
    """Writes the page, whole or not at all, and returns its path.

    command: the command line of the comparison. note: a text above the results. formats: of its charts as files, in
    figures/ beside it. column: see `FigureSet.save`.
    """
    compared = [arm for arm in arms if arm.label not in NULLS]
    names = [arm.short for arm in compared]
    charts = charts_of_cells(cells, compared)
    if formats:
        figures = FigureSet({name: chart.figure(PAGE) for name, chart in charts.items()})
        figures.save(path.parent / "figures", formats, column)
    templates = templates_of("attnorm.analysis.probes")
    templates.filters["number"] = lambda value, form: "" if isnan(value) else format(value, form)
    page = templates.get_template("page.html").render(
        note=note,
        command=command,
        written=time.strftime("%Y-%m-%d %H:%M"),
        version=version("attnorm"),
        baseline=names[0],
        arms=names,
        tables=[table_of_scores(cells, name, arms) for name in dict.fromkeys(of.outcome.cell.short for of in cells)],
        at_an_edge=at_an_edge(cells),
        charts=charts,
        style=chart_css(),
        sentences=probe_sentences(cells, compared),
        cells=[about_probes(cell) for cell in cells],
        measures=[(of.outcome.cell.title, row) for of in cells for row in of.rows if row.trained and row.arm in names],
        left_out=grouped({cell.outcome.cell.title: cell.left_out for cell in cells}),
        seconds=sum(cell.outcome.seconds for cell in cells),
    )
    write_text(path, page)
    return path


def table_of_scores(
    cells: Sequence[CellResults], probe: str, arms: Sequence[Arm]
) -> tuple[list[tuple[CellResults, list[int]]], list[tuple[str, list[Entry]]]]:
    """The table of a probe: its cells with their sizes, and for each arm with a result, its entry at each of them."""
    of_probe = [cell for cell in cells if cell.outcome.cell.short == probe]
    columns = [(cell, [*dict.fromkeys(row.size for row in cell.rows)]) for cell in of_probe]
    rows = []
    for arm in arms:
        scores = [
            (next((row for row in cell.rows if row.arm == arm.short and row.size == size), None), cell)
            for cell, sizes in columns
            for size in sizes
        ]
        if any(row is not None for row, _ in scores):
            rows.append((arm.short, [entry_of(row, cell.left_out.get(arm.label, "")) for row, cell in scores]))
    return [(cell, sizes) for cell, sizes in columns if sizes], rows


def entry_of(row: Row | None, reason: str) -> Entry:
    """The score of an arm, coloured by its place between the null arms and the ceiling, and the difference."""
    if row is None:
        return Entry("", "", "", reason or "not run")
    words = f"score {row.score:.3f}" + ("" if isnan(row.rate) else f" with the learning rate {row.rate:g}")
    if isnan(row.difference):
        reason = f"; no difference: {row.verdict}" if row.verdict else ""
        return Entry(f"{row.score:.3f}", "", colour_of(row.normalized), words + reason)
    mark = {"shown": "*", "depends on the rate": "†", AT_THESE_RATES: "(*)"}.get(row.verdict, "")
    verdict = row.verdict or "no verdict"
    return Entry(f"{row.score:.3f}", row.estimate + mark, colour_of(row.normalized), f"{words}; difference {verdict}")


def colour_of(share: float) -> str:
    """From light (the null arms) to blue (the ceiling), on which dark text can be read. "" if it is not known."""
    if isnan(share):
        return ""
    share = min(max(share, 0.0), 1.0)
    light, dark = (255, 250, 235), (120, 175, 225)
    return "#{:02x}{:02x}{:02x}".format(*(round(a + (b - a) * share) for a, b in zip(light, dark, strict=True)))


def probe_sentences(cells: Sequence[CellResults], arms: Sequence[Arm]) -> list[str]:
    """For each arm, where it is shown to win and to lose."""
    texts = []
    for arm in arms[1:]:
        rows = [(cell, row) for cell in cells for row in cell.rows if row.arm == arm.short and row.trained]
        rows = [(cell, row) for cell, row in rows if not isnan(row.difference)]
        if not rows:
            texts.append(f"{arm.short}: not compared.")
            continue
        shown = [(cell, row) for cell, row in rows if row.verdict == "shown"]
        wins = [f"{cell.outcome.cell.title} ({row.difference:+.3f})" for cell, row in shown if row.difference > 0]
        losses = [f"{cell.outcome.cell.title} ({row.difference:+.3f})" for cell, row in shown if row.difference < 0]
        others = len(rows) - len(wins) - len(losses)
        parts = [f"above {arms[0].short} at {', '.join(wins)}"] if wins else []
        parts += [f"below {'it' if wins else arms[0].short} at {', '.join(losses)}"] if losses else []
        rest = f"no difference is shown in {others} of {len(rows)} cells"
        texts.append(f"{arm.short}: {'; '.join([*parts, rest] if others else parts)}.")
    return texts


def at_an_edge(cells: Sequence[CellResults]) -> list[str]:
    """One text per arm, "arm at cell (rate, +gain), ...": where its best rate is the smallest or the largest of all.

    gain: how much the score is above that of the next rate. Cells without a gain are left out, and so are cells with
    only two rates.
    """
    arms_by_cell: dict[str, list[str]] = {}
    for cell in cells:
        for arm, curve in cell.curves.items():
            best, rates = cell.outcome.rate[arm], sorted(curve)
            if len(rates) > 2 and best in (rates[0], rates[-1]):
                gain = curve[best] - curve[rates[1] if best == rates[0] else rates[-2]]
                if gain > 0:
                    arms_by_cell.setdefault(arm, []).append(f"{cell.outcome.cell.title} ({best:g}, {gain:+.3f})")
    return [f"{arm} at {', '.join(of)}" for arm, of in arms_by_cell.items()]


def about_probes(cell: CellResults) -> dict[str, Any]:
    """What the page says about a cell."""
    probe = cell.outcome.cell.probe()
    base = next((row for row in cell.rows if row.trained), None)
    text = " ".join((type(probe).__doc__ or "").replace("`", "").split())
    return {
        "title": cell.outcome.cell.title,
        "probe": cell.outcome.cell.short,
        "site": probe.site,
        "metric": probe.metric,
        "text": text,
        "prediction": probe.prediction,
        "source": probe.source,
        "null": base.null if base else float("nan"),
        "ceiling": base.ceiling if base else float("nan"),
    }


def grouped(left_out: Mapping[str, Mapping[str, str]]) -> list[str]:
    """One text per arm and reason, "arm at cell, cell: reason", from the reasons of the arms of each cell."""
    titles: dict[tuple[str, str], list[str]] = {}
    for title, reasons in left_out.items():
        for arm, reason in reasons.items():
            titles.setdefault((arm, reason), []).append(title)
    return [f"{arm} at {', '.join(of)}: {reason}" for (arm, reason), of in titles.items()]
