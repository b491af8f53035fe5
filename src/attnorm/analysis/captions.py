"""Where a captioning model looks: its image once per word, shaded by the attention that the word pays to each cell."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.ticker import PercentFormatter
from torch import Tensor

from attnorm.analysis.loaded_run import LoadedRun
from attnorm.analysis.paper import PAGE, Figure
from attnorm.data.sampler import MicroBatch
from attnorm.errors import ConfigError, Problem

COLUMNS = 6  # panels per row


@dataclass(frozen=True)
class Looks:
    """What a model looks at while it writes a caption.

    pixels: uint8 (S, S, 3). words: the words of the caption; the last one is the end token.
    shares: float32 (words, cells per side, cells per side), the attention of each word, which sums to what the
            normalizer guarantees.
    """

    pixels: Tensor
    words: list[str]
    shares: Tensor

    @property
    def caption(self) -> str:
        return " ".join(self.words[:-1])


def looks(run: LoadedRun, example: str, layer: str | None = None) -> Looks:
    """What the model of a run looks at in a validation image.

    example: the id of the image. layer: the label of an attention layer, such as "decoder/1/cross"; None: the last one
    that attends to the image. The weights are the means over its heads. The attention of a word of several tokens is
    the mean over them.

    Raises ConfigError for a run of another task, an unknown example or layer, and images without pixels.
    """
    if run.task.interface != "captioning":
        name = run.config["task"]["name"]
        raise ConfigError([Problem("run", f"a run of task={name}; words are drawn for task=captioning", run.folder)])
    image = image_of(run, run.row_of(example))
    if image.dtype != torch.uint8:
        raise ConfigError([Problem("run", "its images are features of regions, which have no pixels", run.folder)])
    layers = {label: of_layer for label, of_layer in run.attention(example=example).items() if label.endswith("cross")}
    if layer is not None and layer not in layers:
        raise ConfigError([Problem("layer", f"no such layer; allowed: {', '.join(layers)}", layer)])
    chosen = layers[list(layers)[-1] if layer is None else layer]
    weights = chosen.weights.mean(0)  # (tokens, cells)
    words, places = joined(chosen.queries)
    shares = torch.stack([weights[of_word].mean(0) for of_word in places])
    side = math.isqrt(shares.shape[1])
    return Looks(image.permute(1, 2, 0), words, shares.view(len(words), side, side))


def image_of(run: LoadedRun, row: int) -> Tensor:
    """The image of a row of the validation split: pixels, uint8 (3, S, S), or float features of regions."""
    task: Any = run.task
    return task.collator(run.validation)[MicroBatch([row], 1)]["image"][0]


def joined(tokens: Sequence[str]) -> tuple[list[str], list[list[int]]]:
    """The words that tokens form, and the numbers of the tokens of each word.

    A token begins a word if it starts with the mark of sentencepiece for a space or, in a vocabulary with the mark of
    WordPiece for a continued word, if it does not start with that. Special tokens are words of their own.
    """
    words: list[str] = []
    places: list[list[int]] = []
    begins = "▁" if any(token.startswith("▁") for token in tokens) else None
    for number, token in enumerate(tokens):
        special = token.startswith(("<", "["))
        inside = not token.startswith("▁") if begins else token.startswith("##")
        if inside and not special and words:
            words[-1] += token.removeprefix("##")
            places[-1].append(number)
        else:
            words.append(token.removeprefix("▁"))
            places.append([number])
    return words, places


def draw_words(looks: Looks, title: str = "") -> Figure:
    """Draws the image once per word, with the share of each cell on one scale.

    The first panel shows the image alone.
    """
    panels = 1 + len(looks.words)
    columns = min(COLUMNS, panels)
    rows = math.ceil(panels / columns)
    figure = Figure(PAGE, rows * (PAGE - 0.6) / columns + 0.2 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    colours = ScalarMappable(Normalize(0, max(float(looks.shares.max()), 1e-12)), "YlOrRd")
    show_image(axes[0], looks.pixels)
    axes[0].set_title("image")
    for panel, word, shares in zip(axes[1:], looks.words, looks.shares, strict=False):
        show_image(panel, looks.pixels, faded=True)
        rgba = colours.to_rgba(shares.numpy())
        rgba[..., 3] = 0.85 * np.sqrt(colours.norm(shares.numpy()))  # what gets nothing stays as it is
        panel.imshow(rgba, extent=(0, 1, 1, 0), interpolation="nearest")
        panel.set_title(word)
    for panel in axes[panels:]:
        panel.set_axis_off()
    bar = figure.colorbar(colours, ax=axes, shrink=0.8, format=PercentFormatter(1.0, decimals=0), pad=0.01)
    bar.set_label("share of the attention")
    return figure.finished(title)


def show_image(axes: Axes, pixels: Tensor, faded: bool = False) -> None:
    """An image in the unit square; faded: in grey, so that colours on it stand out."""
    shown = pixels.numpy()
    if faded:
        shown = (0.6 * 255 + 0.4 * shown.mean(-1, keepdims=True)).astype("uint8").repeat(3, -1)
    axes.imshow(shown, extent=(0, 1, 1, 0), interpolation="nearest")
    axes.set(xticks=[], yticks=[])
