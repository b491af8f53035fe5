"""The values of an arm besides its best one: whether a verdict also holds there."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isnan

import numpy as np

from attnorm.analysis.statistics.crossed import MIN_SEEDS, Difference
from attnorm.errors import RunError
from attnorm.run.folder import RunState
from attnorm.run.run import Run
from attnorm.wording import listed


@dataclass(frozen=True)
class OtherValues:
    """The values of an arm besides its best one, and how the better arm of a verdict compares with it there.

    label: of the arm, the worse one of the verdict. number: of the arm in jobs.jsonl. key: what was tuned.
    runs: its runs at the values that may be its best one, by value and seed. worse: the values that tuning shows to be
    worse. diverged: those at which runs have failed.
    differences: by value, of the arm minus the baseline. missing: the values without one, because runs are missing.
    """

    label: str
    number: int
    key: str
    runs: Mapping[str, Mapping[int, Run]]
    worse: tuple[str, ...]
    diverged: tuple[str, ...]
    differences: Mapping[str, Difference] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    def compared(
        self,
        better: Mapping[int, np.ndarray],
        scores_of: Callable[[Run], np.ndarray | None],
        compare: Callable[[np.ndarray], Difference],
    ) -> "OtherValues":
        """The same with differences. A value at which so many runs have failed that fewer than MIN_SEEDS seeds are left
        counts as diverged.

        better: the scores of the examples of the better arm, by seed. scores_of: those of a run of this arm; None
        without scores. compare: of the differences (seeds, examples), better minus worse.
        """
        differences, missing, diverged = dict[str, Difference](), list[str](), list(self.diverged)
        for value, runs in self.runs.items():
            rows, is_missing = list[np.ndarray](), False
            for seed, scores in better.items():
                worse, run = None, runs.get(seed)
                if run is not None and run.state is RunState.FINISHED:
                    with suppress(RunError):
                        worse = scores_of(run)
                if worse is not None and np.isfinite(worse).all():
                    rows.append(scores - worse)
                else:
                    is_missing |= run is None or run.state is not RunState.FAILED
            if is_missing:
                missing.append(value)
            elif len(rows) < MIN_SEEDS:
                diverged.append(value)
            else:
                differences[value] = compare(np.stack(rows))
        return replace(self, differences=differences, missing=tuple(missing), diverged=tuple(diverged))

    def p_value(self, estimate: float) -> float:
        """The largest p-value over the other values, of no difference in the direction of the estimate."""
        p_values = (self._p_value_at(value, estimate) for value in self.differences)
        return 1.0 if self.missing else max(p_values, default=0.0)

    def sentence(self, is_shown: bool, estimate: float) -> str:
        """Which values the verdict is about. is_shown: whether it holds at all of them."""
        if self.missing:
            at = f"{self.key}={listed(list(self.missing))}"
            return f"{self.label} at {at} has no runs with these seeds; repeat the command of its sweep to train them."
        if not is_shown:
            value = max(self.differences, key=lambda value: self._p_value_at(value, estimate))
            return f"{self.label} at {self.key}={value} is not shown to be worse than the other arm."
        left_out = [f"tuning shows {listed(list(self.worse))} to be worse"] if self.worse else []
        left_out += [f"runs failed at {listed(list(self.diverged))}"] if self.diverged else []
        more = f"; {' and '.join(left_out)}" if left_out else ""
        others = f"also at {listed([*self.differences])}" if self.differences else "its other values need no comparison"
        return f"It holds at every {self.key} of {self.label}: {others}{more}."

    def _p_value_at(self, value: str, estimate: float) -> float:
        difference = self.differences[value]
        return difference.p_value if difference.estimate * estimate > 0 and not isnan(difference.p_value) else 1.0
