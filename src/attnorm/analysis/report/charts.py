"""The charts of the report, as functions of plain rows.

Altair writes the specifications. Their data stay outside, in named datasets, so that the page can show the same rows
as a table. Colours are CSS variables of the page (`--c0`, ... for arms, `--s0`, ... for layers), so that a chart
follows the mode of the page, also in print. Nothing that a run wrote becomes part of an expression or the name of a
field.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import floor, log10
from typing import Any

import altair as alt

from attnorm.analysis.report.curves import Point
from attnorm.analysis.study import COLOURS

SHADES = 8  # --s0 to --s7 of assets/style.css, where --c0 to --c7 are the COLOURS of arms
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
FEW = 12  # steps of a curve up to which its points are drawn
HEIGHT = 210
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", "DejaVu Sans", sans-serif'  # of style.css
CONFIG: dict[str, Any] = {  # texts and grid have colours of assets/style.css
    "font": FONT,
    "aria": False,
    "view": {"stroke": None},
    "axis": {
        "domain": False,
        "ticks": False,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelPadding": 6,
        "titlePadding": 8,
    },
}
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Style:
    """How a series is drawn. colour: a CSS variable. dash: lengths of strokes and gaps."""

    label: str
    colour: str
    dash: list[int]


@dataclass(frozen=True)
class Chart:
    """A chart.

    name: unique on the page; the HTML id. title: what is drawn. description: the same for readers who do not see it,
    with the main values. spec: the Vega-Lite specification. data: the rows of each of its datasets. fields: the
    fields of the dataset "rows" and their names in the table behind the chart. legend: the series, [] if there is one.
    note: what a reader of the chart should know, "" for nothing. reading: what its marks mean, for its caption.
    measure: what the vertical axis of a picture says.
    """

    name: str
    title: str
    description: str
    spec: dict[str, Any]
    data: dict[str, Rows]
    fields: dict[str, str]
    legend: list[Style]
    note: str = ""
    reading: str = ""
    measure: str = ""


def styles_of_arms(labels: Sequence[str]) -> dict[str, Style]:
    """One style per arm; the first, the baseline, is neutral. After eight arms, colours return with another dash."""
    return {
        label: Style(label, f"var(--c{number % COLOURS})", DASHES[number // COLOURS % len(DASHES)])
        for number, label in enumerate(labels)
    }


def styles_of_layers(labels: Sequence[str]) -> dict[str, Style]:
    """One shade per layer, from the first to the last."""
    last = max(len(labels) - 1, 1)
    return {
        label: Style(label, f"var(--s{round(number * (SHADES - 1) / last)})", DASHES[0])
        for number, label in enumerate(labels)
    }


def curves(
    name: str,
    measure: str,
    points: Sequence[Point],
    styles: Mapping[str, Style],
    series: str = "arm",
    log: bool = False,
    from_zero: bool = False,
    along: str = "update",
    tried: Sequence[float] = (),
) -> Chart:
    """Lines with bands from the smallest to the largest value.

    measure: what the vertical axis shows. series: what a series is. log: a logarithmic axis. from_zero: whether a line
    marks 0, for differences. along: what the horizontal axis shows. tried: its only values, on a logarithmic scale; by
    default, all numbers.
    """
    used = [style for label, style in styles.items() if any(point.series == label for point in points)]
    scale, y = vertical(points, log, from_zero)
    rows = [asdict(point) for point in points]
    fields = {
        "series": series,
        "step": along,
        "mean": "mean",
        "low": "smallest",
        "high": "largest",
        "size": "values",
    }
    x = alt.X("step:Q", title=along, axis=alt.Axis(tickCount=5, format="~s"))
    if tried:
        ticks = alt.Axis(values=list(tried), format=".4~g")
        x = alt.X("step:Q", title=along, axis=ticks, scale=alt.Scale(type="log", nice=False))
    colour, outline, dash = scales(used)
    tooltip = [
        alt.Tooltip("series:N", title=series),
        alt.Tooltip("step:Q", title=along, format="," if along == "update" else ".4~g"),
        *(alt.Tooltip(f"{key}:Q", title=fields[key], format=".4~g") for key in ("mean", "low", "high")),
    ]
    base = alt.Chart(alt.NamedData("rows")).encode(x=x, color=colour)
    fill = 0.16 if len(used) == 1 else 0.07  # where bands coincide, fills mix, but outlines keep their colours
    band = base.mark_area(fillOpacity=fill, strokeOpacity=0.55, strokeWidth=1).encode(
        y=alt.Y("low:Q", title=None, scale=scale), y2="high:Q", stroke=outline
    )
    line = base.mark_line(strokeWidth=2).encode(y=y, strokeDash=dash)
    few = max((sum(point.series == style.label for point in points) for style in used), default=0) <= FEW
    dots = base.mark_point(filled=True, size=28 if few else 90, opacity=1 if few else 0).encode(y=y, tooltip=tooltip)
    last = "; ".join(f"{label} {value:.4g}" for label, value in {point.series: point.mean for point in points}.items())
    axis = "the number of updates" if along == "update" else along
    title = measure if along == "update" else f"{measure} against {along}"
    description = f"Line chart of {measure} against {axis}. Last means: {last}."
    data: dict[str, Rows] = {"rows": rows}
    layers = [band, line, dots]
    if from_zero:
        zero = alt.Chart(alt.NamedData("zero")).mark_rule(strokeDash=[4, 3], color="var(--ink-soft)")
        layers.insert(0, zero.encode(y=alt.Y("at:Q", title=None, scale=scale)))
        data["zero"] = [{"at": 0}]
    reading = "Lines are means, and bands reach from the smallest to the largest value."
    return Chart(
        name, title, description, specified(alt.layer(*layers)), data, fields, used, reading=reading, measure=measure
    )


def by_layer(
    name: str, title: str, points: Sequence[tuple[str, Point]], styles: Mapping[str, Style], log: bool = False
) -> Chart:
    """A point per layer and arm, with a line from the smallest to the largest value."""
    rows = [{"layer": layer, **asdict(point)} for layer, point in points]
    used = [style for label, style in styles.items() if any(row["series"] == label for row in rows)]
    layers = list(dict.fromkeys(layer for layer, _ in points))
    fields = {"layer": "layer", "series": "arm", "mean": "mean", "low": "smallest", "high": "largest", "size": "values"}
    colour, *_ = scales(used)
    labels = [style.label for style in used]
    base = alt.Chart(alt.NamedData("rows")).encode(
        x=alt.X("layer:N", sort=layers, title=None, axis=alt.Axis(labelAngle=-30 if len(layers) > 3 else 0)),
        xOffset=alt.XOffset("series:N", sort=labels),
        color=colour,
    )
    scale, y = vertical([point for _, point in points], log)
    rule = base.mark_rule(strokeWidth=2, opacity=0.55).encode(y=alt.Y("low:Q", title=None, scale=scale), y2="high:Q")
    tooltip = [
        alt.Tooltip("series:N", title="arm"),
        alt.Tooltip("layer:N", title="layer"),
        *(alt.Tooltip(f"{key}:Q", title=fields[key], format=".4~g") for key in ("mean", "low", "high")),
    ]
    dots = base.mark_point(filled=True, size=60, opacity=1).encode(y=y, tooltip=tooltip)
    description = f"Dot chart of {title} in {len(layers)} layers, for {', '.join(labels)}."
    reading = "Dots are means, and lines reach from the smallest to the largest value."
    return Chart(
        name, title, description, specified(alt.layer(rule, dots)), {"rows": rows}, fields, used, "", reading, title
    )


def scales(styles: Sequence[Style]) -> tuple[alt.Color, alt.Stroke, alt.StrokeDash]:
    """The encodings of series by colour, by the colour of outlines, and by dash.

    The legend is part of the page, not of the chart.
    """
    labels = [style.label for style in styles]
    colour = alt.Scale(domain=labels, range=[style.colour for style in styles])
    dash = alt.Scale(domain=labels, range=[style.dash for style in styles])
    return (
        alt.Color("series:N", scale=colour, legend=None),
        alt.Stroke("series:N", scale=colour, legend=None),
        alt.StrokeDash("series:N", scale=dash, legend=None),
    )


def vertical(points: Sequence[Point], log: bool, from_zero: bool = False) -> tuple[alt.Scale, alt.Y]:
    """A linear scale with some room around a constant, because Vega would round the only label of its axis, and the
    means on it.

    log: a logarithmic scale instead. It begins at the smallest positive mean, or at a power of ten if there are zeros,
    and what is below is drawn there. from_zero: whether 0 is always part of a linear one.
    """
    low, high = min(point.low for point in points), max(point.high for point in points)
    if log:
        least = min((point.mean for point in points if point.mean > 0), default=1e-6)
        least = least if low > 0 and least > 1e-8 else 10.0 ** floor(log10(least))
        scale = alt.Scale(type="log", domainMin=least, clamp=True)
    elif low < high:
        scale = alt.Scale(zero=from_zero, nice=True)
    else:
        room = abs(low) / 2  # scores that are all 0 are at the bottom
        scale = alt.Scale(domain=[low - room, high + room] if low else [0.0, 1.0])
    # thousands have a prefix; with "~g", the browser would write 10 as 1e+1 on a logarithmic axis
    form = "~s" if max(abs(point.mean) for point in points) >= 1000 else ".6~g"
    return scale, alt.Y("mean:Q", title=None, scale=scale, axis=alt.Axis(tickCount=5, format=form))


def specified(chart: alt.LayerChart | alt.FacetChart, height: float = HEIGHT) -> dict[str, Any]:
    """The specification of a chart that is as wide as its place on the page."""
    spec: dict[str, Any] = chart.properties(width="container", height=height).to_dict(validate=False)
    spec.pop("$schema", None)
    return {
        **spec,
        "background": "transparent",
        "padding": {"left": 2, "right": 10, "top": 4, "bottom": 2},
        "config": CONFIG,
    }
