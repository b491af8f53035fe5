"""What experiments with tuned learning rates share: their options, and the sweep that tunes every arm alike."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path

from sweeps import Run, print_cost, several, sweep


def add_options(
    parser: ArgumentParser, rates: Sequence[float], tuning_seeds: Sequence[int], seeds: Sequence[int]
) -> None:
    """Adds --rates, --tuning-seeds, --seeds with these defaults, and overrides of all runs."""
    parser.add_argument("--rates", type=float, nargs="+", default=list(rates), help="learning rates, for every arm")
    parser.add_argument("--tuning-seeds", type=int, nargs="+", default=list(tuning_seeds))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(seeds), help="of the comparison")
    parser.add_argument("overrides", nargs="*", help="behind --: for every run, and keys of the sweep such as jobs=2")


def print_tuned_cost(args: Namespace, seconds: dict[str, float], updates: int, others: float) -> None:
    """Prints the estimated cost of tuning and of the comparison. See `print_cost`."""
    print_cost(seconds, len(args.rates) * len(args.tuning_seeds) + len(args.seeds), updates, others)


def tuned_sweep(folder: Path, args: Namespace, arms: Sequence[str], *recipe: str) -> list[Run]:
    """Tunes the learning rate of every arm, and runs it with the other seeds at its best one.

    Returns those runs, without those that have failed.
    """
    return sweep(
        folder,
        *recipe,
        f"attention={several(arms)}",
        f"seed={several(args.seeds)}",
        f"tune=optimizer.lr={several(args.rates)}",
        f"tune_seeds={several(args.tuning_seeds)}",
        *args.overrides,
        failures=True,
    )


def by_arm(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The runs of each arm."""
    arms: dict[str, list[Run]] = {}
    for run in runs:
        arms.setdefault(run.settings["attention"], []).append(run)
    return arms
