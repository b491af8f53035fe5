"""The keys of a sweep itself, beside those of its runs."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Literal

from attnorm.errors import Problem
from attnorm.schema import Count, Text, WholeNumber

SEARCH_KEYS = ("trials", "search_seed", "pruner")
GRID_KEYS = ("tune", "tune_seeds", "cost")
LAUNCHER_KEYS = ("submitit", "ray")


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """The keys of `attnorm sweep`.

    dir:         the sweep folder; None for one that is named after the overrides.
    jobs:        number of jobs at once; None for one per GPU, or one on a CPU.
    retries:     how many more times a job that failed is tried.
    launcher:    where jobs run: on this machine, or as jobs of SLURM or Ray.
    search:      all combinations of the values, or so many trials.
    trials:      number of runs of a search.
    search_seed: seed of a search.
    pruner:      when to stop unpromising runs of a search.
    tune:        a key and the values that every arm tries before it is compared at its best one.
    tune_seeds:  the seeds of these runs.
    cost:        what all arms spend: as many updates, as much time, or as many floating-point operations.
    submitit:    parameters of submitit's AutoExecutor.
    ray:         arguments of `ray.init`.
    """

    dir: Text | None = None
    jobs: Count | None = None
    retries: WholeNumber = 1
    launcher: Literal["local", "submitit", "ray"] = "local"
    search: Literal["grid", "random", "optuna"] = "grid"
    trials: Count | None = None
    search_seed: WholeNumber = 0
    pruner: Literal["none", "median", "halving", "hyperband"] = "median"
    tune: Text | None = None
    tune_seeds: Text | None = None
    cost: Literal["updates", "time", "flops"] = "updates"
    submitit: dict[str, Any] = field(default_factory=dict)
    ray: dict[str, Any] = field(default_factory=dict)

    @property
    def is_search(self) -> bool:
        """Whether an algorithm chooses the values."""
        return self.search != "grid"

    def problems(self, typed: Collection[str]) -> list[Problem]:
        """What is wrong with the combination of keys. typed: the keys that were given."""
        problems = []
        if not self.is_search:
            message = "has no effect with search=grid; it is for search=random and search=optuna"
            problems += [Problem(key, message, getattr(self, key)) for key in SEARCH_KEYS if key in typed]
        else:
            message = f"has no effect with search={self.search}; it is for search=grid"
            problems += [Problem(key, message, getattr(self, key)) for key in GRID_KEYS if key in typed]
        if self.is_search and self.trials is None:
            problems.append(Problem("trials", f"must be given with search={self.search}, as in trials=20"))
        for name in LAUNCHER_KEYS:
            if name in typed and self.launcher != name:
                problems.append(
                    Problem(name, f"has no effect with launcher={self.launcher}; it is for launcher={name}")
                )
        return problems
