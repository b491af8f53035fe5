"""The colours of all figures and pages: an arm has the same one in a probe, a report, a ladder and a paper."""

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any
from zlib import crc32

COLOURS, SHADES = 8, 8  # --c0 to --c7 of assets/charts.css, for arms, and --s0 to --s7, for layers
DASHES: tuple[Any, ...] = ("-", (0, (6, 3)), (0, (2, 2)), (0, (8, 3, 2, 3)))  # of lines, as matplotlib takes them
OFTEN = ("dnas", "hnas", "dnas_prefix", "hnas_prefix", "sinkhorn")  # arms with a colour of their own

Style = dict[str, Any]  # of a line, as matplotlib takes it


@cache
def chart_css() -> str:
    """The CSS of charts, and the variables with the colours of both modes."""
    return (files("attnorm.analysis") / "assets" / "charts.css").read_text(encoding="utf-8")


@cache
def light_colours() -> dict[str, str]:
    """The colours of the light mode, by the name of their CSS variable."""
    return dict(re.findall(r"(--[\w-]+): (#\w+)", chart_css().partition("@media")[0]))


def styles_of_arms(labels: Sequence[str]) -> dict[str, Style]:
    """One style per arm; the first, the baseline, is neutral.

    The colour of another arm follows from its label, and is the next free one if several arms would have the same. So
    the same arms have the same colours everywhere, whatever their order. After eight arms, colours return with another
    dash.
    """
    taken = dict[str, tuple[int, int]]()
    for label in sorted(labels[1:]):
        wanted = OFTEN.index(label) if label in OFTEN else crc32(label.encode())
        places = ((dash, 1 + (wanted + step) % (COLOURS - 1)) for dash, step in product(range(999), range(COLOURS - 1)))
        taken[label] = next(place for place in places if place not in taken.values())
    styles = dict.fromkeys(labels[:1], (0, 0)) | {label: taken[label] for label in labels[1:]}
    return {
        label: {"color": light_colours()[f"--c{colour}"], "linestyle": DASHES[dash % len(DASHES)]}
        for label, (dash, colour) in styles.items()
    }


def styles_of_layers(labels: Sequence[str]) -> dict[str, Style]:
    """One shade per layer, from the first to the last."""
    last = max(len(labels) - 1, 1)
    shades = [light_colours()[f"--s{round(number * (SHADES - 1) / last)}"] for number in range(len(labels))]
    return {label: {"color": shade, "linestyle": "-"} for label, shade in zip(labels, shades, strict=True)}
