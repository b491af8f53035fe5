"""Pictures of a reading: one figure per layer with a heat map per head, and an overview of all layers and heads."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnorm.analysis.attention.reading import LayerAttention, Reading

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize

    from attnorm.analysis.notebook import Figure, FigureSet

CELL, LARGEST, SMALLEST = 0.17, 11.0, 1.3  # inches: a cell, and the longest and shortest side of a heat map
LINE = 0.125  # inches that a label takes
WIDEST = 25.0  # inches of a figure with several columns
LONGEST = 16  # characters of a token that are written


def draw_reading(readings: Sequence[Reading]) -> "FigureSet":
    """Draws one reading, or several ones next to each other.

    There is an overview of all layers and heads, "overview", and one figure per layer, such as "decoder_0_cross".
    Colours show the square root of the weights, so that small weights are visible, on one scale per figure.
    """
    from attnorm.analysis.notebook import FigureSet

    labels = list(dict.fromkeys(label for reading in readings for label in reading.layers))
    figures = FigureSet(overview=overview(readings, labels))
    figures |= {label.replace("/", "_"): draw_layer(readings, label) for label in labels}
    return figures


def draw_layer(readings: Sequence[Reading], label: str) -> "Figure":
    """The heat maps of one layer: with one reading, its heads row by row; with several, one column per reading."""
    from attnorm.analysis.notebook import Figure

    having = [reading for reading in readings if label in reading.layers]
    heads = list(dict.fromkeys(head for reading in having for head in reading.numbers[label]))
    width, height = panel_size([reading.layers[label] for reading in having])
    columns = len(having) if len(readings) > 1 else max(1, min(len(heads), int(WIDEST // width), 4))
    rows = math.ceil(len(heads) * len(having) / columns)
    figure = Figure(figsize=(max(6.0, columns * width + 0.9), rows * height + 0.9), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    scale = colours([reading.layers[label].weights[reading.numbers[label]] for reading in having])
    image = None
    for axes in panels.flat:
        axes.set_axis_off()
    for number, reading in enumerate(having):
        for index, head in enumerate(heads):
            if head not in reading.numbers[label]:
                continue
            axes = panels[index][number] if len(readings) > 1 else panels.flat[index]
            name = f"{reading.run}: head {head}" if len(readings) > 1 else f"head {head}"
            image = heat_map(axes, reading.layers[label], head, scale, name)
    add_scale(figure, image, panels)
    names = "" if len(readings) > 1 else f"{readings[0].run}, "
    figure.suptitle(f"{names}{label}\nrows: queries, columns: keys", fontsize=10)
    return figure


def panel_size(layers: Sequence[LayerAttention]) -> tuple[float, float]:
    """Width and height of a heat map with its labels, in inches."""
    across, down = (max(map(len, side)) for side in zip(*((a.keys, a.queries) for a in layers), strict=True))
    letters = max((len(written(token)) for layer in layers for token in (*layer.keys, *layer.queries)), default=1)
    labels = 0.075 * letters + 0.15
    width, height = (min(max(CELL * count, SMALLEST), LARGEST) for count in (across, down))
    return width + labels, height + labels + 0.3


def heat_map(axes: "Axes", layer: LayerAttention, head: int, scale: "Normalize", title: str) -> Any:
    """One heat map with its tokens; if there are too many, only every second, third, ... one is written."""
    axes.set_axis_on()
    image = axes.imshow(layer.weights[head].numpy(), norm=scale, cmap=colour_map(scale), aspect="auto")
    image.set_interpolation("nearest")
    for side, tokens in ((axes.xaxis, layer.keys), (axes.yaxis, layer.queries)):
        length = min(max(CELL * len(tokens), SMALLEST), LARGEST)
        step = max(1, math.ceil(len(tokens) * LINE / length))
        side.set_ticks(range(0, len(tokens), step), [written(token) for token in tokens[::step]], fontsize=7)
    axes.tick_params(axis="x", labelrotation=90, length=1.5, pad=1.5)
    axes.tick_params(axis="y", length=1.5, pad=1.5)
    axes.set_title(f"{title}, largest {layer.weights[head].max().item():.2f}", fontsize=8)
    return image


def written(token: str) -> str:
    """A token as it is written at an axis: visible if it is white space, cut if it is long, and plain text."""
    token = token.strip("▁ \n") or token.replace(" ", "␣").replace("\n", "↵") or "·"
    token = token if len(token) <= LONGEST else f"{token[: LONGEST - 1]}…"
    return token.replace("$", r"\$")


def overview(readings: Sequence[Reading], labels: Sequence[str]) -> "Figure":
    """One small heat map per layer (row) and head (column), without tokens; several readings next to each other."""
    from attnorm.analysis.notebook import Figure

    columns = [
        (reading, head) for reading in readings for head in sorted({n for of in reading.numbers.values() for n in of})
    ]
    size = min(1.5, max(0.7, WIDEST / max(1, len(columns))))
    figure = Figure(
        figsize=(max(6.0, size * len(columns) + 2.0), 1.15 * size * len(labels) + 1.0), layout="constrained"
    )
    panels = figure.subplots(len(labels), len(columns), squeeze=False)
    every = [layer.weights[reading.numbers[name]] for reading in readings for name, layer in reading.layers.items()]
    scale, image = colours(every), None
    for row, label in zip(panels, labels, strict=True):
        for axes, (reading, head) in zip(row, columns, strict=True):
            axes.set(xticks=[], yticks=[])
            if label not in reading.layers or head not in reading.numbers[label]:
                axes.set_frame_on(False)
                continue
            weights = reading.layers[label].weights[head].numpy()
            image = axes.imshow(weights, norm=scale, cmap=colour_map(scale), aspect="auto", interpolation="nearest")
        row[0].set_ylabel(label, fontsize=8, rotation=0, ha="right", va="center")
    for axes, (reading, head) in zip(panels[0], columns, strict=True):
        first = len(readings) > 1 and head == min(number for owner, number in columns if owner is reading)
        axes.set_title(f"{reading.run}\nhead {head}" if first else f"head {head}", fontsize=8, loc="left")
    add_scale(figure, image, panels)
    figure.suptitle(" and ".join(reading.run for reading in readings), fontsize=10)
    return figure


def colours(weights: Sequence[Tensor]) -> "Normalize":
    """The scale of a figure: the square root of the weights, or symmetric around 0 if some are negative."""
    from matplotlib.colors import Normalize, PowerNorm

    values = torch.cat([layer.flatten() for layer in weights])
    largest = max(values.abs().max().item(), 1e-12)
    return Normalize(-largest, largest) if values.min() < 0 else PowerNorm(0.5, 0.0, largest)


def colour_map(scale: "Normalize") -> str:
    return "Blues" if scale.vmin == 0 else "RdBu_r"


def add_scale(figure: "Figure", image: Any, panels: Any) -> None:
    """A bar that shows which colour is which weight."""
    bar = figure.colorbar(image, ax=panels, location="right", shrink=min(1.0, 4.0 / figure.get_figheight()), pad=0.01)
    bar.set_label("attention weight", fontsize=8)
    bar.ax.tick_params(labelsize=7)
