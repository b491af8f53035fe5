"""The study of arms of which only the scores are known, whatever program they are from."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from attnorm.analysis.comparison import Comparison, decided
from attnorm.analysis.study import Study
from attnorm.analysis.verdict import ArmScores, adjusted
from attnorm.errors import ConfigError, Problem
from attnorm.imports import nearest
from attnorm.tasks.results import direction


def study_of_scores(
    baseline: str,
    scores: Mapping[str, ArrayLike],
    metric: str,
    *,
    seeds: Sequence[int] | None = None,
    groups: Sequence[str] | None = None,
    level: float = 0.95,
) -> Study:
    """The study of arms of which only the scores are known; for the arguments, see `analysis.compare_scores`."""
    tables = {arm: np.asarray(table, dtype=np.float64) for arm, table in scores.items()}
    if baseline not in tables:
        message = f"must be one of {', '.join(tables)}.{nearest(baseline, tables)}"
        raise ConfigError([Problem("baseline", message, baseline)])
    first = tables[baseline]
    tables = {baseline: first, **tables}
    seeds = range(1, len(first) + 1) if seeds is None else seeds
    problems = []
    if len(seeds) != len(first):
        problems.append(Problem("seeds", f"{baseline} has {len(first)} rows", list(seeds)))
    for arm, table in tables.items():
        if table.ndim != 2 or table.shape != first.shape:
            shape = f"the shape {table.shape}; {baseline} has {first.shape}, (seeds, examples)"
            problems.append(Problem(f"scores.{arm}", shape))
        elif not np.isfinite(table).all():
            problems.append(Problem(f"scores.{arm}", "some scores are not finite"))
    if problems:
        raise ConfigError(problems)
    clusters = groups if groups is not None and len(set(groups)) < len(groups) else None
    verdicts = []
    for arm, table in tables.items():
        if arm != baseline:
            differences = dict(zip(seeds, table - first, strict=True))
            verdict = decided(arm, baseline, metric, differences, direction(metric), clusters, level)
            zero = not np.any(table - first)
            verdicts.append(replace(verdict, no_verdict="all differences are zero") if zero else verdict)
    main = Comparison(
        metric=metric,
        direction=direction(metric),
        examples=first.shape[1],
        scores=[ArmScores(arm, dict(zip(seeds, table.mean(1).tolist(), strict=True))) for arm, table in tables.items()],
        verdicts=adjusted(verdicts),
    )
    return Study(comparisons=[main])
