"""Exact and approximate estimates in two dimensions ("Attention as Inference via Fenchel Duality", Sec. 6, Figure 3).

A discrete preference u with mean mu and an evidence z are given. The exact estimate is the mean of the distribution
p_j ~ u_j exp<t_j, lambda*> (Eq. 8 and 11). The approximate one takes lambda = alpha z instead (Eq. 17), which is
attention. The second-order one takes lambda = alpha (I + alpha Sigma)^-1 z (Eq. 14). The paper states neither its
support nor its weights.
"""

from typing import Any

import torch
from torch import Tensor

from attnorm.attention.normalizers.fenchel import solve
from attnorm.attention.registry import build_normalizer
from attnorm.experiments.papers.drawing import BLUE, GREEN, GREY, ORANGE, VERMILION, Drawing, Rows, listed, panels
from attnorm.experiments.papers.registry import Settings

SUPPORT = ((-0.75, -0.25), (-0.4, 0.6), (0.15, -0.65), (0.45, 0.45), (0.85, -0.15), (0.05, 0.1))
PREFERENCE = (0.15, 0.2, 0.2, 0.15, 0.1, 0.2)
EVIDENCE = (1.8, 1.0)
NAVY = "#1b2a5c"
ALPHAS = (0.5, 1.0, 2.0, 4.0)


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
        spots: dict[str, Any] = {"color": ORANGE, "alpha": 0.7, "linewidth": 0}
        panel.scatter(T[:, 0], T[:, 1], 400 * u, label="support of u and its weights", **spots)
        for (x, y), weight in zip(SUPPORT, PREFERENCE, strict=True):
            panel.annotate(f"{weight:g}", (x, y), (0, 7), textcoords="offset points", ha="center", fontsize=7)
        (x, y), (z_x, z_y) = mu.tolist(), z.tolist()
        panel.quiver(
            x, y, z_x, z_y, angles="xy", scale_units="xy", scale=1, width=0.008, color=NAVY, label="evidence z"
        )
        panel.plot(x, y, "x", color="black", label="mean of u")
        results = estimates(T, u, z, alpha)
        for name, (marker, color, size) in marks.items():
            outline: dict[str, Any] = {"facecolor": "none", "edgecolor": color, "linewidth": 1.4, "zorder": 3}
            panel.scatter(results[name][0], results[name][1], size, marker=marker, label=name, **outline)
            rows.append(
                {
                    "alpha": alpha,
                    "estimate": name,
                    "x": results[name][0].item(),
                    "y": results[name][1].item(),
                    "error": (results[name] - results["exact"]).norm().item(),
                    "distance_from_mean": (results[name] - mu).norm().item(),
                }
            )
        panel.set(title=f"α = {alpha:g}", aspect="equal", xlim=(-1.05, 2.05), ylim=(-0.9, 1.25))
        panel.grid(color=GREY, alpha=0.15)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    of = {(row["alpha"], row["estimate"]): row for row in rows}
    errors = [of[alpha, "approximate"]["error"] for alpha in ALPHAS]
    shares = [of[alpha, "approximate"]["error"] / of[alpha, "exact"]["distance_from_mean"] for alpha in ALPHAS]
    better = [of[alpha, "second order"]["error"] for alpha in ALPHAS]
    return Drawing(
        figure,
        rows,
        (
            "The smaller alpha is, the closer the approximate estimate (diamond), which is attention, is to the exact "
            f"one (square): for alpha = {listed(ALPHAS, 'g')} they are {listed(errors)} apart, which is "
            f"{listed(shares, '.0%')} of the distance of the exact estimate from the mean of u.",
            "The second-order estimate (triangle, Eq. 14), which the paper does not draw, is "
            f"{listed(better, '.3f')} away from the exact one.",
        ),
    )
