"""Where a question looks: the boxes of each view of an image, shaded by the attention that reaches them.

python -m attnorm.analysis.boxes logs/vqa/dnas/<run> --questions 0 1 2
"""

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

from attnorm.config.overrides import open_run, read_run
from attnorm.data.sampler import Part
from attnorm.tasks.task import recipe_of
from attnorm.tasks.vqa.answers import tally
from attnorm.tasks.vqa.module import views_of


def draw_boxes(run: Path, rows: list[int]) -> list[Path]:
    """A picture for each of these validation questions, in the run's figures/: a panel a view, each box shaded by the
    share of the question's attention that reaches it (`view_shares`).

    Raises ValueError for a run of another task, one whose model sees no boxes, views that do not say where boxes are,
    and questions that are not there.
    """
    cfg = read_run(run)
    if recipe_of(cfg).interface != "vqa":
        raise ValueError(f"{run}: a run of task={cfg['task']['name']}; boxes are those of task=vqa")
    tokenizer, model, _ = open_run(run, cfg, "best")
    recipe = recipe_of(cfg, run)
    split = recipe.splits(tokenizer, ("validation",))["validation"]
    if wrong := [row for row in rows if not 0 <= row < len(split)]:
        raise ValueError(f"question {wrong[0]}: the validation split has questions 0 to {len(split) - 1:,}")
    device = next(model.parameters()).device
    batch = {name: tensor.to(device) for name, tensor in recipe.batches(split)[Part(rows, len(rows))].items()}
    ids, views = batch["ids"], views_of(batch)
    if any(geometry is None for *_, geometry in views):
        raise ValueError(f"{run}: its data does not say where the boxes are")
    sizes = [present.shape[1] for _, present, _ in views]
    shares = view_shares(*model.attention_over_boxes(ids, views), sizes)
    names = recipe.views(split.name).names
    with torch.no_grad():
        answers = [recipe.answers().texts[number] for number in model(ids, views).argmax(-1).tolist()]
    drawn = []
    for place, row in enumerate(rows):
        text = split.texts[row]
        panels = [
            (name, geometry[place][present[place]].cpu(), share[place][present[place]].cpu())
            for name, (_, present, geometry), share in zip(names, views, shares, strict=False)
        ]
        title = f"{text['question']}\ngiven: {answers[place]}; annotators: {tally(json.loads(text['answers']))}"
        drawn.append(draw_panels(title, panels, run / "figures" / f"boxes_{row}.png"))
    return drawn


def view_shares(over_boxes: Tensor, fusion: Tensor | None, sizes: list[int]) -> list[Tensor]:
    """The share of the question's attention that reaches each box of a view, a tensor (B, boxes) a view that is used.

    over_boxes (B, M): of the question over the fused boxes. fusion (B, H, M, M'): of the primary's boxes over those of
    the other views, one view after the other; the weight of a primary box is passed on to them, its mean over heads, so
    that the shares of the other views add up to 1 together as those of the primary do. None: what is not one view's
    alone is cut into views, as they were put one after the other.
    """
    if fusion is None:
        return list(over_boxes.split(sizes, dim=1)) if over_boxes.shape[1] == sum(sizes) else [over_boxes]
    passed_on = torch.einsum("bm,bmk->bk", over_boxes, fusion.mean(1))
    return [over_boxes, *passed_on.split(sizes[1:], dim=1)]


def draw_panels(title: str, panels: list[tuple[str, Tensor, Tensor]], target: Path) -> Path:
    """A panel a view: its name, boxes (n, 4), x1 y1 x2 y2 in shares of the image, and their shares (n,), by which they
    are filled, the largest of a view in full colour."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    figure, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 4.4), layout="constrained", squeeze=False)
    for panel, (name, boxes, shares) in zip(axes[0], panels, strict=True):
        largest = max([*shares.tolist(), 1e-12])
        for (x1, y1, x2, y2), share in zip(boxes.tolist(), shares.tolist(), strict=True):
            shape = {"xy": (x1, y1), "width": x2 - x1, "height": y2 - y1}
            panel.add_patch(Rectangle(**shape, facecolor="tab:red", alpha=0.85 * share / largest, linewidth=0))
            panel.add_patch(Rectangle(**shape, fill=False, edgecolor="0.6", linewidth=0.5))
        panel.set(xlim=(0, 1), ylim=(1, 0), xticks=[], yticks=[], aspect="equal")
        full = f"full colour: {largest:.2g} of the attention" if len(boxes) else "no boxes"
        panel.set_title(f"{name}; {full}", fontsize=9)
    figure.suptitle(title, fontsize=10)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=130)
    plt.close(figure)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--questions", type=int, nargs="+", default=[0, 1, 2], help="numbers in the validation split")
    args = parser.parse_args()
    try:
        for path in draw_boxes(args.run, args.questions):
            print(path)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
