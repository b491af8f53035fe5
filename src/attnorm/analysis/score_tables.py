"""Verdicts from scores alone, for models that were not trained by attnorm."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from attnorm.analysis.cautions import cautions_of
from attnorm.analysis.statistics.crossed import paired_difference
from attnorm.analysis.verdict import Verdict, adjusted
from attnorm.errors import ConfigError, Problem
from attnorm.imports import nearest
from attnorm.tasks.results import direction


def compare_scores(
    baseline: str,
    scores: Mapping[str, ArrayLike],
    metric: str = "accuracy",
    *,
    seeds: Sequence[int] | None = None,
    groups: Sequence[str] | None = None,
    level: float = 0.95,
) -> list[Verdict]:
    """The verdicts of `compare` for a table of scores per arm, paired by seed and by example.

    The p-values are adjusted for all arms together. Whether the models have learned their task, whether they were
    trained alike, and whether these examples selected their checkpoints is not known here, and remains to be checked.

    Args:
        baseline: the name of an arm.
        scores: for each arm, a table (seeds, examples). A row of one arm and the same row of another have the same
            seed, and a column is the same example everywhere.
        metric: what the scores are.
        seeds: the seeds of the rows; by default 1, 2, and so on.
        groups: for each example, the cluster to which it belongs, see `paired_difference`.
        level: the level of the intervals.

    Raises ConfigError for an unknown baseline, and for tables that differ in shape or are not finite.
    """
    tables = {arm: np.asarray(table, dtype=np.float64) for arm, table in scores.items()}
    if baseline not in tables:
        message = f"must be one of {', '.join(tables)}.{nearest(baseline, tables)}"
        raise ConfigError([Problem("baseline", message, baseline)])
    first = tables.pop(baseline)
    seeds = range(1, len(first) + 1) if seeds is None else seeds
    problems = []
    if len(seeds) != len(first):
        problems.append(Problem("seeds", f"{baseline} has {len(first)} rows", list(seeds)))
    for arm, table in {baseline: first, **tables}.items():
        if table.ndim != 2 or table.shape != first.shape:
            shape = f"the shape {table.shape}; {baseline} has {first.shape}, (seeds, examples)"
            problems.append(Problem(f"scores.{arm}", shape))
        elif not np.isfinite(table).all():
            problems.append(Problem(f"scores.{arm}", "some scores are not finite"))
    if problems:
        raise ConfigError(problems)
    clusters = groups if groups is not None and len(set(groups)) < len(groups) else None
    rows = {arm: table - first for arm, table in tables.items()}
    found = {arm: paired_difference(its, clusters, level) for arm, its in rows.items()}
    reasons = {arm: it.no_verdict if rows[arm].any() else "all differences are zero" for arm, it in found.items()}
    verdicts = [
        Verdict(
            label=arm,
            baseline=baseline,
            metric=metric,
            difference=difference,
            direction=direction(metric),
            adjusted=float("nan"),
            by_seed=dict(zip(seeds, rows[arm].mean(1).tolist(), strict=True)),
            no_verdict=reasons[arm],
            cautions=cautions_of(rows[arm], list(seeds), clusters, ()),
        )
        for arm, difference in found.items()
    ]
    return adjusted(verdicts)
