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
        counting = self.seeds[arm.label] if seeds is None else seeds
        return {seed: self.scored[arm.finished[seed].folder] for seed in counting}

    def pairs(self, arm: Arm) -> dict[int, tuple[ExampleTable, ExampleTable]]:
        """The examples of an arm and of the baseline, by seed."""
        tables, baseline = self.tables(arm), self.tables(self.arms[0], self.seeds[arm.label])
        return {seed: (table, baseline[seed]) for seed, table in tables.items()}

    def is_scored(self, arm: Arm, seed: int) -> bool:
        """Whether an arm has scores of examples for a seed."""
        return seed in arm.finished and arm.finished[seed].folder in self.scored

    def scores_of(self, arm: Arm, metric: str, ids: Sequence[str]) -> ArmScores:
        """The scores of an arm on some examples, and what has become of its other runs."""
        left_out = []
        for run in arm.runs:
            if run.seed not in self.seeds[arm.label]:
                is_finished = run.seed in arm.finished
                reason = f"has not been scored on the {self.split} split" if is_finished else str(run.state)
                if self.is_scored(arm, run.seed):
                    reason = "another arm has no scores for this seed"
                why = f" ({run.why})" if run.why and not is_finished else ""
                left_out.append(f"{arm.label}, seed {run.seed}: {reason}{why}")
        values = {seed: table.overall(metric, ids) for seed, table in self.tables(arm).items()}
        return ArmScores(arm.label, values, mean_costs(self.runs(arm).values()), tuple(left_out))

    def left_out(self, arm: Arm) -> str:
        """The seeds of an arm and the baseline that do not count, with the reasons, as a sentence; "" without any."""
        pair, reasons = (self.arms[0], arm), dict[str, list[int]]()
        for seed in sorted({run.seed for each in pair for run in each.runs} - set(self.seeds[arm.label])):
            lacking = [each for each in pair if not self.is_scored(each, seed)]
            clauses = []
            for each in lacking or [each for each in self.arms if not self.is_scored(each, seed)]:
                run = next((run for run in each.runs if run.seed == seed), None)
                unscored = f"has not been scored on the {self.split} split"
                clauses.append(f"{each.label} {STATES.get(run.state, unscored) if run else 'has no such run'}")
            reasons.setdefault(" and ".join(clauses), []).append(seed)
        listed = "; ".join(f"{listed_seeds(seeds)}, because {reason}" for reason, seeds in reasons.items())
        return f"Left out: {listed}." if listed else ""


class NoSharedSeed(RunError):
    """An arm that shares no scored seed with the baseline."""

    def __init__(self, label: str, baseline: str):
        super().__init__(f"{label} and {baseline} have no seed in common that both were scored on")


def counting_seeds(seeds: Mapping[str, set[int]]) -> dict[str, tuple[int, ...]]:
    """Of the seeds with scores, by arm and the baseline first, those that count: those that all arms have.

    An arm that shares fewer than MIN_SEEDS seeds with the baseline gets no verdict anyway. It does not reduce the seeds
    of the other arms, unless none has more.

    Raises NoSharedSeed for an arm that shares no seed with the baseline, and another RunError if no seed is left.
    """
    baseline, *others = seeds
    shared = {label: seeds[label] & seeds[baseline] for label in others}
    for label in (label for label, each in shared.items() if not each):
        raise NoSharedSeed(label, baseline)
    enough = [each for each in shared.values() if len(each) >= MIN_SEEDS] or list(shared.values())
    common = seeds[baseline].intersection(*enough)
    if not common:
        raise RunError(f"no seed has been scored for all arms: {', '.join(seeds)}; compare fewer of them")
    counting = {baseline: common, **{label: each & common or each for label, each in shared.items()}}
    return {label: tuple(sorted(each)) for label, each in counting.items()}


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
