"""The seeds over which arms are averaged and compared, so that all means and differences are over the same seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnorm.analysis.arms import Arm
from attnorm.analysis.scores import ExampleTable, Source, SplitName
from attnorm.analysis.statistics.crossed import MIN_SEEDS
from attnorm.analysis.verdict import ArmScores, listed_seeds, mean_costs
from attnorm.errors import RunError
from attnorm.run.folder import RunState
from attnorm.run.run import Run

STATES = {  # clauses about a run without scores, by its state
    RunState.FAILED: "failed",
    RunState.KILLED: "was killed",
    RunState.INTERRUPTED: "was interrupted",
    RunState.RUNNING: "is still training",
}


@dataclass(frozen=True)
class SharedSeeds:
    """The runs of some arms that count.

    arms: the baseline first. scored: the examples of all runs that were scored on the split, by run folder. seeds:
    those that count, by the label of the arm. split: the examples.
    """

    arms: Sequence[Arm]
    scored: Mapping[Path, ExampleTable]
    seeds: Mapping[str, Sequence[int]]
    split: SplitName

    def runs(self, arm: Arm) -> dict[int, Run]:
        """The runs of an arm that count, by seed."""
        return {seed: arm.finished[seed] for seed in self.seeds[arm.label]}

    def tables(self, arm: Arm, seeds: Sequence[int] | None = None) -> dict[int, ExampleTable]:
        """The examples of an arm by seed. seeds: by default those that count."""
        return {seed: self.scored[arm.finished[seed].folder] for seed in (seeds or self.seeds[arm.label])}

    def pairs(self, arm: Arm) -> dict[int, tuple[ExampleTable, ExampleTable]]:
        """The examples of an arm and of the baseline, by seed."""
        ours = self.tables(arm)
        return {seed: (ours[seed], its) for seed, its in self.tables(self.arms[0], list(ours)).items()} if ours else {}

    def named_tables(self) -> dict[str, ExampleTable]:
        """The examples of all runs that count, by the name of the run."""
        return {f"{arm.label}, seed {seed}": table for arm in self.arms for seed, table in self.tables(arm).items()}

    def is_scored(self, arm: Arm, seed: int) -> bool:
        """Whether an arm has scores of examples for a seed."""
        return seed in arm.finished and arm.finished[seed].folder in self.scored

    def scores_of(self, arm: Arm, metric: str, ids: Sequence[str]) -> ArmScores:
        """The scores of an arm on some examples, and what has become of its other runs."""
        left_out = []
        for run in arm.runs:
            if run.seed not in self.seeds[arm.label]:
                reason = (
                    f"has not been scored on the {self.split} split" if run.seed in arm.finished else str(run.state)
                )
                if self.is_scored(arm, run.seed):
                    reason = "another arm has no scores for this seed"
                why = f" ({run.why})" if run.why and run.seed not in arm.finished else ""
                left_out.append(f"{arm.label}, seed {run.seed}: {reason}{why}")
        values = {seed: table.overall(metric, ids) for seed, table in self.tables(arm).items()}
        return ArmScores(arm.label, values, mean_costs(self.runs(arm).values()), tuple(left_out))

    def left_out(self, arm: Arm) -> str:
        """The seeds of an arm and the baseline that do not count, with the reasons, as a sentence; "" without any."""
        pair = (self.arms[0], arm)
        reasons: dict[str, list[int]] = {}
        for seed in sorted({run.seed for its in pair for run in its.runs} - set(self.seeds[arm.label])):
            lacking = [its for its in pair if not self.is_scored(its, seed)]
            lacking = lacking or [its for its in self.arms if not self.is_scored(its, seed)]
            reasons.setdefault(" and ".join(self.why_not_scored(its, seed) for its in lacking), []).append(seed)
        listed = "; ".join(f"{listed_seeds(its)}, because {reason}" for reason, its in reasons.items())
        return f"Left out: {listed}." if listed else ""

    def why_not_scored(self, arm: Arm, seed: int) -> str:
        """Why an arm has no scores for a seed, as a clause."""
        run = next((run for run in arm.runs if run.seed == seed), None)
        if run is None:
            return f"{arm.label} has no such run"
        return f"{arm.label} {STATES.get(run.state, f'has not been scored on the {self.split} split')}"


class NoSharedSeed(RunError):
    """An arm that shares no scored seed with the baseline. label: of the arm."""

    def __init__(self, label: str, baseline: str):
        super().__init__(f"{label} and {baseline} have no seed in common that both were scored on")
        self.label = label


def shared_seeds(arms: Sequence[Arm], scored: Mapping[Path, ExampleTable], split: SplitName) -> SharedSeeds:
    """The seeds that count: those that all arms have scores for.

    An arm that shares fewer than MIN_SEEDS seeds with the baseline gets no verdict anyway. It does not reduce the seeds
    of the other arms, unless none has more.

    Raises NoSharedSeed for an arm that shares no seed with the baseline, and another RunError if no run was scored or
    no seed is left.
    """
    if not scored:
        raise RunError("none of the runs has finished with scores of single examples, so there is nothing to compare")
    own = {arm.label: {seed for seed, run in arm.finished.items() if run.folder in scored} for arm in arms}
    baseline, *others = own
    shared = {label: own[label] & own[baseline] for label in others}
    for label in (label for label, its in shared.items() if not its):
        raise NoSharedSeed(label, baseline)
    enough = [its for its in shared.values() if len(its) >= MIN_SEEDS] or list(shared.values())
    common = own[baseline].intersection(*enough)
    if not common:
        raise RunError(f"no seed has been scored for all arms: {', '.join(own)}; compare fewer of them")
    counting = {baseline: common, **{label: its & common or its for label, its in shared.items()}}
    return SharedSeeds(arms, scored, {label: tuple(sorted(its)) for label, its in counting.items()}, split)


def common_source(tables: Mapping[str, ExampleTable]) -> Source:
    """The examples on which all runs are compared. Raises RunError if checkpoints were selected in different ways."""
    sources: dict[Source, str] = {}
    for name, table in tables.items():
        sources.setdefault(table.source, name)
    if len(sources) > 1:
        raise RunError(
            f"the checkpoint of {sources['validation']} was selected on all validation examples "
            f"(task.selection=all), and that of {sources['half']} on half of them, so their scores cannot be compared. "
            "Score the test split of all runs: attnorm eval run=<run folder> split=test"
        )
    return next(iter(sources))
