"""Draws the loss by position of all arms that have been compared, from the CSV files of both comparisons.

python experiments/causal_lm/figure.py
"""

import csv
from pathlib import Path

import matplotlib.pyplot as plt

HERE = Path(__file__).parent
BANDS = ("loss_1x", "loss_2x", "loss_4x", "loss_8x")
TICKS = ("up to 1", "1 to 2", "2 to 4", "4 to 8")
NAMES = {"softmax_gate-decoder-headwise": "gated softmax"}
LINES = ("solid", "dashed", "dotted", "dashdot")


def main() -> None:
    losses: dict[str, dict[str, tuple[float, float]]] = {}  # arm -> band -> mean and standard deviation over seeds
    for name in ("verdicts.csv", "verdicts_second.csv"):
        with open(HERE / name, newline="") as file:
            for row in csv.DictReader(file):
                if row["metric"] in BANDS:
                    losses.setdefault(row["arm"], {})[row["metric"]] = float(row["mean"]), float(row["sd"])
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    order = sorted(losses, key=lambda arm: -losses[arm][BANDS[-1]][0])
    for number, arm in enumerate(order):
        means, spreads = zip(*(losses[arm][band] for band in BANDS), strict=True)
        style = {"color": f"C{number % 10}", "linestyle": LINES[number % 4], "linewidth": 1.5}
        if arm == "softmax":
            style = {"color": "black", "linestyle": "solid", "linewidth": 2.5}
        axes.errorbar(range(4), means, spreads, capsize=2, label=NAMES.get(arm, arm), **style)
    axes.set(xlabel="position, in multiples of the training length", ylabel="loss (nats per token)", ylim=(3.7, 5.0))
    axes.set_xticks(range(4), TICKS)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(HERE / "loss_by_position.png", dpi=130)


if __name__ == "__main__":
    main()
