"""The values that a sweep tried for an arm, and whether a verdict holds at every one of them.

Everything is read from the file sweep.json and the runs beside it. They are not trusted: an entry of another form is
left out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isnan, nan
from pathlib import Path
from typing import Any

import numpy as np

from attnorm.analysis.arms import Arm, as_number
from attnorm.analysis.statistics.crossed import MIN_SEEDS, Difference
from attnorm.analysis.statistics.tuned import candidates
from attnorm.errors import RunError
from attnorm.run.folder import EVENTS, SWEEP_FILE, TUNE, RunState, is_name, read_record
from attnorm.run.run import Run
from attnorm.wording import listed


@dataclass(frozen=True)
class Grid:
    """The values that a sweep tried for an arm.

    key: what was tuned. number: of the arm in sweep.json. best: the value at which the arm is compared. others: the
    further values that may be its best one, and its runs there by comparison seed. worse: the values that tuning shows
    to be worse. diverged: those at which a tuning run has failed.
    """

    key: str
    number: int
    best: str
    others: Mapping[str, Mapping[int, Run]]
    worse: tuple[str, ...]
    diverged: tuple[str, ...]


@dataclass(frozen=True)
class OtherValues:
    """How the better arm of a verdict compares with the worse one at the other values of its grid.

    label: of the worse arm. key: what was tuned. differences: by value, of the arm minus the baseline. missing: the
    values without a comparison, because runs are missing. worse, diverged: the values that need none, see `Grid`.
    """

    label: str
    key: str
    differences: Mapping[str, Difference]
    missing: tuple[str, ...]
    worse: tuple[str, ...]
    diverged: tuple[str, ...]

    def p_value(self, estimate: float) -> float:
        """The largest p-value over the other values, of no difference in the direction of the estimate."""
        p_values = [its.p_value if its.estimate * estimate > 0 else 1.0 for its in self.differences.values()]
        return max((1.0 if isnan(p) else p for p in (*p_values, *(1.0 for _ in self.missing))), default=0.0)

    def sentence(self, is_shown: bool, estimate: float) -> str:
        """Which values the verdict is about. is_shown: whether it holds at all of them."""
        if self.missing:
            at = f"{self.key}={listed(list(self.missing))}"
            return f"{self.label} at {at} has no runs with these seeds; repeat the command of its sweep to train them."
        if not is_shown:
            value = max(self.differences, key=lambda it: self._p_value_at(it, estimate))
            return f"{self.label} at {self.key}={value} is not shown to be worse than the other arm."
        left_out = [f"tuning shows {listed(list(self.worse))} to be worse"] if self.worse else []
        left_out += [f"runs failed at {listed(list(self.diverged))}"] if self.diverged else []
        more = f"; {' and '.join(left_out)}" if left_out else ""
        others = f"also at {listed([*self.differences])}" if self.differences else "its other values need no comparison"
        return f"It holds at every {self.key} of {self.label}: {others}{more}."

    def _p_value_at(self, value: str, estimate: float) -> float:
        its = self.differences[value]
        return its.p_value if its.estimate * estimate > 0 and not isnan(its.p_value) else 1.0


def sweeps_of(arms: Sequence[Arm]) -> Iterator[tuple[Path, dict[str, Any], dict[str, str]]]:
    """The folder and the content of sweep.json of each sweep with runs of these arms, and the arm of each run by the
    name of its folder."""
    folders: dict[Path, dict[str, str]] = {}
    for arm in arms:
        for run in arm.runs:
            folders.setdefault(run.folder.parent, {})[run.folder.name] = arm.label
    for folder, labels in folders.items():
        if (folder / EVENTS).is_file() and (content := read_record(folder / SWEEP_FILE)):
            yield folder, content, labels


def grids_of(arms: Sequence[Arm], metric: str, direction: int) -> dict[str, Grid]:
    """The grids of the arms that a sweep has tuned, by the label of the arm.

    metric, direction: what the arms are compared on. Values are left out by this metric on the validation split; if the
    tuning runs have not recorded it, none is.
    """
    grids: dict[str, Grid] = {}
    for folder, content, labels in sweeps_of(arms):
        with suppress(AttributeError, IndexError, KeyError, TypeError, ValueError):  # written by another program
            grids |= grids_in(folder, content["tuning"], labels, metric, direction) if content.get("tuning") else {}
    return grids


def grids_in(
    folder: Path, tuning: Mapping[str, Any], labels: Mapping[str, str], metric: str, direction: int
) -> dict[str, Grid]:
    """The grids of one sweep. tuning: its entry of sweep.json."""
    arms, values, seeds = tuning["arms"], [str(value) for value in tuning["values"]], len(tuning["seeds"])
    scores = np.full((len(arms), len(values), seeds), nan)
    known = np.zeros(scores.shape[:2], bool)
    diverged = np.array([[its["means"][value] is None for value in values] for its in arms])
    for (number, place), failed in np.ndenumerate(diverged):
        if not failed:
            runs = [Run(folder / TUNE / _plain(name)) for name in arms[number]["tune"][values[place]]]
            found = [as_number(run.scores.get(metric)) if run.evaluation() else None for run in runs]
            scores[number, place] = [nan if value is None else direction * value for value in found]
    known = np.isfinite(scores).all(-1)
    kept = (candidates(scores) | ~known) & ~diverged
    grids = {}
    for number, its in enumerate(arms):
        label = next((labels[name] for name in its["compare"] if name in labels), None)
        if label is None or its["best"] is None:
            continue
        best, further = str(its["best"]), its.get("further", {})
        others = {
            value: runs_in(folder, further.get(value, ()))
            for place, value in enumerate(values)
            if kept[number, place] and value != best
        }
        left_out = [value for value in values if value not in others and value != best]
        failed_at = tuple(value for value, failed in zip(values, diverged[number], strict=True) if failed)
        worse = tuple(value for value in left_out if value not in failed_at)
        grids[label] = Grid(str(tuning["key"]), number, best, others, worse, failed_at)
    return grids


def other_values(
    grid: Grid,
    label: str,
    better: Mapping[int, np.ndarray],
    scores_of: Callable[[Run], np.ndarray | None],
    compare: Callable[[np.ndarray], Difference],
) -> OtherValues:
    """Compares the better arm of a verdict with the worse one at the other values of its grid.

    A value at which so many runs have failed that fewer than MIN_SEEDS seeds are left counts as diverged.

    label: of the worse arm, whose grid it is. better: the scores of the examples of the better arm, by seed. scores_of:
    those of a run of the worse arm; None without scores. compare: of the differences (seeds, examples), better minus
    worse.
    """
    differences, missing, diverged = dict[str, Difference](), list[str](), list(grid.diverged)
    for value, runs in grid.others.items():
        rows, is_missing = list[np.ndarray](), False
        for seed, scores in better.items():
            theirs, run = None, runs.get(seed)
            if run is not None and run.state is RunState.FINISHED:
                with suppress(RunError):
                    theirs = scores_of(run)
            if theirs is not None and np.isfinite(theirs).all():
                rows.append(scores - theirs)
            else:
                is_missing |= run is None or run.state is not RunState.FAILED
        if is_missing:
            missing.append(value)
        elif len(rows) < MIN_SEEDS:
            diverged.append(value)
        else:
            differences[value] = compare(np.stack(rows))
    return OtherValues(label, grid.key, differences, tuple(missing), grid.worse, tuple(diverged))


def _plain(name: object) -> str:
    """The name of a run folder in a sweep. Raises ValueError for anything else."""
    if not is_name(name):
        raise ValueError(name)
    return str(name)


def runs_in(folder: Path, names: Sequence[object]) -> dict[int, Run]:
    """The runs with these names among those that tune, by seed; without those that cannot be read."""
    runs: dict[int, Run] = {}
    for name in names:
        with suppress(RunError):
            run = Run(folder / TUNE / _plain(name))
            runs[run.seed] = run
    return runs
