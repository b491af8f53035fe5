"""Is the difference between two arms real? Pairs their scores by seed and by example, on one metric."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attnorm.analysis.arms import Arm
from attnorm.analysis.cautions import cautions_of, failures, failures_of_all
from attnorm.analysis.other_values import OtherValues
from attnorm.analysis.provenance import check_code, check_inputs, doubts_of
from attnorm.analysis.scores import (
    ExampleTable,
    Source,
    SplitName,
    check_current,
    common_metrics,
    common_split,
    direction_of,
    primary_metric,
    scores_of_run,
    shared_examples,
    test_table,
)
from attnorm.analysis.shared_seeds import SharedSeeds, common_source, counting_seeds
from attnorm.analysis.statistics.crossed import paired_difference, without_claims
from attnorm.analysis.tuning_record import TuningRecord
from attnorm.analysis.verdict import ArmScores, Verdict, adjusted, decimals, speed_ratio
from attnorm.errors import ConfigError, Problem, RunError
from attnorm.imports import nearest
from attnorm.run.folder import RunState
from attnorm.run.run import VALIDATION, Run
from attnorm.wording import counted

SOURCES = {
    "test": "the test split",
    "half": "the half of the validation split that did not select the checkpoints",
    "validation": "the validation split",
}
ReadExamples = Callable[[Run, SplitName], ExampleTable | None]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Arms compared with a baseline on one metric.

    arms: the baseline first. metric: its name. is_primary: whether the task declares it as its primary metric.
    direction: 1 if a higher value of the metric is better, -1 if a lower one is.
    source: the examples, as a key of SOURCES, None without examples. examples: their number.
    scores: of all arms, the baseline first, over the seeds that count, see `counting_seeds`. verdicts: of the others.
    simple: the metric of each simple method, such as lead-8, on the whole split; empty if they do not have it.
    withheld: why some or all verdicts are withheld, as clauses, see `analysis.cautions`; to be shown above everything.
    notes: what a reader has to know. doubts: what else differs between the runs, see `analysis.provenance`.
    pending: the runs that are not finished yet; there are no verdicts as long as there are any.
    """

    arms: Sequence[Arm] = ()
    metric: str
    is_primary: bool = False
    direction: int
    source: Source | None = None
    examples: int = 0
    scores: list[ArmScores]
    verdicts: list[Verdict] = field(default_factory=list)
    simple: dict[str, float] = field(default_factory=dict)
    withheld: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)

    @property
    def task(self) -> str:
        """The name of the task; "" if only scores are known."""
        return self.arms[0].task if self.arms else ""

    @property
    def baseline(self) -> str:
        """The label of the baseline."""
        return self.scores[0].label

    @property
    def digits(self) -> int:
        """The digits after the point with which scores are written."""
        return self.verdicts[0].digits if self.verdicts else decimals(self.metric)


@dataclass(frozen=True)
class Terms:
    """How arms are compared, see `analysis.compare`. pending: further runs that are planned."""

    split: SplitName = "auto"
    level: float = 0.95
    grouped: bool = True
    pending: Sequence[str] = ()


def compare_arms(
    arms: Sequence[Arm], metric: str | None, terms: Terms, tunings: Iterable[TuningRecord], read_examples: ReadExamples
) -> Comparison:
    """Compares arms with the first one.

    tunings: of the sweeps that trained the arms. read_examples: see `example_table`. Raises the errors of
    `analysis.compare`.
    """
    if len({arm.task for arm in arms}) > 1:
        names = ", ".join(dict.fromkeys(arm.task for arm in arms))
        raise RunError(f"runs of different tasks cannot be compared: {names}")
    check_code(arms)
    finished = [run for arm in arms for run in arm.finished.values()]
    check_current(finished, terms.split)
    split = common_split(finished, terms.split)
    scored = {run.folder: table for run in finished if (table := read_examples(run, split)) is not None}
    if not scored:
        raise RunError("none of the runs has finished with scores of single examples, so there is nothing to compare")
    seeds = {arm.label: {seed for seed, run in arm.finished.items() if run.folder in scored} for arm in arms}
    shared = SharedSeeds(arms, scored, counting_seeds(seeds), split)
    tables = {f"{arm.label}, seed {seed}": table for arm in arms for seed, table in shared.tables(arm).items()}
    primary = primary_metric(finished)
    metric = metric_of(list(tables.values()), metric, primary)
    towards = direction_of(finished, metric)
    ids, notes = shared_examples(tables, metric)
    doubts = [*doubts_of(arms), *check_inputs(tables, ids)]
    source = common_source(tables)
    if source == "validation":
        notes.append(
            "The checkpoints were selected on these examples, so all scores are too good, and not all by as much. "
            "Train with task.selection=half, or score the test split with eval.py."
        )
    running = [f"{arm.label}, seed {run.seed}" for arm in arms for run in arm.runs if run.state is RunState.RUNNING]
    waiting = [*running, *terms.pending]
    stems = {run.folder: (test_table(run) if split == "test" else None) or VALIDATION for run in finished}
    records = {arm.label: [run.evaluation(stems[run.folder]) for run in shared.runs(arm).values()] for arm in arms}
    notes += found_in_data(finished, [record for of_arm in records.values() for record in of_arm])
    of_all, methods = failures_of_all(records, metric, primary, lambda name: direction_of(finished, name))
    by_arm, withheld = failures(shared, metric, ids)
    groups = next(iter(tables.values())).groups(ids)
    if groups is not None and not terms.grouped:
        notes.append(
            f"The intervals are for new seeds and new examples of the same {len(set(groups))} groups. They are too "
            "narrow for new groups, because examples of one group were taken as independent."
        )
        groups = None
    values: dict[str, OtherValues] = {}
    for tuning in tunings:
        values |= tuning.other_values(metric, towards)
    verdicts = [_verdict_of(shared, arm, metric, ids, terms.level, groups, values) for arm in arms[1:]]
    unfinished = counted(len(waiting), "planned run") + (" is" if len(waiting) == 1 else " are")
    reasons = [f"{unfinished} not finished yet"] if waiting else of_all
    for number, verdict in enumerate(verdicts):
        if why := [*reasons, *([] if waiting else by_arm[verdict.label])]:
            silent = without_claims(verdict.difference)
            verdicts[number] = replace(verdict, difference=silent, no_verdict=why[0], is_silent=True)
    return Comparison(
        arms=arms,
        metric=metric,
        is_primary=metric == primary,
        direction=towards,
        source=source,
        examples=len(ids),
        scores=[shared.scores_of(arm, metric, ids) for arm in arms],
        verdicts=adjusted(verdicts),
        simple={name: scores[metric] for name, scores in methods.items() if metric in scores},
        withheld=[] if waiting else [*of_all, *withheld],
        notes=notes,
        doubts=doubts,
        pending=waiting,
    )


