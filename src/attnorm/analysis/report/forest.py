"""The forest plot of the report: the differences of all arms from the baseline, with their intervals."""

from math import isfinite
from typing import Any

import altair as alt

from attnorm.analysis.comparison import Comparison
from attnorm.analysis.report.charts import Chart, specified
from attnorm.analysis.report.curves import rounded
from attnorm.analysis.table import title_of
from attnorm.analysis.verdict import AT_THESE_RATES

MANY = 12  # rows from which it is drawn narrowly, without single seeds


def forest(name: str, comparison: Comparison) -> Chart:
    """The difference of each arm from the baseline: the mean, both intervals, and the difference of each seed."""
    level = comparison.verdicts[0].difference.level * 100
    verdicts = [verdict for verdict in comparison.verdicts if not verdict.is_silent]
    if many := len(verdicts) > MANY:
        verdicts.sort(key=lambda verdict: -verdict.difference.estimate)
    rows, sentences = list[dict[str, Any]](), list[str]()
    for verdict in verdicts:
        difference, wide, narrow = verdict.difference.estimate, verdict.interval, verdict.difference.new_seeds
        ends = {"low": wide.low, "high": wide.high, "seeds_low": narrow.low, "seeds_high": narrow.high}
        known = {name: rounded(value) if isfinite(value) else None for name, value in ends.items()}
        rows.append({"arm": verdict.label, "difference": rounded(difference), **known, "verdict": verdict.word})
        interval = "" if known["low"] is None else f", interval {known['low']:.4g} to {known['high']:.4g}"
        sentences.append(f"{verdict.label}: {rounded(difference):+.4g}{interval}, {verdict.word}")
    each = [(verdict.label, seed, value) for verdict in verdicts for seed, value in verdict.by_seed.items()]
    seeds = [] if many else [{"arm": arm, "seed": seed, "value": rounded(value)} for arm, seed, value in each]
    fields = {
        "arm": "arm",
        "difference": "difference",
        "low": f"{level:g} % interval from",
        "high": "to",
        "seeds_low": "for new seeds only from",
        "seeds_high": "to ",
        "verdict": "verdict",
    }
    title = f"difference from {comparison.baseline} in {title_of(comparison.metric)}"
    of_axis = f"difference in {title_of(comparison.metric)}"  # the label of the baseline can be long
    labels = [row["arm"] for row in rows]
    limit = alt.ExprRef("max(100, 0.38 * containerSize()[0])")  # names of arms can be long, and phones are narrow
    y = alt.Y("arm:N", sort=labels, title=None, axis=alt.Axis(labelLimit=limit))
    axis = alt.Axis(tickCount=6, format=".6~g")  # with "~g", the browser writes 10 as 1e+1

    def x(field: str) -> alt.X:
        return alt.X(f"{field}:Q", title=of_axis, axis=axis, scale=alt.Scale(zero=True, nice=True))

    base = alt.Chart(alt.NamedData("rows")).encode(y=y)
    tooltip = [
        alt.Tooltip("arm:N", title="arm"),
        alt.Tooltip("difference:Q", title="difference", format="+.4~g"),
        alt.Tooltip("low:Q", title="from", format="+.4~g"),
        alt.Tooltip("high:Q", title="to", format="+.4~g"),
        alt.Tooltip("verdict:N", title="verdict"),
    ]
    zero = alt.Chart(alt.NamedData("zero")).mark_rule(strokeDash=[4, 3], color="var(--ink-soft)").encode(x=x("at"))
    wide_rule = base.mark_rule(strokeWidth=2, color="var(--accent)").encode(x=x("low"), x2="high:Q")
    narrow_rule = base.mark_rule(strokeWidth=6, color="var(--accent)", opacity=0.35).encode(
        x=x("seeds_low"), x2="seeds_high:Q"
    )
    words, paper = ["shown", AT_THESE_RATES, "not shown", "no verdict"], "var(--paper)"
    fill = alt.Scale(domain=words, range=["var(--accent)", paper, paper, paper])
    dots = base.mark_point(size=90, strokeWidth=2, stroke="var(--accent)", opacity=1, filled=False).encode(
        x=x("difference"), fill=alt.Fill("verdict:N", scale=fill, legend=None), tooltip=tooltip
    )
    tick = alt.Chart(alt.NamedData("seeds")).mark_tick(color="var(--ink-soft)", thickness=1.5, height=9, yOffset=13)
    value = alt.Tooltip("value:Q", title="difference", format="+.4~g")
    ticks = tick.encode(y=y, x=x("value"), tooltip=[tooltip[0], alt.Tooltip("seed:N", title="seed"), value])
    listed = "; ".join(sentences[:MANY]) + ("; and others" if many else "")
    chart = alt.layer(zero, narrow_rule, wide_rule, *([ticks] if seeds else []), dots)
    spec = specified(chart, height=(22 if many else 46) * len(rows))
    data = {"rows": rows, "seeds": seeds, "zero": [{"at": 0}]}
    reading = (
        "Thin line: interval for new seeds and new examples, on which the verdict rests. Thick line: for new seeds on "
        f"these examples only.{' Ticks: the difference of each seed.' if seeds else ''} Both intervals are unadjusted. "
        "A filled dot: shown, adjusted for all comparisons."
    )
    return Chart(name, title, f"Forest plot of the {title}. {listed}.", spec, data, fields, [], reading=reading)
