"""Which further values of tuned arms a sweep trains: those on which its verdicts depend."""

from pathlib import Path

from attnorm.analysis.arms import Arm, arms_of, find_runs
from attnorm.analysis.comparison import baseline_of, compare_arms
from attnorm.analysis.grids import grids_of
from attnorm.analysis.verdict import AT_THESE_RATES, adjusted


def further_values(folder: Path) -> list[tuple[int, str]]:
    """The numbers of arms in sweep.json and their values besides the best one that are trained with the comparison
    seeds, so that every verdict that would be shown at the best values can be decided.

    The arms are compared with the default baseline of `compare` on the primary metric of each task. Raises RunError if
    nothing can be compared.
    """
    by_task: dict[str, list[Arm]] = {}
    for arm in arms_of(find_runs([folder])):
        by_task.setdefault(arm.task, []).append(arm)
    values: dict[tuple[int, str], None] = {}
    for arms in by_task.values():
        baseline = baseline_of(arms, None)
        with_runs = [arm for arm in arms if arm is not baseline and arm.finished]
        found = compare_arms(baseline, with_runs)
        grids = grids_of(arms, found.metric, found.direction)
        for verdict in adjusted(found.verdicts, len(arms) - 1 - len(with_runs)):
            others = verdict.others
            if others is not None and verdict.word in ("shown", AT_THESE_RATES):
                grid = grids[others.label]
                values |= {(grid.number, value): None for value in grid.others}
    return list(values)
