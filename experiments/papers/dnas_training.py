"""What models record while they train ("Doubly-Normalized Attention", Sec. 5.1, 6 and 7, Figures 1, 3 and 4).

Figure 1 shows the smallest attention mass of a key. The mass of key j is sum_i w_ij. With dnas it is at least 1 / M for
M keys (Lemma 1), with softmax it can be 0. Figures 3 and 4 show the hybrid weight, which is the share of dnas in hnas;
1 - u is the share of softmax. The paper calls it u.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnorm.analysis.run_figures import least_mass, line, log_axis, log_floor, split_label
from attnorm.config.read import read_recorded
from attnorm.errors import ConfigError, Problem
from attnorm.experiments.papers.drawing import GREEN, GREY, STYLES, Drawing, Rows, listed, panels, shades
from attnorm.experiments.papers.registry import Settings
from attnorm.imports import short_name
from attnorm.run.csv_files import NO_EVIDENCE
from attnorm.run.opening import read_run
from attnorm.run.run import Run
from attnorm.tasks.task import task_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SITE = "fusion"
SCALAR = "hybrid_weights"


def named(runs: tuple[Path, ...], trust_code: bool) -> Iterator[tuple[Path, str, Any]]:
    """Each run with a name, such as "hnas, seed 1", and its configuration. A name that several runs would have gets the
    folder."""
    configs = [read_run(run, trust_code) for run in runs]
    names = [f"{read_recorded(cfg).label}, seed {cfg['seed']}" for cfg in configs]
    for run, name, cfg in zip(runs, names, configs, strict=True):
        yield run, f"{name} ({run})" if names.count(name) > 1 else name, cfg


# ----------------------------------------------------------------------------------------------------- attention masses


def masses(runs: tuple[Path, ...], trust_code: bool = False) -> Rows:
    """The smallest mass over all heads and recorded examples, by update, and the number M of keys.

    Raises ConfigError for a run without recorded attention at the fusion of views.
    """
    rows: Rows = []
    for run, name_of_run, cfg in named(runs, trust_code):
        try:
            curve = least_mass(run, SITE)
        except ValueError as error:
            raise ConfigError([Problem("runs", str(error), run)]) from error
        task: Any = task_of(read_recorded(cfg), run)  # a visual task, the only kind that has this site
        _, boxes = task.sizes
        keys = sum(boxes[1:])  # M: the boxes of all views but the primary one, whose boxes are the queries
        for update, mass in curve.items():
            name = short_name(cfg["attention"][SITE])
            row = {"run": name_of_run, "normalizer": name, "update": update, "smallest_mass": mass}
            rows.append(row | {"keys": keys, "bound": 1 / keys})
    return rows


def draw_masses(settings: Settings) -> Drawing:
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
    return Drawing(figure, rows, sentences_on_masses(rows))


def sentences_on_masses(rows: Rows) -> tuple[str, str]:
    """The range of each normalizer, and whether Lemma 1 holds."""
    by_name: dict[str, list[float]] = {}
    for row in rows:
        by_name.setdefault(row["normalizer"], []).append(row["smallest_mass"])
    ranges = ", ".join(f"{name} between {min(masses):.2g} and {max(masses):.2g}" for name, masses in by_name.items())
    bound = max(row["bound"] for row in rows)
    held = [row["smallest_mass"] >= row["bound"] * (1 - 1e-5) for row in rows if row["normalizer"] == "dnas"]
    lemma = "dnas stays above this bound at every recorded update" if all(held) else "dnas falls below it"
    return (
        f"During training, the smallest mass of any key is, with {ranges}.",
        f"The dotted line is 1/M = {bound:.3g}, below which no key can fall with dnas (Lemma 1)"
        + (f"; {lemma}." if held else "."),
    )


# ------------------------------------------------------------------------------------------------------- hybrid weights


def hybrid_weights(runs: tuple[Path, ...], stack: str, trust_code: bool = False) -> Rows:
    """The hybrid weights of one stack of layers, by run, layer, head and update.

    Raises ConfigError for a run that has none there.
    """
    rows: Rows = []
    for run, name_of_run, cfg in named(runs, trust_code):
        recorded = [(*split_label(row["layer"]), row) for row in Run(run).rows(SCALAR)]
        layers = [(int(number or 0), row) for name, number, row in recorded if name == stack]
        if not layers:
            there = ", ".join(dict.fromkeys(name for name, *_ in recorded)) or "none"
            raise ConfigError([Problem("runs", f"no hybrid weights of {stack} (recorded: {there}); needs hnas", run)])
        factor = cfg["optimizer"].get("hybrid_lr_factor", 1)
        rows += [
            {
                "run": name_of_run,
                "layer": layer,
                "head": row["head"],
                "update": int(row["step"]),
                "hybrid_weight": float(row["value"]),
                "lr": cfg["optimizer"]["lr"],
                "hybrid_lr_factor": factor,
            }
            for layer, row in layers
        ]
    return rows


def draw_fusion(settings: Settings) -> Drawing:
    """Draws Figure 3."""
    rows = hybrid_weights(settings.runs, "fusion", settings.trust_code)
    last = at_the_end(rows)
    figure = draw_weights(rows, "Hybrid weight of the fusion of views (visual question answering)")
    return Drawing(
        figure,
        rows,
        (
            f"The share of dnas starts at {rows[0]['hybrid_weight']:.2f} and is {shares(last)} at update "
            f"{rows[-1]['update']}; in the paper it quickly goes to 1.0.",
            sentence_on_rates(rows),
        ),
    )


def draw_layers(settings: Settings) -> Drawing:
    """Draws Figure 4."""
    rows = hybrid_weights(settings.runs, "encoder", settings.trust_code)
    last = at_the_end(rows)
    figure = draw_weights(rows, "Hybrid weight of each encoder layer (masked language modelling)")
    above = sum(value >= 0.5 for value in last.values())
    return Drawing(
        figure,
        rows,
        (
            "From the layer nearest the input to the one nearest the output, the share of dnas is "
            f"{shares(last)} at the last update; it is at least 0.5 in {above} of {len(last)} layers (in the "
            "paper in all of them, and closest to 0.5 near the output).",
            sentence_on_rates(rows),
        ),
    )


def at_the_end(rows: Rows) -> dict[tuple[str, int], float]:
    """The weight of each layer of each run at its last update, as the mean over heads."""
    weights: dict[tuple[str, int], dict[str, float]] = {}
    for row in rows:  # later updates replace earlier ones
        weights.setdefault((row["run"], row["layer"]), {})[row["head"]] = row["hybrid_weight"]
    return {key: sum(heads.values()) / len(heads) for key, heads in weights.items()}


def shares(last: Mapping[tuple[str, int], float]) -> str:
    """The last weights of all layers, run by run."""
    runs = dict.fromkeys(run for run, _ in last)
    by_run = {run: listed(value for (name, _), value in last.items() if name == run) for run in runs}
    return by_run[next(iter(by_run))] if len(by_run) == 1 else "; ".join(f"{it} ({run})" for run, it in by_run.items())


def sentence_on_rates(rows: Rows) -> str:
    """How fast the weights can move."""
    rates = dict.fromkeys((row["lr"], row["hybrid_lr_factor"]) for row in rows)
    written = " and ".join(f"{lr:g} times {factor:g}" for lr, factor in rates)
    return (
        f"How far the weights move depends on their learning rate, here {written} (optimizer.hybrid_lr_factor). "
        f"{NO_EVIDENCE} The dashed line is an equal mixture."
    )


def draw_weights(rows: Rows, title: str) -> "Figure":
    """One panel per run, one colour per layer, one line per head."""
    runs = list(dict.fromkeys(row["run"] for row in rows))
    layers = sorted({row["layer"] for row in rows})
    colors = dict(zip(layers, shades(len(layers)) if len(layers) > 1 else [GREEN], strict=True))
    figure, [axes] = panels(1, len(runs), (3.6 * len(runs) + 2.4, 3.8), title, sharey=True)
    for panel, run in zip(axes, runs, strict=True):
        weights: dict[tuple[int, str], dict[int, float]] = {}
        for row in rows:
            if row["run"] == run:
                weights.setdefault((row["layer"], row["head"]), {})[row["update"]] = row["hybrid_weight"]
        for (layer, _), curve in weights.items():
            line(panel, curve, color=colors[layer], linewidth=1.2)
        panel.axhline(0.5, color="black", linewidth=0.8, linestyle="--")
        panel.set(xlabel="update", title=run)
    moved = max(abs(row["hybrid_weight"] - 0.5) for row in rows)
    axes[0].set_ylim(*((0.4, 0.6) if moved < 0.1 else (-0.02, 1.02)))  # a small change should look small
    axes[0].set_ylabel("hybrid weight (share of dnas)")
    if len(layers) > 1:
        from matplotlib.lines import Line2D

        handles = [Line2D([], [], color=colors[layer], label=f"layer {layer}") for layer in layers]
        figure.legend(handles=handles, loc="outside right center")
    return figure
