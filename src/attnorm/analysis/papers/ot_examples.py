"""Two examples of attention by optimal transport ("Fenchel Duality", Sec. 9, Eq. 24): groups of templates, and synonyms.

Groups: moving mass costs nothing within a group of templates and (nearly) infinitely much between groups. If the templates
of a group have equal scores, each template of a group G gets u_i / |G| of the weight of the only input template i in it.

Synonyms: a table of words has a pair of close templates for each meaning. An input is written with the first word of
each pair, or with the second. Words outside the input are targets, but not sources (u = 0).
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnorm.analysis.papers.drawing import BLUE, ORANGE, VERMILION, Drawing, Rows, panels
from attnorm.analysis.papers.registry import Settings
from attnorm.attention.build import build_normalizer

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
            f"Left: the members of a group share the weight of its only input template, {sizes}, whatever the scores of the "
            "groups are, while softmax gives weight to the input templates only.",
            f"Middle and right: if every word is replaced by its synonym, softmax moves {change['softmax']:.0%} of the weight "
            f"and the output by {moved['softmax']:.3f}; optimal transport gives both words of a pair nearly the same weight "
            f"and moves {change['ot']:.0%} and {moved['ot']:.3f}.",
        ),
    )


def bars(panel: "Axes", names: Sequence[str], series: dict[str, Tensor], colors: Sequence[str]) -> None:
    """Groups of bars: one group per name, one bar per series."""
    width = 0.8 / len(series)
    for place, ((label, weights), color) in enumerate(zip(series.items(), colors, strict=True)):
        left = [number + (place - (len(series) - 1) / 2) * width for number in range(len(names))]
        panel.bar(
            left, weights.tolist(), width, color=color, label=label, hatch="//" * place, edgecolor="white", lw=0.5
        )
    panel.set_xticks(range(len(names)), names)
    panel.set_ylim(top=1.3 * max(float(weights.max()) for weights in series.values()))
    panel.legend(loc="upper right")


def table_row(example: str, normalizer: str, text: str, template: str, weight: float) -> dict[str, Any]:
    """A row of the CSV file."""
    return {"example": example, "normalizer": normalizer, "input": text, "template": template, "weight": weight}
