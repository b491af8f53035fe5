"""Which charts the report draws for a task, and what is written beside them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from attnorm.analysis.arms import Arm, as_number
from attnorm.analysis.chart import Chart
from attnorm.analysis.colours import COLOURS, Style, styles_of_arms, styles_of_layers
from attnorm.analysis.provenance import device_of
from attnorm.analysis.report.charts import by_layer, curves
from attnorm.analysis.report.curves import (
    Point,
    attention_curves,
    difference_curves,
    final_by_layer,
    layer_rows,
    metric_curves,
    metric_rows,
    runs_to_draw,
    scalar_curves,
)
from attnorm.analysis.table import GRADIENT_NORM, title_of, title_of_curve
from attnorm.analysis.tuning_record import TuningRecord
from attnorm.run.csv_files import NO_EVIDENCE, is_share, rate_note
from attnorm.run.run import Run

VALIDATION_LOSS = "val/loss"  # a column of metrics.csv
MOST_SCALARS = 12  # charts of learned scalars
HEAD_MEASURES = {  # columns of head_measures.csv: words, and whether the axis is logarithmic
    "entropy": ("entropy / log n", False),
    "sink_mass": ("largest mean mass on a key", False),
    "first_mass": ("mean mass on the first key", False),
    "sink": ("sink rate", False),
    "column_mass_min": ("smallest column mass", True),
    "column_mass_max": ("largest column mass", True),
    "marginal_error": ("error of the column sums", True),
    "effective_rank": ("effective rank of the weights", False),
    "query_likelihood": ("log-likelihood of the queries (nats)", False),
    "key_likelihood": ("log-likelihood of the keys (nats)", False),
    "above_rows": ("objective above its minimum, rows constrained (nats)", False),
    "above_both": ("objective above its minimum, rows and columns constrained (nats)", False),
    "deviation": ("deviation of softmax from the dual solution", False),
    "deviation_keys": ("deviation, with keys as templates", False),
}
STATE_MEASURES = {  # columns of state_measures.csv
    "effective_rank": ("effective rank of the states", False),
    "rank_one_distance": ("distance to rank one", False),
    "cosine": ("mean cosine of two states", False),
    "kurtosis": ("kurtosis of the states", True),
    "largest": ("largest activation", True),
}


@dataclass(frozen=True)
class Drawings:
    """The charts of a task.

    curves: of losses and metrics. differences: of losses and metrics from those of the baseline.
    scalars: of learned scalars, by layer. attention: entropy and column mass.
    measures: by layer, what `callbacks=measures` has recorded.
    dropped: what is not drawn because there is too much of it, in words.
    """

    curves: list[Chart]
    differences: list[Chart]
    scalars: list[Chart]
    attention: list[Chart]
    measures: list[Chart]
    dropped: list[str]


def drawings_of(anchor: str, arms: Sequence[Arm], compared: Collection[str]) -> Drawings:
    """The charts of a task; of many arms, the last ones are drawn as one series.

    arms: the baseline first. compared: the labels of the arms about whose differences from it anything may be said.
    """
    shown = arms if len(arms) <= COLOURS else arms[: COLOURS - 1]  # as many as colours tell apart
    series = {arm.label: runs_to_draw(arm) for arm in shown}
    if rest := arms[len(shown) :]:
        series[f"the other {len(rest)} arms"] = [run for arm in rest for run in runs_to_draw(arm)]
    styles = styles_of_arms(list(series))
    recorded = metric_rows(series)
    by_metric = metric_curves(recorded)
    lines = [
        curves(f"{anchor}-curve-{number}", title_of_curve(name), points, styles)
        for number, (name, points) in enumerate(by_metric.items(), start=1)
    ]
    lines += seconds_figures(anchor, series, by_metric.get(VALIDATION_LOSS, []), styles)
    losses = {name: rows for name, rows in recorded.items() if name != GRADIENT_NORM}
    gaps = difference_curves(losses, arms[0].label, compared) if compared else {}
    differences = []
    for number, (name, points) in enumerate(gaps.items(), start=1):
        title = f"{title_of_curve(name)}, difference from {arms[0].label}"
        if points:
            differences.append(curves(f"{anchor}-difference-{number}", title, points, styles, from_zero=True))
    attention, rows = [], layer_rows(series, "attention")
    for column, words, log in (("entropy", "entropy (nats)", False), ("column_mass", "smallest column mass", True)):
        for number, (stack, points) in enumerate(attention_curves(rows, column).items(), start=1):
            name = f"{anchor}-{column.replace('_', '-')}-{number}"
            attention.append(curves(name, f"{words}, {stack}", points, styles, log=log))
        if last := final_by_layer(rows, column):
            name = f"{anchor}-{column.replace('_', '-')}-layers"
            attention.append(by_layer(name, f"{words} at the end of training, by layer", last, styles, log))
    scalars = scalar_figures(anchor, arms)
    dropped = []
    if len(series) < len(arms):
        dropped.append(f"The charts show the baseline and the {COLOURS - 2} best arms; the others are one series.")
    if len(scalars) > MOST_SCALARS:
        dropped.append(f"{len(scalars) - MOST_SCALARS} further charts of learned scalars are left out.")
    measures = measure_figures(anchor, series, styles)
    return Drawings(lines, differences, scalars[:MOST_SCALARS], attention, measures, dropped)


def seconds_figures(
    anchor: str, series: Mapping[str, Sequence[Run]], points: Sequence[Point], styles: Mapping[str, Style]
) -> list[Chart]:
    """The validation loss against the seconds of training, validations and checkpoints not counted. An update of an arm
    takes as long as in the median of its runs. [] unless all runs have recorded it, on one machine.

    points: the same loss against the number of updates.
    """
    seconds = {}
    for label, runs in series.items():
        measured = [each for run in runs if (each := as_number(run.summary.get("seconds_per_update")))]
        if not measured or len(measured) < len(runs):
            return []
        seconds[label] = median(measured)
    if not points or len({device_of(run) for runs in series.values() for run in runs}) > 1:
        return []
    at_seconds = [replace(point, step=float(f"{point.step * seconds[point.series]:.4g}")) for point in points]
    measure = title_of_curve(VALIDATION_LOSS)
    return [curves(f"{anchor}-seconds", measure, at_seconds, styles, along="seconds of training")]


def scalar_figures(anchor: str, arms: Sequence[Arm]) -> list[Chart]:
    """A chart for each learned scalar and stack of each arm, with a note on how fast the scalar could move, and on what
    a share of a mixture does not show."""
    figures: list[Chart] = []
    for arm in arms:
        if len(figures) > MOST_SCALARS:
            break
        runs = runs_to_draw(arm)
        for name, stacks in scalar_curves(runs).items():
            rate = rate_note(row for run in runs if name in run.learned_scalars for row in run.rows(name))
            for stack, points in stacks.items():
                layers = sorted({point.series for point in points}, key=lambda layer: (len(layer), layer))
                title = f"{title_of(name)}, {stack}, {arm.label}"
                figure_anchor = f"{anchor}-scalar-{len(figures) + 1}"
                figure = curves(figure_anchor, title, points, styles_of_layers(layers), "layer")
                figures.append(replace(figure, note=f"{rate} {NO_EVIDENCE * is_share(name)}".strip()))
    return figures


def measure_figures(anchor: str, series: Mapping[str, Sequence[Run]], styles: Mapping[str, Style]) -> list[Chart]:
    """A chart by layer for each measure that was recorded: the last values."""
    heads, states = (layer_rows(series, file) for file in ("head_measures", "state_measures"))
    if {"objective", "objective_rows", "objective_both"} <= set(heads.columns):
        above_rows, above_both = (heads["objective"] - heads[f"objective_{mass}"] for mass in ("rows", "both"))
        heads = heads.assign(above_rows=above_rows.clip(lower=0), above_both=above_both)  # softmax is at the minimum
    tables = [(heads, HEAD_MEASURES, "")]
    if "place" in states:
        places = sorted(states["place"].unique())
        tables += [(states[states["place"] == place], STATE_MEASURES, f", {place}") for place in places]
    figures: list[Chart] = []
    for rows, measures, place in tables:
        for column, (words, log) in measures.items():
            if last := final_by_layer(rows, column):
                name = f"{anchor}-measure-{len(figures) + 1}"
                figures.append(by_layer(name, f"{words}{place}", last, styles, log))
    return figures


def tuning_figures(name: str, tuning: TuningRecord, arms: Sequence[Arm]) -> list[Chart]:
    """The metric that selects a value against the values that were tried."""
    tuned, points = tuning.of(arms), list[Point]()
    for label, values in tuned.items():
        for value, at in zip(tuning.values, tuning.numbers, strict=True):
            scores = [trial.value for trial in values.trials[value] if trial.value is not None]
            if (mean := values.mean(value)) is not None and scores:
                points.append(Point(label, at, mean, min(scores), max(scores), len(scores)))
    if not points:
        return []
    measure = title_of_curve(tuning.monitor)
    return [curves(name, measure, points, styles_of_arms(list(tuned)), along=tuning.key, tried=tuning.numbers)]
