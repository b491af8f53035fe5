"""Where a question looks: the boxes of each view of an image, shaded by the attention that reaches them."""

import json
from typing import Any

import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter
from torch import Tensor

from attnorm.analysis.loaded_run import LoadedRun
from attnorm.analysis.paper import COLUMN, PAGE, Figure, FigureSet
from attnorm.data.sampler import MicroBatch
from attnorm.tasks.vqa.answers import tally
from attnorm.tasks.vqa.module import views_of

NUMBERED = 5  # boxes per view whose share is written out
SPOTS = (0.5, 0.25, 0.75, 0.1, 0.9)  # for a number in its box, in fractions of the box, the preferred one first
ROOMY = 0.2  # distance between two numbers at which they do not touch, in fractions of the image


def draw_boxes(run: LoadedRun, rows: list[int]) -> FigureSet:
    """Draws a figure for each of these validation questions: "boxes_0", ...

    There is one panel per view, with each box coloured by the share of the question's attention that reaches it
    (`view_shares`). Raises ValueError for a run of another task or of a model without boxes, for views without box
    positions, and for questions that do not exist.
    """
    task: Any = run.task  # with `views` and `answers`, as VqaTask has them
    if task.interface != "vqa":
        raise ValueError(f"{run.folder}: a run of task={run.config['task']['name']}; boxes are those of task=vqa")
    model: Any = run.model
    split = run.validation
    if wrong := [row for row in rows if not 0 <= row < len(split)]:
        raise ValueError(f"question {wrong[0]}: the validation split has questions 0 to {len(split) - 1:,}")
    device = next(model.parameters()).device
    batch = {name: tensor.to(device) for name, tensor in task.collator(split)[MicroBatch(rows, len(rows))].items()}
    ids, views = batch["ids"], views_of(batch)
    geometries = [geometry for *_, geometry in views if geometry is not None]
    if len(geometries) < len(views):
        raise ValueError(f"{run.folder}: its data has no box positions")
    sizes = [present.shape[1] for _, present, _ in views]
    over_boxes, fusion = model.attention_over_boxes(ids, views)
    shares = view_shares(over_boxes, fusion, sizes)
    names = task.views(split.name).names
    with torch.no_grad():
        answers = [task.answers.texts[number] for number in model(ids, views).argmax(-1).tolist()]
    drawn = FigureSet()
    for index, row in enumerate(rows):
        text = split.texts[row]
        panels = [
            (name, geometry[index][present[index]].cpu(), share[index][present[index]].cpu())
            for name, (_, present, _), geometry, share in zip(names, views, geometries, shares, strict=False)
        ]
        title = f"{text['question']} Given: {answers[index]}; annotators: {tally(json.loads(text['answers']))}"
        drawn[f"boxes_{row}"] = draw_panels(title, panels)
    return drawn


def view_shares(over_boxes: Tensor, fusion: Tensor | None, sizes: list[int]) -> list[Tensor]:
    """The share of the question's attention that reaches each box, as one tensor (B, boxes) per used view.

    over_boxes: (B, M), the attention of the question over the fused boxes.
    fusion: (B, H, M, M'), the attention of the primary's boxes over the concatenated boxes of the other views. The
            weight of a primary box is passed on to these with the mean weights over heads. So the shares of all other
            views sum to 1, like those of the primary view; with one attention per view, those of each other view do.
            None: the fused boxes are the concatenated boxes of several views, which are split again, or those of one.
    """
    if fusion is None:
        return list(over_boxes.split(sizes, dim=1)) if over_boxes.shape[1] == sum(sizes) else [over_boxes]
    passed_on = torch.einsum("bm,bmk->bk", over_boxes, fusion.mean(1))
    return [over_boxes, *passed_on.split(sizes[1:], dim=1)]


def draw_panels(title: str, panels: list[tuple[str, Tensor, Tensor]]) -> Figure:
    """One panel per view, with the boxes coloured by their shares of the attention.

    Boxes are painted opaquely in ascending order of their shares, so that a place has the colour of the largest share
    that covers it and overlapping boxes do not add up. The NUMBERED largest shares are also written out.

    panels: for each view its name, boxes (n, 4) as x1, y1, x2, y2 in fractions of the image, and shares (n,).
    """
    figure = Figure(COLUMN, 3.6) if len(panels) == 1 else Figure(PAGE, PAGE / len(panels) + 1.0)
    for axes, (name, boxes, shares) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        colours = ScalarMappable(Normalize(0, max([*shares.tolist(), 1e-12])), colormaps["YlOrRd"])
        draw_boxes_of_view(axes, boxes, shares, colours)
        axes.set(xlim=(0, 1), ylim=(1, 0), xticks=[], yticks=[], aspect="equal")
        axes.set_title(f"{name}: {len(boxes)} boxes")
        ticks, percent = MaxNLocator(4), PercentFormatter(1.0)  # with more ticks, their labels would overlap
        bar = figure.colorbar(colours, ax=axes, location="bottom", shrink=0.8, ticks=ticks, format=percent)
        bar.set_label("share of the attention")
    return figure.finished(title)


def draw_boxes_of_view(axes: Axes, boxes: Tensor, shares: Tensor, colours: Any) -> None:
    """Paints boxes (n, 4) in ascending order of their shares (n,), and writes the largest shares on them."""
    order = shares.argsort().tolist()
    for rank, box in enumerate(order):
        x1, y1, x2, y2 = boxes[box].tolist()
        shape: dict[str, Any] = {"xy": (x1, y1), "width": x2 - x1, "height": y2 - y1}
        axes.add_patch(Rectangle(**shape, facecolor=colours.to_rgba(shares[box].item()), linewidth=0, zorder=1))
        marked = rank >= len(order) - NUMBERED
        colour, width, level = ("black", 1.2, 3) if marked else ("0.45", 0.4, 2)
        axes.add_patch(Rectangle(**shape, fill=False, edgecolor=colour, linewidth=width, zorder=level))
    taken: list[tuple[float, float]] = []
    painted_over: list[list[float]] = []  # boxes with larger shares
    for box in reversed(order[-NUMBERED:]):
        taken.append(free_place(boxes[box].tolist(), taken, painted_over))
        painted_over.append(boxes[box].tolist())
        frame = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1}
        axes.text(*taken[-1], f"{100 * shares[box].item():.2g}%", ha="center", va="center", bbox=frame, zorder=4)


def free_place(
    box: list[float], taken: list[tuple[float, float]], painted_over: list[list[float]]
) -> tuple[float, float]:
    """A position (x, y) for a number in a box.

    If possible, it is not in a box that is painted over this one, and far from the positions that are taken.
    """
    x1, y1, x2, y2 = (min(max(edge, 0.05), 0.95) for edge in box)

    def quality(corner: tuple[float, float]) -> tuple[bool, float]:
        x, y = corner
        visible = not any(u1 <= x <= u2 and v1 <= y <= v2 for u1, v1, u2, v2 in painted_over)
        room = min((abs(x - u) + 2 * abs(y - v) for u, v in taken), default=ROOMY)
        return visible, min(room, ROOMY)

    return max(((x1 + (x2 - x1) * right, y1 + (y2 - y1) * down) for right in SPOTS for down in SPOTS), key=quality)
