"""The charts of the report as pictures of their own, in the style of a paper."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill, wrap
from typing import Any

import vl_convert

from attnorm.analysis.pictures import COLUMN, LEGEND, LETTER, POINTS, SCREEN
from attnorm.analysis.report.charts import CONFIG, Chart
from attnorm.analysis.report.content import Report
from attnorm.analysis.report.style import light_colours

INCH = 96  # pixels, in which lengths of a specification are
WIDTH, FONT_SIZE = COLUMN * INCH, POINTS * INCH / 72
TEXTS = {f"{name}FontSize": FONT_SIZE for name in ("label", "title")}
STYLE = CONFIG | {
    "font": "DejaVu Sans",  # as in figures of matplotlib, which brings it along
    "axis": {**CONFIG["axis"], **TEXTS, "labelPadding": 3, "titlePadding": 4, "labelLimit": 0.38 * WIDTH},
    "legend": {**TEXTS, "labelLimit": 0, "symbolOpacity": 1, "rowPadding": 1, "columnPadding": 10, "offset": 6},
}


@dataclass(frozen=True)
class ChartPicture:
    """A chart with its legend in it, in the width of one column of a paper, in the colours of the page on white.

    chart: as the page shows it. task: the name of its task.
    """

    chart: Chart
    task: str

    @property
    def caption(self) -> str:
        """What is drawn, and how its marks are read."""
        title = f"{self.chart.title[:1].upper()}{self.chart.title[1:]}" + f" ({self.task})"
        return " ".join(filter(None, (f"{title}.", self.chart.reading, self.chart.note)))

    def spec(self) -> dict[str, Any]:
        """The Vega-Lite specification, without the data."""
        colours = light_colours()
        text = re.sub(r"var\((--[\w-]+)\)", lambda name: colours.get(name[1], name[0]), json.dumps(self.chart.spec))
        spec: dict[str, Any] = json.loads(text)
        words = max((len(style.label) for style in self.chart.legend), default=1)
        columns = max(1, int(COLUMN / (LEGEND + LETTER * words)))
        legend = {"title": None, "orient": "top", "direction": "horizontal", "columns": columns}
        if "strokeDash" in text:
            legend |= {"symbolType": "stroke", "symbolSize": 400, "symbolStrokeWidth": 2}
        for encoding in (layer["encoding"] for layer in spec["layer"]):
            for channel, content in encoding.items():
                if isinstance(content, dict) and "legend" in content and channel != "fill":
                    content["legend"] = legend if len(self.chart.legend) > 1 else None
                if channel == "y" and content["type"] == "quantitative":
                    content["title"] = wrap(self.chart.measure, 30)
                if channel == "y" and "labelLimit" in (content.get("axis") or {}):
                    del content["axis"]["labelLimit"]  # it asks a browser for the width of the page
        size = {"width": WIDTH, "height": 0.75 * spec["height"], "padding": 2}
        fit = {"type": "fit-x", "contains": "padding"}
        return spec | size | {"autosize": fit, "background": "white", "config": STYLE}

    def drawn_as(self, suffix: str) -> bytes:
        """See `Picture`."""
        from matplotlib import get_data_path  # loads matplotlib

        vl_convert.register_font_directory(str(Path(get_data_path()) / "fonts/ttf"))
        spec = self.spec() | {"datasets": self.chart.data}
        if suffix == "png":
            words = fill(self.caption, int(COLUMN / LETTER)).splitlines()
            style = {"fontWeight": "normal", "fontSize": FONT_SIZE}
            spec["title"] = {"text": words, "orient": "bottom", "anchor": "start", "frame": "bounds", **style}
        unit = "pt" if suffix == "svg" else ""  # a pixel of the SVG becomes a point of the PDF
        size = re.compile(r' (width|height)="([\d.]+)"')
        svg = vl_convert.vegalite_to_svg(spec)
        svg = size.sub(lambda match: f' {match[1]}="{float(match[2]) * 72 / INCH:g}{unit}"', svg, count=2)
        if suffix == "pdf":
            return vl_convert.svg_to_pdf(svg)
        return vl_convert.svg_to_png(svg, ppi=SCREEN) if suffix == "png" else svg.encode()


def pictures_of(report: Report) -> Mapping[str, ChartPicture]:
    """All charts of a report, by the name of their files."""
    charts = [ChartPicture(chart, page.name) for page in report.tasks for chart in page.charts]
    pictures: dict[str, ChartPicture] = {}
    for picture in charts:
        name = re.sub(r"[^a-z0-9]+", "_", picture.chart.title.lower()).strip("_")[:60]
        pictures[f"{name}_{picture.chart.name}" if name in pictures or not name else name] = picture
    return pictures
