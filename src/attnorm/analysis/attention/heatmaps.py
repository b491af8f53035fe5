"""Pictures of a reading: one figure per layer with a heat map per head, and an overview of all layers and heads."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from torch import Tensor

from attnorm.analysis.attention.reading import LayerAttention, Reading
from attnorm.analysis.paper import COLUMN, LETTER, LINE, PAGE, Figure, FigureSet, plain_text

CELL, LARGEST, SMALLEST = 0.17, 5.0, 1.0  # inches: a cell, and the longest and shortest side of a heat map
SCALE = 0.8  # inches that the bar of colours takes
LONGEST = 16  # characters of a token that are written


def draw_reading(readings: Sequence[Reading]) -> FigureSet:
    """Draws one reading, or several ones next to each other.

    There is an overview of all layers and heads, "overview", and one figure per layer, such as "decoder_0_cross".
    Colours show the square root of the weights, so that small weights are visible, on one scale per figure.
    """
    labels = list(dict.fromkeys(label for reading in readings for label in reading.layers))
    figures = FigureSet(overview=overview(readings, labels))
    figures |= {label.replace("/", "_"): draw_layer(readings, label) for label in labels}
    return figures


def draw_layer(readings: Sequence[Reading], label: str) -> Figure:
    """The heat maps of one layer: with one reading, its heads row by row; with several, one column per reading."""
    having = [reading for reading in readings if label in reading.layers]
    heads = list(dict.fromkeys(head for reading in having for head in reading.numbers[label]))
    layers = [reading.layers[label] for reading in having]
    most = int((PAGE - SCALE) // sum(panel_size(layers)[:2]))
    columns = len(having) if len(readings) > 1 else max(1, min(len(heads), most, 4))
    rows = math.ceil(len(heads) * len(having) / columns)
    figure = figure_of_maps(layers, rows, columns)
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
            image = heat_map(axes, reading.layers[label], head, scale, name, columns)
    add_scale(figure, image, panels)
    names = "" if len(readings) > 1 else f"{readings[0].run}, "
    return figure.finished(f"{names}{label}: rows are queries, and columns are keys.")


def panel_size(layers: Sequence[LayerAttention]) -> tuple[float, float, float]:
    """Inches of a heat map if there is enough room: its width, that of its labels, and its height."""
    across, down = (max(map(len, side)) for side in zip(*((a.keys, a.queries) for a in layers), strict=True))
    letters = max((len(axis_label(token)) for layer in layers for token in (*layer.keys, *layer.queries)), default=1)
    width, height = (min(max(CELL * count, SMALLEST), LARGEST) for count in (across, down))
    return width, LETTER * letters + 0.15, height


def figure_of_maps(layers: Sequence[LayerAttention], rows: int, columns: int) -> Figure:
    """An empty figure for heat maps in rows and columns."""
    width, labels, height = panel_size(layers)
    return Figure(COLUMN if columns * (width + labels) + SCALE <= COLUMN else PAGE, rows * (height + labels + 0.3))


def heat_map(axes: Axes, layer: LayerAttention, head: int, scale: dict[str, Any], title: str, columns: int = 1) -> Any:
    """One heat map of a figure with several columns; if there are too many tokens, every second or third is written.

    scale: see `colours`.
    """
    axes.set_axis_on()
    image = axes.imshow(layer.weights[head].numpy(), **scale, aspect="auto", interpolation="nearest")
    width, labels, height = panel_size([layer])
    width = min(width, (PAGE - SCALE) / columns - labels)
    for side, tokens, length in ((axes.xaxis, layer.keys, width), (axes.yaxis, layer.queries, height)):
        step = max(1, math.ceil(len(tokens) * LINE / length))
        side.set_ticks(range(0, len(tokens), step), [axis_label(token) for token in tokens[::step]])
    axes.tick_params(axis="x", labelrotation=90, length=1.5, pad=1.5)
    axes.tick_params(axis="y", length=1.5, pad=1.5)
    axes.set_title(f"{title}, largest {layer.weights[head].max().item():.2f}")
    return image


def axis_label(token: str) -> str:
    """A token as it is written at an axis: visible if it is white space, cut if it is long, and plain text."""
    token = token.strip("▁ \n") or token.replace(" ", "␣").replace("\n", "↵") or "·"
    token = token if len(token) <= LONGEST else f"{token[: LONGEST - 1]}…"
    return plain_text(token)


def overview(readings: Sequence[Reading], labels: Sequence[str]) -> Figure:
    """One small heat map per layer (row) and head (column), without tokens; several readings next to each other."""
    columns = [(reading, head) for reading in readings for head in sorted(set[int]().union(*reading.numbers.values()))]
    width, names = (COLUMN if len(columns) <= 2 else PAGE), LETTER * max(map(len, labels), default=0)
    size = min(1.2, (width - SCALE - names) / max(1, len(columns)))
    figure = Figure(width, size * len(labels) + 0.4)
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
            image = axes.imshow(weights, **scale, aspect="auto", interpolation="nearest")
        row[0].set_ylabel(label, rotation=0, ha="right", va="center")
    for axes, (reading, head) in zip(panels[0], columns, strict=True):
        first = len(readings) > 1 and head == min(number for owner, number in columns if owner is reading)
        axes.set_title(f"{reading.run}\nhead {head}" if first else f"head {head}", loc="left")
    add_scale(figure, image, panels)
    return figure.finished(" and ".join(reading.run for reading in readings))


def colours(weights: Sequence[Tensor]) -> dict[str, Any]:
    """The scale and the colours of a figure: the square root of the weights, or symmetric around 0 if some are
    negative."""
    values = torch.cat([layer.flatten() for layer in weights])
    largest = max(values.abs().max().item(), 1e-12)
    if values.min() < 0:
        return {"norm": Normalize(-largest, largest), "cmap": "RdBu_r"}
    return {"norm": PowerNorm(0.5, 0.0, largest), "cmap": "Blues"}


def add_scale(figure: Figure, image: Any, panels: Any) -> None:
    """A bar that shows which colour is which weight."""
    bar = figure.colorbar(image, ax=panels, location="right", shrink=min(1.0, 4.0 / figure.get_figheight()), pad=0.01)
    bar.set_label("attention weight")
