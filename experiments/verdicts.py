"""Writes the scores and verdicts of a sweep as a small CSV file, with the command and what a run has cost.

    python experiments/verdicts.py logs/reuters --out experiments/reuters/verdicts.csv --command "attnorm sweep ..."

One row per metric and arm. The verdicts are those of `attnorm compare`: p-values are adjusted for the arms (Holm), and
metrics other than the primary one of the task are exploratory. The script prints the file as a Markdown table.
"""

import argparse
import csv
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path

from sweeps import table

from attnorm.analysis import compare
from attnorm.analysis.comparison import Comparison
from attnorm.analysis.verdict import COSTS

COLUMNS = (
    *("task", "metric", "primary", "examples", "arm", "seeds", "mean", "sd"),
    *("difference", "low", "high", "low_new_seeds", "high_new_seeds", "adjusted_p", "detectable", "verdict"),
    *COSTS,
    "command",
)

HEADER = ("metric", "arm", "mean", "difference", "95 % interval", "seeds", "verdict")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="run folders, or folders of sweeps")
    parser.add_argument("--out", type=Path, required=True, help="the CSV file")
    parser.add_argument("--command", required=True, help="the command that started the runs")
    parser.add_argument("--baseline", default="softmax", help="the label of an arm")
    parser.add_argument("--metrics", nargs="*", default=[], help="metrics besides the primary one")
    args = parser.parse_args()
    write_verdicts(args.folders, args.out, args.command, args.baseline, args.metrics)


def write_verdicts(
    folders: Sequence[Path],
    out: Path,
    command: str,
    baseline: str = "softmax",
    metrics: Sequence[str] = (),
    gate: str | None = None,
    grouped: bool = True,
) -> None:
    """Compares the arms in some folders on the primary metric and on others, writes the file, and prints it.

    gate: a simple method. An arm whose mean does not beat it on the primary metric gets no verdict on any metric, and
          no arm gets one if the baseline does not beat it.
    grouped: as in `compare`.
    """
    primary = compare(baseline, folders, grouped=grouped)
    others = [metric for metric in metrics if metric != primary.metric]
    found = [primary, *(compare(baseline, folders, metric, grouped=grouped) for metric in others)]
    rows = [{**row, "command": command} for comparison in found for row in rows_of(comparison)]
    unfit = {it.label for it in primary.scores if gate is not None and not beats(it.mean, primary, gate)}
    for row in rows:
        if row["verdict"] != "baseline" and {row["arm"], primary.baseline} & unfit:
            row["verdict"] = "no verdict"
    write(out, rows)
    print(f"written to {out} ({len(rows)} rows)\n\n{table(HEADER, map(shown, rows))}")


def beats(mean: float, found: Comparison, method: str) -> bool:
    """Whether a mean is better than the score of a simple method."""
    return found.direction * (mean - found.simple[method]) > 0


def rows_of(found: Comparison, task: str | None = None) -> Iterator[dict[str, str]]:
    """A row per arm, the baseline first; cells are empty where a number is not defined. task: the name of the task; by
    default, that of the runs."""
    verdicts = {it.label: it for it in found.verdicts}
    for scores in found.scores:
        verdict = verdicts.get(scores.label)
        numbers: dict[str, float] = {"mean": scores.mean, "sd": scores.spread}
        word = "baseline"
        if verdict is not None:
            it = verdict.difference
            both, seeds = verdict.interval, it.new_seeds
            numbers |= {"difference": it.estimate, "low": both.low, "high": both.high}
            numbers |= {"low_new_seeds": seeds.low, "high_new_seeds": seeds.high}
            numbers |= {"adjusted_p": verdict.p_value, "detectable": verdict.detectable}
            word = verdict.word
        yield {
            "task": task or found.task,
            "metric": found.metric,
            "primary": str(found.is_primary).lower(),
            "examples": str(found.examples),
            "arm": scores.label,
            "seeds": str(len(scores.values)),
            **{name: f"{value:.5g}" if isfinite(value) else "" for name, value in numbers.items()},
            "verdict": word,
            **{name: f"{scores.costs[name]:.5g}" for name in COSTS if name in scores.costs},
        }


def shown(row: Mapping[str, str]) -> list[str]:
    """The cells of a row of the Markdown table. The interval is that for new seeds and new examples."""
    digits = 3 if row["metric"].startswith("loss") else 2

    def number(name: str, form: str = "") -> str:
        return f"{float(row[name]):{form}.{digits}f}" if row.get(name) else ""

    mean = f"{number('mean')} ± {number('sd')}" if row.get("sd") else number("mean")
    interval = f"{number('low', '+')} to {number('high', '+')}" if row.get("low") else ""
    return [row["metric"], row["arm"], mean, number("difference", "+"), interval, row["seeds"], row["verdict"]]


def write(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """Writes the rows as a CSV file. A row without a column has an empty cell there."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
