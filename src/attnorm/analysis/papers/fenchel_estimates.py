"""Exact and approximate estimates in two dimensions ("Attention as Inference via Fenchel Duality", Sec. 6, Figure 3).

A discrete preference u with mean mu and an evidence z are given. The exact estimate is the mean of p_j ~ u_j exp<t_j,
lambda*> (Eq. 8 and 11). The approximate one takes lambda = alpha z instead (Eq. 17), which is attention. The second-order
one takes lambda = alpha (I + alpha Sigma)^-1 z (Eq. 14). The paper states neither its support nor its weights.
"""

import torch
from torch import Tensor

from attnorm.analysis.papers.drawing import BLUE, GREEN, GREY, ORANGE, VERMILION, Drawing, Rows, listed, panels
from attnorm.analysis.papers.registry import Settings
from attnorm.attention.build import build_normalizer
from attnorm.attention.normalizers.fenchel import solve

SUPPORT = ((-0.75, -0.25), (-0.4, 0.6), (0.15, -0.65), (0.45, 0.45), (0.85, -0.15), (0.05, 0.1))
PREFERENCE = (0.15, 0.2, 0.2, 0.15, 0.1, 0.2)
EVIDENCE = (1.8, 1.0)
ALPHAS = (0.5, 1.0, 2.0, 4.0)
KINDS = ("exact", "approximate", "second order")


def estimates(templates: Tensor, preference: Tensor, evidence: Tensor, alpha: float) -> dict[str, Tensor]:
    """The estimates of the mean, (D,) each, by name.

    Shapes: templates (M, D), preference (M,), evidence (D,), all float64.
    """
    q, k = evidence[None, None, None], templates[None, None]
    log_prior = preference.log()
    solution = solve(q, k, log_prior=log_prior, scale=alpha)
    logits = {"exact": solution @ k.mT}
    weights = {"exact": (log_prior + logits["exact"]).softmax(-1)}
    for name, order in (("approximate", 1), ("second order", 2)):
        fenchel = build_normalizer("fenchel", order=order)
        weights[name] = fenchel(alpha * q @ k.mT, log_prior=log_prior, keys=k, scale=alpha)
    return {name: (w @ k)[0, 0, 0] for name, w in weights.items()}


def draw(settings: Settings) -> Drawing:
    """Draws Figure 3."""
    T, u, z = (torch.tensor(values, dtype=torch.float64) for values in (SUPPORT, PREFERENCE, EVIDENCE))
    mu = u @ T
    title = "Estimates of the mean from a preference u and an evidence z"
    figure, [axes] = panels(1, len(ALPHAS), (12, 3.4), title, sharex=True, sharey=True)
    rows: Rows = []
    marks = {"exact": ("s", VERMILION, 60), "approximate": ("D", BLUE, 30), "second order": ("^", GREEN, 30)}
    for panel, alpha in zip(axes, ALPHAS, strict=True):
        panel.scatter(*T.T, s=400 * u, color=ORANGE, alpha=0.7, linewidth=0, label="support of u, with its weights")
        for (x, y), weight in zip(SUPPORT, PREFERENCE, strict=True):
            panel.annotate(f"{weight:g}", (x, y), (0, 7), textcoords="offset points", ha="center", fontsize=7)
        arrow = {"arrowstyle": "-|>", "color": "#1b2a5c", "shrinkA": 0, "shrinkB": 0}
        panel.annotate("", (mu + z).tolist(), mu.tolist(), arrowprops=arrow)
        panel.plot(*mu, "x", color="black", label="mean of u; the arrow is the evidence z")
        found = estimates(T, u, z, alpha)
        for name, (marker, color, size) in marks.items():
            panel.scatter(
                *found[name],
                marker=marker,
                s=size,
                facecolor="none",
                edgecolor=color,
                linewidth=1.4,
                label=name,
                zorder=3,
            )
            rows.append(
                {
                    "alpha": alpha,
                    "estimate": name,
                    "x": found[name][0].item(),
                    "y": found[name][1].item(),
                    "error": (found[name] - found["exact"]).norm().item(),
                    "distance_from_mean": (found[name] - mu).norm().item(),
                }
            )
        panel.set(title=f"α = {alpha:g}", aspect="equal", xlim=(-1.05, 2.05), ylim=(-0.9, 1.25))
        panel.grid(color=GREY, alpha=0.15)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    of = {(row["alpha"], row["estimate"]): row for row in rows}
    errors = [of[alpha, "approximate"]["error"] for alpha in ALPHAS]
    shares = [of[alpha, "approximate"]["error"] / of[alpha, "exact"]["distance_from_mean"] for alpha in ALPHAS]
    better = [of[alpha, "second order"]["error"] for alpha in ALPHAS]
    return Drawing(
        figure,
        rows,
        (
            "The smaller alpha is, the closer is the approximate estimate (diamond), which is attention, to the exact one "
            f"(square): they are {listed(errors)} apart for alpha = {listed(ALPHAS, 'g')}, which is "
            f"{listed(shares, '.0%')} of what the exact estimate is away from the mean of u.",
            f"The second-order estimate (triangle, Eq. 14), which the paper does not draw, is {listed(better)} away from the "
            "exact one.",
        ),
    )
