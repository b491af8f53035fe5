"""The study of arms of which only the scores are known, whatever program they are from."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isnan
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from attnorm.analysis.arms import DEFAULT_BASELINE
from attnorm.analysis.cautions import seeds_of
from attnorm.analysis.comparison import Comparison, decided
from attnorm.analysis.score_files import ExampleScores, as_texts, collected
from attnorm.analysis.shared_seeds import NoSharedSeed, counting_seeds
from attnorm.analysis.study import Study
from attnorm.analysis.verdict import ArmScores, adjusted, listed_seeds
from attnorm.errors import ConfigError, DataError, Problem, RunError
from attnorm.imports import nearest
from attnorm.tasks.results import HIGHER_IS_BETTER, LOWER_IS_BETTER, direction
from attnorm.wording import counted, listed

Better = Literal["higher", "lower"]
PER_SEED = "one score per seed says nothing about new examples"


def study_of_scores(
    baseline: str,
    scores: Mapping[str, ArrayLike] | pd.DataFrame,
    metric: str,
    *,
    better: Better | None = None,
    seeds: Sequence[int] | None = None,
    groups: Sequence[str] | None = None,
    level: float = 0.95,
) -> Study:
    """The study of arms of which only the scores are known; for the arguments, see `analysis.compare_scores`."""
    if isinstance(scores, pd.DataFrame):
        if seeds is not None or groups is not None:
            name = "groups" if seeds is None else "seeds"
            raise ConfigError([Problem(name, "has no effect on a DataFrame, which has them in a column")])
        rows = as_texts(scores.set_axis([f"scores, row {number}" for number in range(1, len(scores) + 1)]))
        return study_of_tables(collected([rows], "a DataFrame"), baseline, metric, better=better, level=level)
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
    arms = {arm: dict(zip(seeds, table, strict=True)) for arm, table in tables.items()}
    return Study(comparisons=[_comparison(arms, metric, direction_of_scores(metric, better), groups, level)])


def direction_of_scores(metric: str, better: Better | None) -> int:
    """1 if higher scores are better, -1 if lower ones are. Raises ConfigError if only the user knows."""
    if better is None and metric not in LOWER_IS_BETTER | HIGHER_IS_BETTER:
        message = f"must be given, better=higher or better=lower, as attnorm does not know the metric {metric!r}"
        raise ConfigError([Problem("better", message)])
    return direction(metric) if better is None else 1 if better == "higher" else -1


def study_of_tables(
    given: ExampleScores,
    baseline: str | None = None,
    metric: str | None = None,
    *,
    better: Better | None = None,
    level: float = 0.95,
) -> Study:
    """The study of arms whose scores are in tables.

    baseline: the name of an arm; None: softmax, or else the first one. metric: what the scores are called. better:
    which values of it are, see `direction_of_scores`. As with runs, seeds that an arm lacks do not count, arms that
    share none with the baseline are left out, and so are examples without a score of some arm and seed.
    """
    metric = metric or "score"
    towards = direction_of_scores(metric, better)
    names = list(given.values)
    baseline = baseline or (DEFAULT_BASELINE if DEFAULT_BASELINE in names else names[0])
    if baseline not in names:
        message = f"the arms are {', '.join(names)}.{nearest(baseline, names)}"
        raise ConfigError([Problem("baseline", message, baseline)])
    if len(names) == 1:
        raise ConfigError([Problem("scores", f"there is nothing to compare with the only arm, {baseline}")])
    seeds = {arm: set(given.values[arm]) for arm in [baseline, *(name for name in names if name != baseline)]}
    apart = {arm: str(NoSharedSeed(arm, baseline)) for arm, each in seeds.items() if not each & seeds[baseline]}
    if len(apart) == len(names) - 1:
        raise RunError("; ".join(apart.values()))
    counting = counting_seeds({arm: each for arm, each in seeds.items() if arm not in apart})
    tables = {arm: {seed: given.values[arm][seed] for seed in each} for arm, each in counting.items()}
    runs = {f"{arm}, seed {seed}": table for arm, of_arm in tables.items() for seed, table in of_arm.items()}
    every = dict.fromkeys(example for table in runs.values() for example in table)
    lacking = {example: [run for run, table in runs.items() if example not in table] for example in every}
    examples = [example for example, without in lacking.items() if not without]
    partial = [f"{example} (not scored: {without[0]})" for example, without in lacking.items() if without]
    if not examples:
        raise DataError(f"{given.source}: no example has a score of every arm and seed: {listed(partial, 3)}")
    arms = {
        arm: {seed: np.array([table[example] for example in examples]) for seed, table in of_arm.items()}
        for arm, of_arm in tables.items()
    }
    groups = None if given.groups is None else [given.groups[example] or example for example in examples]
    main = _comparison(arms, metric, towards, groups, level, len(apart))
    verdicts = []
    for verdict in main.verdicts:
        left = sorted((seeds[verdict.label] | seeds[baseline]) - {*counting[verdict.label]})
        unscored = [name for name, each in seeds.items() if not {*left} <= each]
        why = f"Left out: {listed_seeds(left)}, for want of scores of {', '.join(unscored)}." if left else ""
        if given.per_seed and not isnan(verdict.difference.p_value_new_seeds):
            difference = replace(verdict.difference, no_verdict=PER_SEED)
            verdict = replace(verdict, difference=difference, no_verdict=PER_SEED)
        verdicts.append(replace(verdict, left_out=why))
    notes = [f"Left out for want of a score: {counted(len(partial), 'example')}, such as {p}." for p in partial[:1]]
    return Study(
        comparisons=[replace(main, verdicts=verdicts, notes=notes)],
        left_out=[f"{arm} is not compared: {why}." for arm, why in apart.items()],
        missing=len(apart),
        origin=f"The scores are from {given.source}. How the arms were trained, and whether these examples selected "
        "their checkpoints, is not known here.",
    )


def _comparison(
    arms: Mapping[str, Mapping[int, np.ndarray]],
    metric: str,
    towards: int,
    groups: Sequence[str] | None,
    level: float,
    missing: int = 0,
) -> Comparison:
    """Compares arms with the first one. arms: the scores of the examples by arm and seed. missing: see `adjusted`."""
    baseline, *others = arms
    clusters = groups if groups is not None and len(set(groups)) < len(groups) else None
    is_share = max(np.abs(row).max() for of_arm in arms.values() for row in of_arm.values()) <= 1
    verdicts = []
    for arm in others:
        differences = {seed: row - arms[baseline][seed] for seed, row in arms[arm].items()}
        verdict = decided(arm, baseline, metric, differences, towards, clusters, level)
        equal = [seed for seed, row in differences.items() if not np.any(row)]
        if 2 * len(equal) > len(differences):
            more = "" if len(equal) == len(differences) else f" with {seeds_of(equal, len(differences))}"
            verdict = replace(verdict, no_verdict=f"all differences are zero{more}")
        verdicts.append(replace(verdict, digits=4) if is_share else verdict)
    means = {arm: {seed: float(row.mean()) for seed, row in of_arm.items()} for arm, of_arm in arms.items()}
    return Comparison(
        metric=metric,
        direction=towards,
        examples=len(next(iter(arms[baseline].values()))),
        scores=[ArmScores(arm, values) for arm, values in means.items()],
        verdicts=adjusted(verdicts, missing),
    )