def _verdict_of(
    shared: SharedSeeds,
    arm: Arm,
    metric: str,
    ids: Sequence[str],
    level: float,
    groups: Sequence[str] | None,
    values: Mapping[str, OtherValues],
) -> Verdict:
    """The verdict on one arm, not adjusted for others.

    groups: the cluster of each example, if there are clusters. values: those that sweeps tried besides the best one, by
    arm.
    """
    baseline, pairs = shared.arms[0], shared.pairs(arm)
    scores = {seed: [table.values(metric, ids) for table in pair] for seed, pair in pairs.items()}
    runs = [(f"{of_arm.label}, seed {seed}", of_arm.finished[seed]) for of_arm in (baseline, arm) for seed in pairs]
    towards = direction_of([run for _, run in runs], metric)
    differences = {seed: first - second for seed, (first, second) in scores.items()}
    verdict = decided(arm.label, baseline.label, metric, differences, towards, groups, level, runs)
    others = None
    is_better = verdict.difference.estimate * towards > 0
    if verdict.no_verdict is None and (others := values.get(baseline.label if is_better else arm.label)):
        better = {seed: pair[0 if is_better else 1] for seed, pair in scores.items()}
        others = others.compared(
            better,
            lambda run: scores_of_run(run, shared.split, metric, ids),
            lambda rows: paired_difference(rows if is_better else -rows, groups, level),
        )
    speed = speed_ratio(*([of_arm.finished[seed] for seed in pairs] for of_arm in (arm, baseline)))
    return replace(verdict, others=others, left_out=shared.left_out(arm), speed=speed)


def decided(
    label: str,
    baseline: str,
    metric: str,
    differences: Mapping[int, np.ndarray],
    towards: int,
    groups: Sequence[str] | None,
    level: float,
    runs: Sequence[tuple[str, Run]] = (),
) -> Verdict:
    """What the differences of the examples say about an arm, by seed. runs: those of both arms, with their names."""
    rows = np.stack(list(differences.values()))
    difference = paired_difference(rows, groups, level)
    return Verdict(
        label=label,
        baseline=baseline,
        metric=metric,
        difference=difference,
        direction=towards,
        adjusted=float("nan"),
        by_seed=dict(zip(differences, rows.mean(1).tolist(), strict=True)),
        no_verdict=difference.no_verdict,
        cautions=cautions_of(rows, list(differences), groups, runs),
        digits=decimals(metric),
    )


def found_in_data(runs: Iterable[Run], records: Iterable[Mapping[str, Any]]) -> list[str]:
    """What was found in the data of the runs, see `tasks.data_notes`, each once. records: evaluations of the runs."""
    notes: list[object] = []
    for content in (*(run.summary for run in runs), *records):
        notes += found if isinstance(found := content.get("data_notes"), list) else []
    return [f"Data: {note}." for note in dict.fromkeys(map(str, notes))]


def metric_of(tables: Sequence[ExampleTable], asked: str | None, primary: str | None) -> str:
    """The metric to compare. Raises ConfigError for one that the tables do not have."""
    allowed = common_metrics(tables)
    name = asked or primary or next(iter(allowed), "loss")
    if tables and name not in allowed:
        message = f"the runs have no such metric; allowed: {', '.join(allowed)}.{nearest(name, allowed)}"
        raise ConfigError([Problem("metric", message, name)])
    return name
