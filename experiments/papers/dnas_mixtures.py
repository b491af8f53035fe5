"""Two clusters over several attention updates ("Doubly-Normalized Attention", Sec. 5.2 and App. C, Figures 5 and 6).

The paper states neither the positions nor the sizes of its clusters. Here, 100 points on a line start around 1.5 and
-1.5 with a standard deviation of 0.1, and every update is x <- W x with Gaussian scores. The starting positions matter:
from +-1.0, the clusters merge within four updates even if they are balanced, and from +-2.0 neither of them does.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from attnorm.attention.normalizers.base import Normalizer
from attnorm.attention.registry import build_normalizer, build_scorer
from attnorm.experiments.papers.drawing import BLUE, ORANGE, STYLES, Drawing, Rows, listed, panels, shades
from attnorm.experiments.papers.registry import Settings

POINTS, START, SPREAD, UPDATES = 100, 1.5, 0.1, 4
BALANCED, UNBALANCED = 50, 95  # points of the larger cluster
ITERATIONS = (1, 2, 3, 5, 10, 20, 50)
SHOWN = ("softmax", "dnas")


def mixture(larger: int, seed: int) -> Tensor:
    """A draw of the points, float64 (N, 1): `larger` of them around START, the others around -START."""
    noise = SPREAD * np.random.default_rng(seed).standard_normal(POINTS)
    centers = np.where(np.arange(POINTS) < larger, START, -START)
    return torch.from_numpy(centers + noise)[:, None]


def positions(normalizer: Normalizer, x: Tensor, updates: int = UPDATES) -> Tensor:
    """The positions before and after each update x <- W x: (N, 1) -> (updates + 1, N)."""
    scorer, found = build_scorer("gaussian"), [x]
    for _ in range(updates):
        x = normalizer(scorer(x[None, None], x[None, None]))[0, 0] @ x
        found.append(x)
    return torch.stack(found).squeeze(-1)


def center_distances(path: Tensor, larger: int) -> Tensor:
    """The distance of the cluster centers at each time: positions (T, N) -> (T,)."""
    return path[:, :larger].mean(1) - path[:, larger:].mean(1)


def mean_distances(normalizer: Normalizer, larger: int, seeds: Iterable[int]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over draws of the center distances, (UPDATES + 1,) each."""
    each = [center_distances(positions(normalizer, mixture(larger, seed)), larger) for seed in seeds]
    drawn = torch.stack(each)
    return drawn.mean(0), drawn.std(0, correction=min(1, len(each) - 1))


def draw(settings: Settings, larger: int) -> Drawing:
    """Draws Figure 5 or 6: the paths of all points under softmax and dnas. larger: points of the larger cluster."""
    shares = f"{larger} : {POINTS - larger}"
    figure, [axes] = panels(1, len(SHOWN), (8, 3.8), f"Two clusters of {shares} points over four updates", sharey=True)
    rows: Rows = []
    ends = {}
    for panel, name in zip(axes, SHOWN, strict=True):
        normalizer = build_normalizer(name)
        path = positions(normalizer, mixture(larger, settings.seed))
        panel.plot(path[:, :larger], color=BLUE, linewidth=0.8, alpha=0.5)
        panel.plot(path[:, larger:], color=ORANGE, linewidth=0.8, alpha=0.9)
        distances = center_distances(path, larger)
        panel.set(title=name, xlabel="update, and center distance after it")
        panel.set_xticks(range(UPDATES + 1), [f"{update}\n{d:.2f}" for update, d in enumerate(distances)])
        mean, deviation = mean_distances(normalizer, larger, range(settings.seed, settings.seed + settings.draws))
        ends[name] = (distances[-1].item(), mean[-1].item(), deviation[-1].item())
        rows += [
            {
                "normalizer": name,
                "update": update,
                "point": point,
                "cluster": int(point >= larger),
                "position": path[update, point].item(),
                "center_distance": distances[update].item(),
                "mean_center_distance": mean[update].item(),
                "std_center_distance": deviation[update].item(),
            }
            for update in range(UPDATES + 1)
            for point in range(POINTS)
        ]
    axes[0].set_ylabel("position of each point")
    left = {name: f"{end:.2f}" for name, (end, *_) in ends.items()}
    draws = f"over {settings.draws} draws " + " and ".join(f"{m:.2f} ± {d:.2f}" for _, m, d in ends.values())
    collapsed = ends["softmax"][1] < 0.1 < ends["dnas"][1]
    alike = "softmax merges both clusters, dnas keeps them apart" if collapsed else "both keep the clusters apart"
    return Drawing(
        figure,
        rows,
        (
            f"With {shares} points, {alike}: after four updates the centers are {left['softmax']} apart with softmax "
            f"and {left['dnas']} with dnas.",
            f"Blue lines are the points of the first cluster, orange lines those of the second; {draws} are left.",
        ),
    )


def draw_iterations(settings: Settings) -> Drawing:
    """Draws the center distances by the number of Sinkhorn iterations, of which dnas has one."""
    title = f"Center distance by the number of Sinkhorn iterations (mean of {settings.draws} draws)"
    figure, [axes] = panels(1, 2, (8.5, 3.6), title, sharey=True)
    rows: Rows = []
    seeds = range(settings.seed, settings.seed + settings.draws)
    for panel, larger in zip(axes, (BALANCED, UNBALANCED), strict=True):
        curves = {"softmax": (0, build_normalizer("softmax"), STYLES["softmax"])}
        for iterations, shade in zip(ITERATIONS, shades(len(ITERATIONS), "YlOrRd_r"), strict=True):
            label = f"sinkhorn, {iterations}" if iterations > 1 else "sinkhorn, 1 (dnas)"
            curves[label] = (iterations, build_normalizer("sinkhorn", n_iters=iterations), {"color": shade})
        for label, (iterations, normalizer, style) in curves.items():
            mean, deviation = mean_distances(normalizer, larger, seeds)
            panel.plot(mean, marker="o", markersize=3, label=label, **style)
            rows += [
                {
                    "larger": larger,
                    "smaller": POINTS - larger,
                    "iterations": iterations,
                    "update": update,
                    "mean_center_distance": mean[update].item(),
                    "std_center_distance": deviation[update].item(),
                }
                for update in range(UPDATES + 1)
            ]
        panel.set(title=f"{larger} : {POINTS - larger} points", xlabel="update")
        panel.set_xticks(range(UPDATES + 1))
    axes[0].set_ylabel("center distance")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", title="iterations")
    last = {
        it["iterations"]: it["mean_center_distance"] for it in rows if (it["larger"], it["update"]) == (95, UPDATES)
    }
    return Drawing(
        figure,
        rows,
        (
            "With balanced clusters all curves coincide: further iterations have nothing to correct.",
            f"With {UNBALANCED} : {POINTS - UNBALANCED} points, every further iteration moves the centers closer: with "
            f"1, 3, 10 and 50 iterations, {listed(last[k] for k in (1, 3, 10, 50))} are left after four updates, and "
            f"{last[0]:.2f} with softmax.",
        ),
    )
