"""Figures of a run, drawn from the files in its folder."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from attnorm.analysis.colours import styles_of_arms, styles_of_layers
from attnorm.analysis.paper import COLUMN, PAGE, Figure, FigureSet, bare, panel
from attnorm.imports import short_name
from attnorm.run.csv_files import NO_EVIDENCE, is_share, rate_note
from attnorm.run.run import Run

DECADES = 12  # maximum range of a logarithmic axis; underflow would extend it to 1e-45 and below

MIX = "mix_"  # start of the names of the shares of the members of a mix

Rows = list[dict[str, str]]
Curve = dict[int, float]  # step -> value
Stack = dict[str, dict[str, Curve]]  # layer number ("" in a stack of one unnumbered layer) -> head -> curve


def draw_run(run: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Draws all figures for which the run folder has data, into figures/ there. Returns the files of the pictures."""
    return figures_of(run).save(run / "figures", formats)


def figures_of(run: Path) -> FigureSet:
    """All figures for which the run folder has data: one per learned scalar, such as "hybrid_weights", then "mix", and
    "attention" with the entropy and the smallest column mass of every head."""
    recorded = Run(run)
    scalars = {name: recorded.rows(name) for name in recorded.learned_scalars}
    attention = recorded.rows("attention")
    cfg = recorded.config if scalars or attention else {}
    shares = {name.removeprefix(MIX): scalars.pop(name) for name in [*scalars] if name.startswith(MIX)}
    drawn = FigureSet()
    for name, rows in scalars.items():
        words = name.replace("_", " ")
        drawn[name] = draw_learned_scalars(words, {words: rows}, cfg, is_share(name))
    if shares:
        members = {f"share of {member}": rows for member, rows in shares.items()}
        drawn["mix"] = draw_learned_scalars("shares of the members", members, cfg, are_shares=True)
    if attention:
        quantities = [
            Quantity("entropy (nats),\nmean over queries", _stacks_of(attention, "entropy")),
            Quantity("smallest column mass,\nmean over examples", _stacks_of(attention, "column_mass"), log=True),
        ]
        figure, _, caption = draw_stacks(quantities, "attention on the first validation batch", cfg)
        drawn["attention"] = figure.finished(caption)
    return drawn


def draw_learned_scalars(words: str, scalars: dict[str, Rows], cfg: dict, are_shares: bool) -> Figure:
    """Draws learned scalars, such as the hybrid weights or the shares of the members of a mix, against the update
    number.

    words: what is drawn. scalars: by label, the rows of ``<name>.csv``. There is one row of panels per scalar, one
    panel per stack, one colour per layer and one line per head. are_shares: whether they are shares of a mixture.
    """
    quantities = [Quantity(label, _stacks_of(rows, "value")) for label, rows in scalars.items()]
    figure, panels, caption = draw_stacks(quantities, words, cfg)
    if are_shares or all(0 <= value <= 1 for each in quantities for value in each.values()):
        for axes in panels.flat:
            axes.set_ylim(-0.02, 1.02)  # a small change should look small
    rates = f"Learning rate {cfg['optimizer']['lr']:g}.", rate_note(row for rows in scalars.values() for row in rows)
    return figure.finished(caption, *rates, NO_EVIDENCE * are_shares)


def compare_column_mass(runs: dict[str, Path], site: str | None = None) -> Figure:
    """Draws the smallest column mass of several runs against the update number, on a logarithmic scale.

    The value of a run is the minimum over its heads and layers, or over those of one site, on the recorded batch
    ("Doubly-Normalized Attention", Figure 1). runs: name to show -> folder. Raises ValueError for a run without
    recorded values of such a layer.
    """
    curves = {name: least_mass(run, site) for name, run in runs.items()}
    figure = Figure(COLUMN, 2.2)
    axes = panel(figure)
    floor = log_floor(value for curve in curves.values() for value in curve.values())
    for (name, curve), style in zip(curves.items(), styles_of_arms([*curves]).values(), strict=True):
        line(axes, curve, floor, label=name, **style)
    axes.set(xlabel="update", ylabel="smallest attention mass of a key" + (f", {site}" if site else ""))
    log_axis(axes, floor, (value for curve in curves.values() for value in curve.values()))
    figure.name_lines(dict(zip(curves, axes.get_lines(), strict=True)))
    return figure.finished()


@dataclass(frozen=True)
class Quantity:
    """One row of panels: its label, its curves by stack, and whether its axis is logarithmic."""

    label: str
    stacks: dict[str, Stack]
    log: bool = False

    def values(self) -> list[float]:
        """The values of all curves."""
        heads = (curve for stack in self.stacks.values() for layer in stack.values() for curve in layer.values())
        return [value for curve in heads for value in curve.values()]


def _stacks_of(rows: Rows, column: str) -> dict[str, Stack]:
    """The curves of a column by stack, layer and head, ordered by step."""
    stacks: dict[str, Stack] = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for row in sorted(rows, key=lambda row: int(row["step"])):
        stack, number = split_label(row["layer"])
        stacks[stack][number][row["head"]][int(row["step"])] = float(row[column])
    return stacks


