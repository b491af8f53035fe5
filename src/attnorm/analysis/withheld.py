"""Why no verdict is given although the numbers alone would allow one: the models have not learned the task.

Arms that do not beat a simple method, that write the same output for nearly every example, or that have the scores of
each other say nothing about their normalizers, however narrow the interval for their difference is.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from attnorm.analysis.arms import as_number
from attnorm.tasks.results import LOWER_IS_BETTER, NAMES

Metrics = Mapping[str, float]
ALMOST_ALL, MOSTLY = 0.95, 0.9  # shares of equal outputs that are a collapse, and of equal references that excuse it
ADVICE = "A difference between such arms says nothing about their normalizers. Train longer, or on more data."


def numbers_of(record: object) -> dict[str, float]:
    """The finite numbers of a JSON object, by name."""
    items = record.items() if isinstance(record, dict) else ()
    return {str(name): number for name, value in items if (number := as_number(value)) is not None}


def simple_methods(record: Mapping[str, object]) -> dict[str, dict[str, float]]:
    """The metrics of the simple methods by name, as a recorded evaluation states them for its whole split."""
    methods = record.get("baselines")
    found = {str(name): numbers_of(its) for name, its in methods.items()} if isinstance(methods, dict) else {}
    return {name: metrics for name, metrics in found.items() if metrics}


def unbeaten(arms: Mapping[str, Sequence[Metrics]], methods: Mapping[str, Metrics], primary: str | None) -> list[str]:
    """A clause for each simple method that no arm beats.

    An arm beats a method if its mean over seeds is better on the primary metric, on the whole split. A method without a
    value for the primary metric is judged by its first metric.

    arms: for each arm, the recorded metrics of its runs. methods: see `simple_methods`.
    """
    clauses = []
    for method, its in methods.items():
        metric = primary if primary is not None and primary in its else next(iter(its))
        means = {
            label: float(np.mean([run[metric] for run in runs]))
            for label, runs in arms.items()
            if runs and all(metric in run for run in runs)
        }
        sign = -1 if metric in LOWER_IS_BETTER else 1
        if means and all(sign * (mean - its[metric]) <= 0 for mean in means.values()):
            best = max(means, key=lambda label: sign * means[label])
            scores = f"{means[best]:.2f} {NAMES.get(metric, metric)} against {its[metric]:.2f}"
            clauses.append(f"no arm beats the simple baseline {method}; the best one, {best}, has {scores}")
    return clauses


def collapsed(label: str, outputs: Mapping[int, Sequence[str]], references: Sequence[str]) -> str | None:
    """A clause if an arm writes the same output for (almost) all examples with most of its seeds.

    outputs: by seed. references: the reference of each example. If (almost) all of them are equal, so may the outputs
    be.
    """
    shares = {seed: share for seed, its in outputs.items() if (share := largest_share(its)) >= ALMOST_ALL}
    if 2 * len(shares) <= len(outputs) or largest_share(references) >= MOSTLY:
        return None
    least, size = min(shares.values()), f"{len(references):,} examples"
    part = f"all {size}" if least == 1 else f"at least {int(100 * least)} % of {size}"
    return f"{label} gives one and the same output for {part} with {seeds_of(list(shares), len(outputs))}"


def largest_share(texts: Sequence[str]) -> float:
    """The share of the most frequent text."""
    return Counter(texts).most_common(1)[0][1] / len(texts)


def identical(
    labels: tuple[str, str], outputs: Mapping[int, tuple[Sequence[str], Sequence[str]]], differing: Mapping[int, int]
) -> str | None:
    """A clause if two arms have the same scores on every example with most of their seeds.

    outputs: those of both arms by seed. differing: the number of examples whose scores differ, by seed.
    """
    seeds = [seed for seed, count in differing.items() if count == 0]
    if 2 * len(seeds) <= len(differing):
        return None
    pairs = [pair for seed in seeds for pair in zip(*outputs[seed], strict=True)]
    differ = f"{sum(ours != theirs for ours, theirs in pairs):,} of {len(pairs):,} outputs differ"
    between = f"all differences between {labels[0]} and {labels[1]} are zero"
    return f"{between} with {seeds_of(seeds, len(differing))}, where {differ}"


def withheld_lines(clauses: Sequence[str]) -> list[str]:
    """The clauses as sentences to be shown above everything else, and what they mean; [] without clauses."""
    return [*(f"No verdict: {clause}." for clause in clauses), ADVICE] if clauses else []


def simple_label(name: str) -> str:
    """The label of a simple method in a table of arms; its scores are those on the whole split."""
    return f"{name} (simple baseline, whole split)"


def seeds_of(seeds: Sequence[int], total: int) -> str:
    """Seeds in words: "seed 1", "seeds 1 and 2 (of 3)", "all 3 seeds"."""
    if len(seeds) == total > 1:
        return f"all {total} seeds"
    return listed_seeds(seeds) + (f" (of {total})" if len(seeds) < total else "")


def listed_seeds(seeds: Sequence[int]) -> str:
    """Seeds in words: "seed 1", "seeds 1, 2 and 5"."""
    *most, last = map(str, seeds)
    return f"seeds {', '.join(most)} and {last}" if most else f"seed {last}"
