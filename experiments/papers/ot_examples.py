"""Two examples of attention by optimal transport ("Fenchel Duality", Sec. 9, Eq. 24): groups and synonyms.

Groups: moving mass costs nothing within a group of templates and (nearly) infinitely much between groups. If the
templates of a group have equal scores and t_i is its only template in the input, each template of the group G gets the
weight u_i / |G|.

Synonyms: a table of words has a pair of close templates for each meaning. An input is written with the first word of
each pair, or with the second. Words outside the input are targets, but not sources (u = 0).
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnorm.attention.registry import build_normalizer
from attnorm.experiments.papers.drawing import BLUE, ORANGE, VERMILION, Drawing, Rows, panels
from attnorm.experiments.papers.registry import Settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GROUPS = (4, 3, 2)  # templates in each group
INPUT = (0.5, 0.3, 0.2)  # u of the first template of each group; the others are not in the input
SCORES = (0.3, 1.0, -0.5)  # alpha t'z of the templates of each group
FAR = 1e4  # the cost between groups

WORDS = ("cheap", "inexpensive", "hotel", "inn", "near", "by", "beach", "shore")
PLACES = ((-1.0, 1.0), (-0.9, 1.15), (1.0, 1.0), (1.15, 0.9), (-1.0, -1.0), (-1.15, -0.9), (1.0, -1.0), (1.1, -1.15))
QUERY = (0.15, 0.25)  # alpha z
GAMMA = 0.1
INPUTS = ("cheap hotel near beach", "inexpensive inn by shore")


def group_cost(targets: Tensor, sources: Tensor) -> Tensor:
    """0 within a group, FAR between groups; the only coordinate of a template is the number of its group."""
    return FAR * (targets != sources.mT).to(targets.dtype)


def group_weights(kind: str) -> Tensor:
    """The weights of the templates of all groups, (A,), with softmax (LNAS) or optimal transport."""
    sizes = torch.tensor(GROUPS)
    keys = torch.arange(len(GROUPS), dtype=torch.float64).repeat_interleave(sizes)[None, None, :, None]  # (1, 1, A, 1)
    scores = torch.tensor(SCORES, dtype=torch.float64).repeat_interleave(sizes)[None, None, None]  # (1, 1, 1, A)
    log_prior = torch.full((sum(GROUPS),), -torch.inf, dtype=torch.float64)
    log_prior[sizes.cumsum(0) - sizes] = torch.tensor(INPUT, dtype=torch.float64).log()
    normalizer = build_normalizer("ot", cost=group_cost) if kind == "ot" else build_normalizer(kind)
    return normalizer(scores, log_prior=log_prior, keys=keys)[0, 0, 0]


def word_weights(kind: str, text: str) -> Tensor:
    """The weights of all words of the table, (A,), if the input is `text` and every word of it is equally preferred."""
    keys = torch.tensor(PLACES, dtype=torch.float64)[None, None]
    scores = (keys @ torch.tensor(QUERY, dtype=torch.float64))[:, :, None]
    log_prior = torch.tensor([0.0 if word in text.split() else -math.inf for word in WORDS], dtype=torch.float64)
    normalizer = build_normalizer("ot", gamma=GAMMA) if kind == "ot" else build_normalizer(kind)
    return normalizer(scores, log_prior=log_prior, keys=keys)[0, 0, 0]


def draw(settings: Settings) -> Drawing:
    """Draws both examples."""
    figure, [[groups, *words]] = panels(1, 3, (11.5, 3.6), "Templates outside the input: softmax and optimal transport")
    rows: Rows = []
    grouped = {kind: group_weights(kind) for kind in ("softmax", "ot")}
    names = [f"{'ABC'[group]}{number + 1}" for group, size in enumerate(GROUPS) for number in range(size)]
    bars(groups, names, grouped, (BLUE, VERMILION))
    groups.set(title="groups A, B and C; A1, B1, C1 are the input", ylabel="weight")
    for kind, weights in grouped.items():
        rows += [table_row("groups", kind, "A1 B1 C1", *it) for it in zip(names, weights.tolist(), strict=True)]
    change, moved = {}, {}
    for panel, kind in zip(words, grouped, strict=True):
        both = {text: word_weights(kind, text) for text in INPUTS}
        bars(panel, WORDS, both, (BLUE, ORANGE))
        panel.set_title(f"synonyms: {kind}")
        panel.set_xticks(range(len(WORDS)), WORDS, rotation=40, ha="right", rotation_mode="anchor")
        for text, weights in both.items():
            rows += [table_row("synonyms", kind, text, *it) for it in zip(WORDS, weights.tolist(), strict=True)]
        first, second = both.values()
        change[kind] = (first - second).abs().sum().item() / 2
        moved[kind] = ((first - second) @ torch.tensor(PLACES, dtype=torch.float64)).norm().item()
    sizes = ", ".join(f"{u:g} / {size}" for u, size in zip(INPUT, GROUPS, strict=True))
    return Drawing(
        figure,
        rows,
        (
            "Left: with optimal transport, the templates of a group share the preference of the one that is in the "
            f"input ({sizes}), whatever their scores are; softmax gives weight to the templates of the input only.",
            f"Middle and right: if every word is replaced by its synonym, {change['softmax']:.0%} of the weight moves "
            f"with softmax and {change['ot']:.0%} with optimal transport, and the output by {moved['softmax']:.3f} and "
            f"{moved['ot']:.3f}.",
        ),
    )


def bars(panel: "Axes", names: Sequence[str], series: dict[str, Tensor], colors: Sequence[str]) -> None:
    """Groups of bars: one group per name, one bar per series."""
    width = 0.8 / len(series)
    for index, ((label, weights), color) in enumerate(zip(series.items(), colors, strict=True)):
        left = [number + (index - (len(series) - 1) / 2) * width for number in range(len(names))]
        panel.bar(
            left, weights.tolist(), width, color=color, label=label, hatch="//" * index, edgecolor="white", lw=0.5
        )
    panel.set_xticks(range(len(names)), names)
    panel.set_ylim(top=1.3 * max(float(weights.max()) for weights in series.values()))
    panel.legend(loc="upper right")


def table_row(example: str, normalizer: str, text: str, template: str, weight: float) -> dict[str, Any]:
    """A row of the CSV file."""
    return {"example": example, "normalizer": normalizer, "input": text, "template": template, "weight": weight}
