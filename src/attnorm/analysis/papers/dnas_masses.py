"""The smallest attention mass of a key while models train ("Doubly-Normalized Attention", Sec. 5.1, Figure 1).

The mass of key j is sum_i w_ij. With dnas it is at least 1 / M for M keys (Lemma 1), with softmax it can be 0.
"""

from pathlib import Path
from typing import Any

from attnorm.analysis.figures import least_mass, line, log_axis, log_floor
from attnorm.analysis.papers.drawing import GREY, STYLES, Drawing, Rows, names_of, panels
from attnorm.analysis.papers.registry import Settings
from attnorm.attention.build import short_name
from attnorm.config.resolve import resolve_recorded
from attnorm.errors import ConfigError, Problem
from attnorm.run.opening import read_run
from attnorm.tasks.task import task_of

SITE = "fusion"


def masses(runs: tuple[Path, ...], trust_code: bool = False) -> Rows:
    """The smallest mass over all heads and recorded examples, by update, and the number M of keys.

    Raises ConfigError for a run without recorded attention at the fusion of views.
    """
    rows: Rows = []
    configs = [read_run(run, trust_code) for run in runs]
    for run, name_of_run, cfg in zip(runs, names_of(runs, configs), configs, strict=True):
        try:
            curve = least_mass(run, SITE)
        except ValueError as error:
            raise ConfigError([Problem("runs", str(error), run)]) from error
        keys = number_of_keys(task_of(resolve_recorded(cfg), run))
        for update, mass in curve.items():
            name = short_name(cfg["attention"][SITE])
            row = {"run": name_of_run, "normalizer": name, "update": update, "smallest_mass": mass}
            rows.append(row | {"keys": keys, "bound": 1 / keys})
    return rows


def number_of_keys(task: Any) -> int:
    """M: the boxes of all views but the primary one, whose boxes are the queries."""
    _, boxes = task.sizes()  # of a visual task, the only kind that has this site
    return sum(boxes[1:])


def draw(settings: Settings) -> Drawing:
    """Draws Figure 1."""
    rows = masses(settings.runs, settings.trust_code)
    figure, [[axes]] = panels(1, 1, (7, 4), "Smallest attention mass of a key during training")
    values = [row["smallest_mass"] for row in rows]
    floor = log_floor([*values, *(row["bound"] for row in rows)])
    curves: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        curves.setdefault((row["run"], row["normalizer"]), {})[row["update"]] = row["smallest_mass"]
    several = len({name for _, name in curves}) < len(curves)
    for (run, name), curve in curves.items():
        line(axes, curve, floor, label=run if several else name, **STYLES.get(name, {"color": GREY}))
    for keys in sorted({row["keys"] for row in rows}):
        axes.axhline(1 / keys, color="black", linewidth=0.8, linestyle=":", label=f"1 / M, M = {keys} keys")
    axes.set(xlabel="update", ylabel="smallest mass over keys,\nheads and examples")
    log_axis(axes, floor, values)
    figure.legend(loc="outside right center")
    return Drawing(figure, rows, sentences(rows))


def sentences(rows: Rows) -> tuple[str, str]:
    """The range of each normalizer, and whether Lemma 1 holds."""
    by_name: dict[str, list[float]] = {}
    for row in rows:
        by_name.setdefault(row["normalizer"], []).append(row["smallest_mass"])
    ranges = ", ".join(f"{name} between {min(found):.2g} and {max(found):.2g}" for name, found in by_name.items())
    bound = max(row["bound"] for row in rows)
    held = [row["smallest_mass"] >= row["bound"] * (1 - 1e-5) for row in rows if row["normalizer"] == "dnas"]
    lemma = "dnas stays above this bound at every recorded update" if all(held) else "dnas falls below it"
    return (
        f"During training, the smallest mass of any key is, with {ranges}.",
        f"The dotted line is 1/M = {bound:.3g}, below which no key can fall with dnas (Lemma 1)"
        + (f"; {lemma}." if held else "."),
    )
