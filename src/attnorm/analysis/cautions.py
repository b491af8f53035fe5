"""What stands between an interval and a verdict: why a verdict is withheld, and the warnings that belong to it.

A verdict is withheld, although the numbers alone would allow one, if the models have not learned the task. Arms that do
not beat a simple method, that write the same output for nearly every example, or that have the scores of each other say
nothing about their normalizers, however narrow the interval for their difference is. A verdict gets a warning if its
interval may be too narrow, or if one of its runs is unusual.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from statistics import median
from typing import Any

import numpy as np

from attnorm.analysis.arms import numbers_of
from attnorm.analysis.scores import ExampleTable
from attnorm.analysis.shared_seeds import SharedSeeds
from attnorm.analysis.statistics.shape import distances, outlying_seeds, skewed_examples
from attnorm.analysis.verdict import listed_seeds
from attnorm.run.run import Run
from attnorm.tasks.results import NAMES, UNDEFINED, direction

Metrics = Mapping[str, float]
ALMOST_ALL, MOSTLY = 0.95, 0.9  # shares of equal outputs that are a collapse, and of equal references that excuse it
ADVICE = "A difference between such arms says nothing about their normalizers. Train longer, or on more data."
WORSE = 1.5  # times the median loss of the other runs: a run whose loss rose to this has diverged
EFFECT = "so the interval may miss the true difference more often than it says"


# ---------------------------------------------------------------------------------------------------- verdicts withheld


def failures_of_all(
    records: Mapping[str, Sequence[Mapping[str, Any]]],
    metric: str,
    primary: str | None,
    direction: Callable[[str], int],
) -> tuple[list[str], dict[str, dict[str, float]]]:
    """Why no verdict can be given on any arm, as clauses: the metric is not defined for many references, or no arm
    beats a simple method. Also returns the metrics of the simple methods on the whole split, by name.

    records: the recorded evaluations of the runs of each arm. direction: see `unbeaten_methods`.
    """
    every = [record for of_arm in records.values() for record in of_arm]
    recorded = [each for record in every if isinstance(each := record.get("baselines"), dict)]
    known = ({str(name): of for name, each in of_all.items() if (of := numbers_of(each))} for of_all in recorded)
    methods: dict[str, dict[str, float]] = next(filter(None, known), {})
    share = max((numbers_of(record.get("undefined")).get(metric, 0.0) for record in every), default=0.0)
    clauses = [f"{NAMES.get(metric, metric)} is undefined for {share:.1%} of the references"] * (share > UNDEFINED)
    metrics = {label: [numbers_of(record.get("metrics")) for record in of_arm] for label, of_arm in records.items()}
    return [*clauses, *unbeaten_methods(metrics, methods, primary, direction)], methods


def unbeaten_methods(
    arms: Mapping[str, Sequence[Metrics]],
    methods: Mapping[str, Metrics],
    primary: str | None,
    direction: Callable[[str], int] = direction,
) -> list[str]:
    """A clause for each simple method that no arm beats.

    An arm beats a method if its mean over seeds is better on the primary metric, on the whole split. A method without a
    value for the primary metric is judged by its first metric.

    arms: for each arm, the recorded metrics of its runs. methods: the metrics of each. direction: of a metric, 1 if a
    higher value of it is better, -1 if a lower one is.
    """
    clauses = []
    for method, scores in methods.items():
        metric = primary if primary is not None and primary in scores else next(iter(scores))
        known = {label: runs for label, runs in arms.items() if runs and all(metric in run for run in runs)}
        means = {label: float(np.mean([run[metric] for run in runs])) for label, runs in known.items()}
        sign = direction(metric)
        if means and all(sign * (mean - scores[metric]) <= 0 for mean in means.values()):
            best = max(means, key=lambda label: sign * means[label])
            compared = f"{means[best]:.2f} {NAMES.get(metric, metric)} against {scores[metric]:.2f}"
            clauses.append(f"no arm beats the simple baseline {method}; the best one, {best}, has {compared}")
    return clauses


def collapsed(label: str, tables: Mapping[int, ExampleTable], ids: Sequence[str]) -> str | None:
    """A clause if an arm writes the same output for (almost) all examples with most of its seeds.

    tables: its examples by seed. If (almost) all references are equal, so may the outputs be.
    """
    outputs = {seed: largest_share(table.texts("output", ids)) for seed, table in tables.items()}
    shares = {seed: share for seed, share in outputs.items() if share >= ALMOST_ALL}
    references = next(iter(tables.values())).texts("reference", ids)
    if 2 * len(shares) <= len(outputs) or largest_share(references) >= MOSTLY:
        return None
    least, size = min(shares.values()), f"{len(ids):,} examples"
    part = f"all {size}" if least == 1 else f"at least {int(100 * least)} % of {size}"
    return f"{label} gives one and the same output for {part} with {seeds_of(list(shares), len(outputs))}"


def largest_share(texts: Sequence[str]) -> float:
    """The share of the most frequent text."""
    return Counter(texts).most_common(1)[0][1] / len(texts)


def identical(
    labels: tuple[str, str], pairs: Mapping[int, tuple[ExampleTable, ExampleTable]], metric: str, ids: Sequence[str]
) -> str | None:
    """A clause if two arms have the same scores on every example with most of their seeds. pairs: theirs by seed."""
    gaps = {seed: one.values(metric, ids) - other.values(metric, ids) for seed, (one, other) in pairs.items()}
    equal = {seed: pairs[seed] for seed, gap in gaps.items() if not np.any(gap)}
    if 2 * len(equal) <= len(pairs):
        return None
    texts = [zip(one.texts("output", ids), other.texts("output", ids), strict=True) for one, other in equal.values()]
    differ = sum(first != second for outputs in texts for first, second in outputs)
    between = f"all differences between {labels[0]} and {labels[1]} are zero"
    where = f"{differ:,} of {len(equal) * len(ids):,} outputs differ"
    return f"{between} with {seeds_of(list(equal), len(pairs))}, where {where}"


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


def failures(shared: SharedSeeds, metric: str, ids: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """What shows, in the outputs and scores, that models have not learned the task, as clauses.

    Returns those that concern the verdict on each arm, by its label, and all of them, each once.
    """
    baseline, *others = shared.arms
    same_output = {arm.label: collapsed(arm.label, shared.tables(arm), ids) for arm in shared.arms}
    same_scores = {arm.label: identical((arm.label, baseline.label), shared.pairs(arm), metric, ids) for arm in others}
    by_arm = {
        label: [clause for clause in (same_output[baseline.label], same_output[label], equal) if clause]
        for label, equal in same_scores.items()
    }
    return by_arm, [clause for clause in (*same_output.values(), *same_scores.values()) if clause]


# ------------------------------------------------------------------------------------------------------------- warnings


def cautions_of(
    rows: np.ndarray, seeds: Sequence[int], groups: Sequence[str] | None, runs: Sequence[tuple[str, Run]]
) -> tuple[str, ...]:
    """The warnings about a comparison of two arms, as sentences.

    rows: the differences (seeds, examples). groups: see `skewed_examples`. runs: those of both arms, with their names.
    """
    losses = {name: [loss for _, loss in values] for name, run in runs if (values := run.validations())}
    cautions = [f"{name} has diverged{clause}" for name, _ in runs if (clause := divergence(name, losses))]
    means = rows.mean(1)
    if outlying_seeds(means):
        apart = np.abs(means - np.median(means))
        largest, usual = distances(means)
        equal = int((apart <= largest * 1e-6).sum())  # up to rounding
        if 2 * equal > len(means):  # then the usual distance is zero
            distance = f"that of {equal} of the {len(means)} seeds"
        else:
            distance = f"{largest / usual:,.0f} times the usual distance"
        seed, value = seeds[int(apart.argmax())], means[apart.argmax()]
        difference, middle = (f"{number:+.4g}" if number else "0" for number in (value, np.median(means)))
        why = f"its difference is {difference}, where the median of all seeds is {middle} ({distance})"
        cautions.append(f"seed {seed} is unusual: {why}, {EFFECT}")
    if skewed_examples(rows, groups):
        kind = "examples" if groups is None else "groups"
        cautions.append(f"the differences of the {kind} are skewed, and there are too few of them, {EFFECT}")
    return tuple(f"Caution: {clause}." for clause in cautions)


def divergence(name: str, losses: Mapping[str, Sequence[float]]) -> str | None:
    """Whether a run has diverged, as the end of a sentence; None if it has not.

    A run has diverged if its last validation loss is not finite, or if it has risen since the first validation, to at
    least WORSE times the median of the other runs. Such a rise may also mean that the run has overfitted.

    losses: those of all runs by name.
    """
    course = losses.get(name, [])
    others = [each[-1] for key, each in losses.items() if key != name and isfinite(each[-1])]
    if not course:
        return None
    if not isfinite(course[-1]):
        return ": its last validation loss is not finite"
    if len(others) > 1 and course[-1] > course[0] and course[-1] >= WORSE * median(others) > 0:
        rose = f" or overfitted: its validation loss rose from {course[0]:.3g} to {course[-1]:.3g}"
        return f"{rose}, and the median of the other runs is {median(others):.3g}"
    return None
