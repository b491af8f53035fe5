"""The forest plot of the report: the differences of all arms from the baseline, with their intervals."""

from math import isfinite
from textwrap import fill

import numpy as np
from matplotlib.ticker import MaxNLocator

from attnorm.analysis.chart import Chart, values_table
from attnorm.analysis.colours import COLOURS, light_colours, styles_of_arms
from attnorm.analysis.comparison import Comparison
from attnorm.analysis.paper import LETTER, LINE, Figure, panel, plain_text
from attnorm.analysis.table import title_of

MANY = 12  # rows from which it is drawn narrowly, without single seeds


def forest(name: str, comparison: Comparison) -> Chart:
    """The difference of each arm from the baseline: the mean, both intervals, and the difference of each seed."""
    level = comparison.verdicts[0].difference.level * 100
    verdicts = [verdict for verdict in comparison.verdicts if not verdict.is_silent]
    if many := len(verdicts) > MANY:
        verdicts.sort(key=lambda verdict: -verdict.difference.estimate)
    rows, sentences = [], []
    for verdict in verdicts:
        difference, wide, narrow = verdict.difference.estimate, verdict.interval, verdict.difference.new_seeds
        ends = [end if isfinite(end) else None for end in (wide.low, wide.high, narrow.low, narrow.high)]
        rows.append((verdict.label, difference, *ends, verdict.word))
        interval = "" if ends[0] is None else f", interval {ends[0]:.4g} to {ends[1]:.4g}"
        sentences.append(f"{verdict.label}: {difference:+.4g}{interval}, {verdict.word}")
    title = f"difference from {comparison.baseline} in {title_of(comparison.metric)}"
    labels = [verdict.label for verdict in verdicts]
    styles = styles_of_arms([comparison.baseline, *labels])
    if len(styles) > COLOURS:  # the curves show fewer arms, in other colours
        styles = {label: {"color": light_colours()["--accent"]} for label in labels}

    def draw(width: float) -> Figure:
        names = [plain_text(fill(label, int(0.38 * width / LETTER))) for label in labels]
        heights = np.array([max(0.17 if many else 0.34, LINE * (name.count("\n") + 1) + 0.03) for name in names])
        places = heights.cumsum() - heights / 2  # inches
        figure = Figure(width, heights.sum() + 0.5)
        axes = panel(figure)
        axes.axvline(0, color=light_colours()["--ink-soft"], linewidth=0.8, linestyle=(0, (4, 3)))
        for y, verdict in zip(places, verdicts, strict=True):
            colour, ends, seeds = styles[verdict.label]["color"], verdict.interval, verdict.difference.new_seeds
            axes.hlines(y, seeds.low, seeds.high, color=colour, linewidth=4, alpha=0.35)
            axes.hlines(y, ends.low, ends.high, color=colour, linewidth=1.4)
            inside = colour if verdict.is_shown else "#ffffff"
            axes.plot(verdict.difference.estimate, y, "o", color=colour, markerfacecolor=inside, markersize=5)
            if not many:
                each = [*verdict.by_seed.values()]
                axes.plot(each, [y + 0.1] * len(each), "|", color=light_colours()["--ink-soft"], markersize=4)
        axes.set_yticks(places, names)
        axes.set_ylim(heights.sum(), 0)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(visible=False, axis="y")
        axes.grid(axis="x", color=light_colours()["--grid"], linewidth=0.7)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.set_xlabel(f"difference in {title_of(comparison.metric)}")  # the label of the baseline can be long
        return figure

    listed = "; ".join(sentences[:MANY]) + ("; and others" if many else "")
    columns = ("arm", "difference", f"{level:g} % interval from", "to", "for new seeds only from", "to", "verdict")
    reading = (
        "Thin line: interval for new seeds and new examples, on which the verdict rests. Thick line: for new seeds on "
        f"these examples only.{'' if many else ' Ticks: the difference of each seed.'} Both intervals are unadjusted. "
        "A filled dot: shown, adjusted for all comparisons."
    )
    description, values = f"Forest plot of the {title}. {listed}.", values_table(title, columns, rows)
    return Chart(name, title, description, draw, values, reading=reading, is_wide=True)
