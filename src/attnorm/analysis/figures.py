"""Figures of a run, drawn from the files of its folder."""

from collections import defaultdict
from pathlib import Path

import yaml

from attnorm.training.tracking import read_csv
from attnorm.training.watching import HYBRID_FILE


def draw_run(run: Path) -> list[Path]:
    """Draws what the run folder has data for; returns the files written (none for a run without hybrid weights)."""
    path = run / HYBRID_FILE
    if not path.exists():
        return []
    cfg = yaml.safe_load((run / "config.yaml").read_text())
    return [draw_hybrid_weights(read_csv(path), cfg, run / "figures" / "hybrid_weights.png")]


def draw_hybrid_weights(rows: list[dict[str, str]], cfg: dict, target: Path) -> Path:
    """The hybrid weight of every layer (mean over heads, their range shaded) against the update number."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    curves: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        curves[row["layer"]][int(row["step"])].append(float(row["weight"]))

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    colours = plt.get_cmap("viridis")
    for number, (layer, points) in enumerate(curves.items()):
        colour = colours(number / max(1, len(curves) - 1) * 0.9)
        steps = list(points)
        means = [sum(weights) / len(weights) for weights in points.values()]
        axes.plot(steps, means, label=layer, color=colour)
        if len(points[steps[0]]) > 1:
            axes.fill_between(
                steps, [min(w) for w in points.values()], [max(w) for w in points.values()], color=colour, alpha=0.15
            )
    axes.axhline(0.5, color="0.7", linewidth=0.8, linestyle=":")
    axes.set(xlabel="update", ylabel="hybrid weight (share of dnas)", ylim=(0, 1))
    axes.set_title(
        f"{cfg['task']['name']}, seed {cfg['seed']}: hybrid weights\n"
        f"learning rate {cfg['optim']['lr']:g}, times {cfg['optim']['hybrid_lr_factor']:g} for the hybrid weights",
        fontsize=10,
    )
    axes.legend(title="layer", fontsize=8)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=150)
    plt.close(figure)
    return target
