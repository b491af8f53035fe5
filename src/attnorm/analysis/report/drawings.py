"""Which charts the report draws for a task, and what is written beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnorm.analysis.arms import Arm, TrainedRun
from attnorm.analysis.report.charts import COLOURS, Figure, by_layer, curves, styles_of_arms, styles_of_layers
from attnorm.analysis.report.curves import (
    attention_curves,
    attention_rows,
    final_by_layer,
    metric_curves,
    runs_to_draw,
    scalar_curves,
)
from attnorm.analysis.report.results import title_of

MOST_SCALARS = 12  # charts of learned scalars
LOGGED = {
    "train/loss": "training loss (nats)",
    "train/gradient_norm": "norm of the gradient",
}


@dataclass(frozen=True)
class Drawings:
    """The charts of a task.

    curves: of losses and metrics. scalars: of learned scalars, by layer. attention: entropy and column mass.
    dropped: what is not drawn because there is too much of it, in words.
    """

    curves: list[Figure]
    scalars: list[Figure]
    attention: list[Figure]
    dropped: list[str]


def drawings_of(anchor: str, arms: Sequence[Arm]) -> Drawings:
    """The charts of a task; of many arms, the last ones are drawn as one series."""
    series = series_of(arms)
    styles = styles_of_arms(list(series))
    lines = [
        curves(f"{anchor}-curve-{number}", title_of_curve(name), points, styles)
        for number, (name, points) in enumerate(metric_curves(series).items(), start=1)
    ]
    attention, rows = [], attention_rows(series)
    for column, words, log in (
        ("entropy", "entropy (nats)", False),
        ("column_mass", "smallest column mass", True),
    ):
        for number, (stack, points) in enumerate(attention_curves(rows, column).items(), start=1):
            name = f"{anchor}-{column.replace('_', '-')}-{number}"
            attention.append(curves(name, f"{words}, {stack}", points, styles, log=log))
        if last := final_by_layer(rows, column):
            name = f"{anchor}-{column.replace('_', '-')}-layers"
            attention.append(by_layer(name, f"{words} at the end of training, by layer", last, styles, log))
    scalars = scalar_figures(anchor, arms)
    dropped = []
    if len(series) < len(arms):
        dropped.append(
            f"The charts show the baseline and the {COLOURS - 2} best arms; all others are summed up in one series."
        )
    if len(scalars) > MOST_SCALARS:
        dropped.append(f"{len(scalars) - MOST_SCALARS} further charts of learned scalars are left out.")
    return Drawings(lines, scalars[:MOST_SCALARS], attention, dropped)


def series_of(arms: Sequence[Arm]) -> Mapping[str, Sequence[TrainedRun]]:
    """The runs to draw, by series: one per arm, or fewer if there are more arms than colours."""
    if len(arms) <= COLOURS:
        return {arm.label: runs_to_draw(arm) for arm in arms}
    shown, rest = arms[: COLOURS - 1], arms[COLOURS - 1 :]
    series = {arm.label: runs_to_draw(arm) for arm in shown}
    return {**series, f"the other {len(rest)} arms": [run for arm in rest for run in runs_to_draw(arm)]}


def scalar_figures(anchor: str, arms: Sequence[Arm]) -> list[Figure]:
    """A chart for each learned scalar and stack of each arm."""
    figures: list[Figure] = []
    for arm in arms:
        if len(figures) > MOST_SCALARS:
            break
        for name, stacks in scalar_curves(runs_to_draw(arm)).items():
            for stack, points in stacks.items():
                layers = sorted({point.series for point in points}, key=lambda it: (len(it), it))
                title = f"{title_of(name)}, {stack}, {arm.label}"
                place = f"{anchor}-scalar-{len(figures) + 1}"
                figures.append(curves(place, title, points, styles_of_layers(layers), "layer"))
    return figures


def title_of_curve(name: str) -> str:
    """A column of metrics.csv in words."""
    if name in LOGGED:
        return LOGGED[name]
    metric = name.removeprefix("val/")
    return f"validation {title_of(metric)}" + (" (nats)" if metric == "loss" else "")
