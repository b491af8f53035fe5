"""Figures of a run, drawn from the files of its folder."""

from collections import defaultdict
from pathlib import Path

from attnorm.config.run_config import read_config
from attnorm.training.callbacks.attention_stats import ATTENTION_FILE
from attnorm.training.callbacks.hybrid_weights import HYBRID_FILE
from attnorm.training.loggers import read_csv


def draw_run(run: Path) -> list[Path]:
    """Draws what the run folder has data for; returns the files written."""
    drawn = []
    for name, draw in ((HYBRID_FILE, draw_hybrid_weights), (ATTENTION_FILE, draw_attention)):
        path = run / name
        if path.exists():
            cfg = read_config(run)
            drawn.append(draw(read_csv(path), cfg, run / "figures" / f"{path.stem}.png"))
    return drawn


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
    rate, factor = cfg["optimizer"]["lr"], cfg["optimizer"].get("hybrid_lr_factor", 1.0)
    axes.set_title(
        f"{cfg['task']['name']}, seed {cfg['seed']}: hybrid weights\n"
        f"learning rate {rate:g}, times {factor:g} for the hybrid weights",
        fontsize=10,
    )
    axes.legend(title="layer", fontsize=8)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=150)
    plt.close(figure)
    return target


def draw_attention(rows: list[dict[str, str]], cfg: dict, target: Path) -> Path:
    """Entropy and smallest column mass of every head against the update number: a colour a layer, a line a head."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    steps = sorted({int(row["step"]) for row in rows})
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained", sharex=True)
    colours = plt.get_cmap("viridis")
    for axes, column in zip(panels, ("entropy", "column_mass"), strict=True):
        for number, layer in enumerate(layers):
            heads: dict[str, dict[int, float]] = defaultdict(dict)
            for row in rows:
                if row["layer"] == layer:
                    heads[row["head"]][int(row["step"])] = float(row[column])
            colour = colours(number / max(1, len(layers) - 1) * 0.9)
            for head, points in heads.items():
                label = layer if head == "0" else None
                values = {step: points[step] for step in steps if step in points}
                line(axes, values, color=colour, linewidth=1, label=label)
        axes.set(xlabel="update")
    panels[0].set(ylabel="entropy (nats), mean over queries")
    panels[1].set(ylabel="smallest column mass, mean over examples", yscale="log")
    panels[0].legend(title="layer, a line a head", fontsize=8)
    what = f"{cfg['task']['name']}, seed {cfg['seed']}: attention on the first validation batch"
    figure.suptitle(what, fontsize=10)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=150)
    plt.close(figure)
    return target


def compare_column_mass(runs: dict[str, Path], target: Path, site: str | None = None) -> Path:
    """The smallest column mass of several runs, by name, against the update number, on a logarithmic scale: the least
    over the heads and layers of each, or of one site, on the batch that it watched ("Doubly-Normalized Attention",
    Figure 1). Raises ValueError for a run that watched no such layer."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    curves = {name: least_mass(run, site) for name, run in runs.items()}
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for name, curve in curves.items():
        line(axes, curve, label=name)
    where = f", {site}" if site else ""
    axes.set(xlabel="update", ylabel=f"smallest attention mass of a key{where}", yscale="log")
    axes.legend(fontsize=8)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=150)
    plt.close(figure)
    return target


def line(axes, points: dict[int, float], **style) -> None:
    """A line through the points, a dot where there is but one."""
    axes.plot(list(points), list(points.values()), marker="o" if len(points) == 1 else None, **style)


def least_mass(run: Path, site: str | None) -> dict[int, float]:
    """For each update that was watched, the smallest column mass of all heads and layers, or of those of a site."""
    watched = read_csv(run / ATTENTION_FILE) if (run / ATTENTION_FILE).is_file() else []
    least: dict[int, float] = {}
    for row in watched:
        if site in (None, row["layer"].partition("/")[0]):
            step, mass = int(row["step"]), float(row["column_mass_min"])
            least[step] = min(mass, least.get(step, mass))
    if not least:
        sites = ", ".join(dict.fromkeys(row["layer"].partition("/")[0] for row in watched))
        nothing = "; is it a run with attention, and with callbacks.attention_stats.every_n_steps > 0?"
        where = f" at {site}, but at {sites}" if watched else nothing
        raise ValueError(f"{run}: no attention was watched{where}")
    return least