def split_label(layer: str) -> tuple[str, str]:
    """'decoder/0/cross' -> ('decoder cross', '0'), 'fusion' -> ('fusion', '')."""
    parts = layer.split("/")
    return " ".join(part for part in parts if not part.isdigit()), "".join(filter(str.isdigit, parts))


def normalizer_at(stack: str, attention: dict) -> str:
    """The normalizer's name at the site of a stack: 'decoder cross' is the site `cross` of a model that has it, and
    otherwise belongs to `decoder`; '' if the configuration does not name it."""
    names = [attention[part] for part in reversed(stack.split()) if isinstance(attention.get(part), str)]
    return short_name(names[0]) if names else ""


def draw_stacks(quantities: list[Quantity], words: str, cfg: dict) -> tuple[Figure, np.ndarray, str]:
    """A figure with one row of panels per quantity and one column per stack, its axes (rows x columns), and the first
    sentence of its caption. words: what is drawn."""
    stacks = list(quantities[0].stacks)
    numbers = sorted({number for stack in quantities[0].stacks.values() for number in stack if number}, key=int)
    colours = {"": "black"} | {number: style["color"] for number, style in styles_of_layers(numbers).items()}
    figure = Figure(COLUMN if len(stacks) == 1 else PAGE, 1.6 * len(quantities) + 0.4)
    panels = figure.subplots(len(quantities), len(stacks), sharex=True, squeeze=False)
    for axes in panels.flat:
        bare(axes)
    for row, quantity in zip(panels, quantities, strict=True):
        floor = log_floor(quantity.values()) if quantity.log else None
        for axes, stack in zip(row, stacks, strict=True):
            for number, heads in quantity.stacks[stack].items():
                for curve in heads.values():
                    line(axes, curve, floor, color=colours[number], linewidth=1, alpha=0.8)
            if floor is None:
                axes.ticklabel_format(axis="y", useOffset=False)  # 4.1582, not 0.0002 below "+4.158"
        row[0].set_ylabel(quantity.label)
        if floor is not None:
            for axes in row[1:]:
                axes.sharey(row[0])
                axes.tick_params(which="both", labelleft=False)
            log_axis(row[0], floor, quantity.values())
    colon, ticks = (": ", 4) if len(stacks) <= 3 else (":\n", 2)
    for axes, stack in zip(panels[0], stacks, strict=True):
        axes.set_title(colon.join(filter(None, (stack, normalizer_at(stack, cfg["attention"])))))
    for axes in panels[-1]:
        axes.set_xlabel("update")
        axes.xaxis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 5, 10], integer=True))
    figure.name_lines({f"layer {number}": Line2D([], [], color=colours[number]) for number in numbers})
    several = any(len(heads) > 1 for stack in quantities[0].stacks.values() for heads in stack.values())
    caption = f"{cfg['task']['name']}, seed {cfg['seed']}: {words}" + ", one line per head" * several
    return figure, panels, f"{caption}."


def line(axes: Axes, curve: Curve, floor: float | None = None, **style: Any) -> None:
    """A line with a dot at its last point; values below `floor` are drawn at `floor`."""
    values = [value if floor is None else max(value, floor) for value in curve.values()]
    axes.plot(list(curve), values, marker="o", markersize=3, markevery=[-1], **style)


def log_floor(values: Iterable[float]) -> float:
    """The lower end of a logarithmic axis.

    It is the smallest positive value, or a power of ten below it if there are zeros, but at most DECADES below the
    largest value.
    """
    values = [value for value in values if math.isfinite(value)]
    positive = [value for value in values if value > 0]
    if not positive:
        return 10.0**-DECADES
    smallest = min(positive) if min(values) > 0 else 10.0 ** math.floor(math.log10(min(positive)) - 1)
    return max(smallest, 10.0 ** math.floor(math.log10(max(positive)) - DECADES))


def log_axis(axes: Axes, floor: float, values: Iterable[float]) -> None:
    """Makes the axis logarithmic, starting at `floor`, and adds a note if there are values below it."""
    axes.set_yscale("log")
    low, high = 0.7 * floor, axes.get_ylim()[1]
    axes.set_ylim(low, high * (high / low) ** 0.03)  # the margin is that of the extended axis
    if any(value < floor for value in values):
        axes.set_ylabel(f"{axes.get_ylabel()}\n(below {floor:.0e}: at the bottom)")


def least_mass(run: Path, site: str | None) -> Curve:
    """For each recorded update, the smallest column mass of all heads and layers, or of those of a site."""
    recorded = Run(run).rows("attention")
    least: Curve = {}
    for row in recorded:
        if site in (None, row["layer"].partition("/")[0]):
            step, mass = int(row["step"]), float(row["column_mass_min"])
            least[step] = min(mass, least.get(step, mass))
    if not least:
        sites = ", ".join(dict.fromkeys(row["layer"].partition("/")[0] for row in recorded))
        nothing = "; is it a run with attention, and with callbacks.attention_stats.every_n_steps > 0?"
        where = f" at {site}, but at {sites}" if recorded else nothing
        raise ValueError(f"{run}: no attention was recorded{where}")
    return least
