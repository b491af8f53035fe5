"""Hybrid weights while models train ("Doubly-Normalized Attention", Sec. 6 and 7, Figures 3 and 4).

The hybrid weight is the share of dnas in hnas; 1 - u is the share of softmax. The paper calls it u.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from attnorm.analysis.figures import line, split_label
from attnorm.analysis.papers.drawing import GREEN, Drawing, Rows, listed, names_of, panels, shades
from attnorm.analysis.papers.registry import Settings
from attnorm.errors import ConfigError, Problem
from attnorm.run.opening import read_run
from attnorm.run.scalars import recorded_scalars
from attnorm.training.callbacks.learned_scalars import NO_EVIDENCE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCALAR = "hybrid_weights"


def hybrid_weights(runs: tuple[Path, ...], stack: str, trust_code: bool = False) -> Rows:
    """The hybrid weights of one stack of layers, by run, layer, head and update.

    Raises ConfigError for a run that has none there.
    """
    rows: Rows = []
    configs = [read_run(run, trust_code) for run in runs]
    for run, name_of_run, cfg in zip(runs, names_of(runs, configs), configs, strict=True):
        recorded = [(*split_label(row["layer"]), row) for row in recorded_scalars(run).get(SCALAR, [])]
        found = [(int(number or 0), row) for name, number, row in recorded if name == stack]
        if not found:
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
            for layer, row in found
        ]
    return rows


def draw_fusion(settings: Settings) -> Drawing:
    """Draws Figure 3."""
    rows = hybrid_weights(settings.runs, "fusion", settings.trust_code)
    last = at_the_end(rows)
    figure = curves(rows, "Hybrid weight of the fusion of views (visual question answering)")
    return Drawing(
        figure,
        rows,
        (
            f"The share of dnas starts at {rows[0]['hybrid_weight']:.2f} and is {shares(last)} at update "
            f"{rows[-1]['update']}; in the paper it quickly goes to 1.0.",
            rates(rows),
        ),
    )


def draw_layers(settings: Settings) -> Drawing:
    """Draws Figure 4."""
    rows = hybrid_weights(settings.runs, "encoder", settings.trust_code)
    last = at_the_end(rows)
    figure = curves(rows, "Hybrid weight of each encoder layer (masked language modelling)")
    above = sum(value >= 0.5 for value in last.values())
    return Drawing(
        figure,
        rows,
        (
            "From the layer nearest the input to the one nearest the output, the share of dnas is "
            f"{shares(last)} at the last update; it is at least 0.5 in {above} of {len(last)} layers (in the "
            "paper in all of them, and closest to 0.5 near the output).",
            rates(rows),
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
    found = {run: listed(value for (name, _), value in last.items() if name == run) for run in runs}
    return found[next(iter(found))] if len(found) == 1 else "; ".join(f"{it} ({run})" for run, it in found.items())


def rates(rows: Rows) -> str:
    """How fast the weights can move."""
    found = dict.fromkeys((row["lr"], row["hybrid_lr_factor"]) for row in rows)
    written = " and ".join(f"{lr:g} times {factor:g}" for lr, factor in found)
    return (
        f"How far the weights move depends on their learning rate, here {written} (optimizer.hybrid_lr_factor). "
        f"{NO_EVIDENCE} The dashed line is an equal mixture."
    )


def curves(rows: Rows, title: str) -> "Figure":
    """One panel per run, one colour per layer, one line per head."""
    runs = list(dict.fromkeys(row["run"] for row in rows))
    layers = sorted({row["layer"] for row in rows})
    colors = dict(zip(layers, shades(len(layers)) if len(layers) > 1 else [GREEN], strict=True))
    figure, [axes] = panels(1, len(runs), (3.6 * len(runs) + 2.4, 3.8), title, sharey=True)
    for panel, run in zip(axes, runs, strict=True):
        found: dict[tuple[int, str], dict[int, float]] = {}
        for row in rows:
            if row["run"] == run:
                found.setdefault((row["layer"], row["head"]), {})[row["update"]] = row["hybrid_weight"]
        for (layer, _), curve in found.items():
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
