"""How far two clusters are apart after one attention update ("Doubly-Normalized Attention", Sec. 5.2, Figure 2).

n0 points lie at a and n1 points at -a, on a line. With the mass ratio r = n0 / n1, the Gaussian weight between the
clusters s = exp(-2 a^2), and q = (r + s) / (r s + 1), the distance of their centers becomes

softmax:  2 r (1 - s^2) a / ((1 + r s) (r + s))       Eq. 11
dnas:     2 q r (1 - s^2) a / ((q + r s) (r + s q))   Eq. 12
"""

import math

import torch

from attnorm.attention.normalizers.base import Normalizer
from attnorm.attention.registry import build_normalizer, build_scorer
from attnorm.experiments.papers.drawing import STYLES, Drawing, Rows, panels
from attnorm.experiments.papers.registry import Settings

SCALES = (0.3, 0.5, 1.0, 1.5)  # a, a panel each; the paper does not state its values
LARGEST = 100  # ratios from 1 / 100 to 100
MARKED = (2, 3, 6, 11, 31, 101)  # numbers of points whose simulation is marked in the figure


def softmax_distance(a: float, r: float) -> float:
    """The distance of the centers after one update with softmax, Eq. 11."""
    s = math.exp(-2 * a**2)
    return 2 * r * (1 - s**2) * a / ((1 + r * s) * (r + s))


def dnas_distance(a: float, r: float) -> float:
    """The distance of the centers after one update with dnas, Eq. 12."""
    s = math.exp(-2 * a**2)
    q = (r + s) / (r * s + 1)
    return 2 * q * r * (1 - s**2) * a / ((q + r * s) * (r + s * q))


FORMULAS = {"softmax": softmax_distance, "dnas": dnas_distance}


def simulated_distance(normalizer: Normalizer, a: float, n0: int, n1: int) -> float:
    """The same by an update x <- W x of n0 + n1 points, with the weights of a normalizer on Gaussian scores."""
    x = torch.tensor([a] * n0 + [-a] * n1, dtype=torch.float64)[:, None]  # (N, 1)
    scores = build_scorer("gaussian")(x[None, None], x[None, None])  # (1, 1, N, N)
    updated = normalizer(scores)[0, 0] @ x
    return (updated[0] - updated[-1]).item()


def distances(scales: tuple[float, ...] = SCALES, largest: int = LARGEST) -> Rows:
    """Formula and simulation for n : 1 and 1 : n points, n = 1, ..., `largest`."""
    sizes = [(1, n) for n in range(largest, 1, -1)] + [(n, 1) for n in range(1, largest + 1)]
    normalizers = {name: build_normalizer(name) for name in FORMULAS}
    return [
        {
            "a": a,
            "n0": n0,
            "n1": n1,
            "ratio": n0 / n1,
            "normalizer": name,
            "formula": FORMULAS[name](a, n0 / n1),
            "simulated": simulated_distance(normalizers[name], a, n0, n1),
        }
        for a in scales
        for name in FORMULAS
        for n0, n1 in sizes
    ]


def draw(settings: Settings) -> Drawing:
    """Draws Figure 2."""
    rows = distances()
    title = "Distance of two cluster centers after one attention update"
    figure, [axes] = panels(1, len(SCALES), (11, 3.4), title)
    smooth = torch.logspace(-2, 2, 201).tolist()
    for panel, a in zip(axes, SCALES, strict=True):
        for name in FORMULAS:
            panel.plot(smooth, [FORMULAS[name](a, r) for r in smooth], label=f"{name}, closed form", **STYLES[name])
            marked = [
                row for row in rows if (row["a"], row["normalizer"]) == (a, name) and row["n0"] + row["n1"] in MARKED
            ]
            at = [row["ratio"] for row in marked], [row["simulated"] for row in marked]
            panel.plot(*at, "o", label=f"{name}, simulated", color=STYLES[name]["color"], markersize=4)
        panel.set(xscale="log", title=f"a = {a:g}, distance {2 * a:g} before", xlabel="mass ratio r = N0 / N1")
        panel.set_ylim(0, 1.1 * dnas_distance(a, 1))
    axes[0].set_ylabel("center distance")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return Drawing(figure, rows, sentences(rows))


def sentences(rows: Rows) -> tuple[str, str]:
    """What to see in Figure 2."""
    error = max(abs(row["formula"] - row["simulated"]) for row in rows)
    balanced, few = dnas_distance(1.0, 1), [f(1.0, 10) for f in (softmax_distance, dnas_distance)]
    return (
        "Both updates bring the centers closer, by the same amount if the clusters have equal masses (for a = 1, "
        f"{balanced:.2f} of 2.00 is left); with unequal masses, dnas keeps more of the distance than softmax "
        f"(at 10 : 1, {few[1]:.2f} and {few[0]:.2f}).",
        "The dots are updates of N0 + N1 points with the normalizers of this package; they lie on the closed forms "
        f"(Eq. 11 and 12) up to {error:.0e}.",
    )
