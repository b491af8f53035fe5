"""How far alpha z, which attention uses, is from the exact solution lambda* ("Fenchel Duality", Sec. 8, Figures 4-8).

The relative deviation |lambda* - alpha z| / |lambda*| is measured for every head and position, in the setting of
`fenchel_problems`.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch

from attnorm.errors import ConfigError, Problem
from attnorm.experiments.papers.drawing import BLUE, VERMILION, Drawing, Rows, listed, panels
from attnorm.experiments.papers.fenchel_models import Measured, has_transformers, measured, measured_runs
from attnorm.experiments.papers.registry import Settings

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def draw_layers(settings: Settings) -> Drawing:
    """Draws Figure 4: the distribution over positions of the mean over heads, layer by layer."""
    if settings.runs:
        every = of_runs(settings)
    else:
        every = (*measured("bert", settings), *(measured("t5", settings) if has_transformers() else ()))
    stacks = by_stack(every)
    most = max(len(layers) for _, layers in stacks)
    size = (1.8 * most + 1.2, 1.65 * len(stacks) + 0.9)
    title = "Relative deviation of alpha z from the exact solution, by layer (mean over heads)"
    figure, axes = panels(len(stacks), most, size, title, sharex="row")
    for row, (_, layers) in zip(axes, stacks, strict=True):
        largest = 1.05 * max(layer.deviation.mean(0).max().item() for layer in layers)
        for panel, layer in zip(row, layers, strict=False):
            values = layer.deviation.mean(0)
            panel.hist(values, bins=40, range=(0, largest), color=BLUE)
            panel.axvline(values.mean().item(), color=VERMILION, linewidth=1.5)
            panel.set_title(f"layer {layer.layer}: {values.mean():.3f}", fontsize=8.5)
            panel.set(yticks=[], xlim=(0, largest))
        for panel in row[len(layers) :]:
            panel.remove()
        row[0].set_ylabel(f"{layers[0].model}\n{layers[0].stack}", fontsize=8.5)
    for panel in axes[-1]:
        panel.set_xlabel("deviation")
    rows: Rows = [
        {"model": it.model, "stack": it.stack, "layer": it.layer, "position": position, "deviation": value}
        for it in every
        for position, value in enumerate(it.deviation.mean(0).tolist())
    ]
    return Drawing(figure, rows, sentences(every))


def draw_heads(settings: Settings, stack: str | None = None) -> Drawing:
    """Draws the distribution over positions, head by head: a panel per layer.

    stack: the kind of attention of a T5 (Figures 6 to 8); None: all layers of a BERT, or of runs (Figure 5).
    """
    if stack is not None:
        layers = [layer for layer in measured("t5", settings) if layer.stack == stack]
    else:
        layers = list(of_runs(settings) if settings.runs else measured("bert", settings))
    columns = min(3, len(layers))
    lines = -(-len(layers) // columns)
    names = ", ".join(name for name, _ in by_stack(layers))
    title = f"Relative deviation of alpha z from the exact solution, head by head: {names}"
    figure, axes = panels(lines, columns, (3.4 * columns + 0.6, 2.1 * lines + 1.1), title, sharey=True)
    places = [panel for row in axes for panel in row]
    rows: Rows = []
    for panel, layer in zip(places, layers, strict=False):
        quantiles = torch.quantile(layer.deviation, torch.tensor(QUANTILES, dtype=layer.deviation.dtype), dim=1)
        low, lower, _, upper, high = quantiles
        heads, means = range(len(layer.deviation)), layer.deviation.mean(1)
        panel.vlines(heads, low, high, color=BLUE, linewidth=1, label="5 % to 95 % of the positions")
        panel.vlines(heads, lower, upper, color=BLUE, linewidth=4, label="25 % to 75 %")
        panel.plot(heads, means, "D", color="black", markersize=3, label="mean of the head")
        panel.axhline(means.mean().item(), color=VERMILION, linewidth=1.2, label="mean of the layer")
        panel.set(title=f"{layer.stack} layer {layer.layer}: mean {means.mean():.3f}")
        panel.set_xticks(heads)
        for head in heads:
            row = {"model": layer.model, "stack": layer.stack, "layer": layer.layer, "head": head}
            numbers = dict(zip(QUANTILES, quantiles[:, head].tolist(), strict=True))
            row |= {"mean": means[head].item()} | {f"q{100 * q:02.0f}": value for q, value in numbers.items()}
            rows.append(row | {"stationarity": layer.stationarity})
    places[0].set_ylim(bottom=0)  # of all panels, which share this axis; before they are filled, it would fix the top
    for panel in places[len(layers) :]:
        panel.remove()
    for first, *_ in axes:
        first.set_ylabel("deviation")
    for panel in places[max(0, len(layers) - columns) : len(layers)]:
        panel.set_xlabel("head")
    figure.legend(*places[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return Drawing(figure, rows, sentences(layers))


def sentences(every: Iterable[Measured]) -> tuple[str, str]:
    """The means of layers and heads, and how exact the solutions are."""
    every = list(every)
    means = "; ".join(
        f"{name}: {listed((layer.deviation.mean().item() for layer in layers), '.3f')}"
        for name, layers in by_stack(every)
    )
    heads = torch.cat([layer.deviation.mean(1) for layer in every])
    positions = every[0].deviation.shape[1]
    largest = max(layer.stationarity for layer in every)
    random = " Random weights say nothing about a trained model." if any("random" in it.model for it in every) else ""
    return (
        f"Mean deviation by layer: {means}.",
        f"The means of the heads, over {positions} positions, lie between {heads.min():.3f} and {heads.max():.3f}; the "
        f"exact solutions have a stationarity error of at most {largest:.0e}.{random}",
    )


def by_stack(every: Iterable[Measured]) -> list[tuple[str, list[Measured]]]:
    """The layers of each stack, with its name."""
    stacks: dict[str, list[Measured]] = defaultdict(list)
    for layer in every:
        stacks[f"{layer.model}: {layer.stack}"].append(layer)
    return list(stacks.items())


def of_runs(settings: Settings) -> tuple[Measured, ...]:
    """The layers of runs. Raises ConfigError if a model is given as well."""
    if settings.model:
        raise ConfigError([Problem("model", "has no effect with runs=", ", ".join(map(str, settings.model)))])
    return measured_runs(settings)
