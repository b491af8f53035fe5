"""Is the difference between two arms real? Pairs their runs by seed and their scores by example."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from attnorm.analysis.arms import Arm, arms_of, find_runs, is_of_normalizer, varying
from attnorm.analysis.cautions import cautions_of, failures, numbers_of, simple_methods, unbeaten, undefined
from attnorm.analysis.grids import Grid, grids_of, other_values
from attnorm.analysis.provenance import check_code, check_inputs, doubts_of
from attnorm.analysis.scores import (
    ExampleTable,
    Source,
    SplitName,
    check_current,
    common_split,
    direction_of,
    evaluation_of,
    example_table,
    primary_metric,
    scores_of_run,
    shared_examples,
)
from attnorm.analysis.seeds import NoSharedSeed, SharedSeeds, common_source, shared_seeds
from attnorm.analysis.statistics.crossed import paired_difference, without_claims
from attnorm.analysis.verdict import ArmScores, Verdict, adjusted
from attnorm.analysis.waiting import waiting_jobs
from attnorm.errors import ConfigError, Problem, RunError
from attnorm.imports import nearest
from attnorm.run.folder import RunState
from attnorm.wording import counted

Places = str | Path | Sequence[str | Path]
SOURCES = {
    "test": "the test split",
    "half": "the half of the validation split that did not select the checkpoints",
    "validation": "the validation split",
}
DEFAULT_BASELINE = "softmax"


@dataclass(frozen=True)
class Comparison:
    """Arms compared with a baseline on one metric.

    arms: the baseline first. metric: its name. is_primary: whether the task declares it as its primary metric.
    direction: 1 if a higher value of the metric is better, -1 if a lower one is.
    source: the examples, as a key of SOURCES. examples: their number.
    scores: of all arms, the baseline first, over the seeds that count, see `shared_seeds`. verdicts: of the other arms.
    simple: the metric of each simple method, such as lead-8, on the whole split; empty if they do not have it.
    withheld: why some or all verdicts are withheld, as clauses, see `analysis.cautions`; to be shown above everything.
    differing: the settings besides the attention in which the arms differ. notes: what a reader has to know.
    doubts: what else differs between the runs, see `analysis.provenance`.
    pending: the runs that are not finished yet; there are no verdicts as long as there are any.
    """

    arms: list[Arm]
    metric: str
    is_primary: bool
    direction: int
    source: Source
    examples: int
    scores: list[ArmScores]
    verdicts: list[Verdict]
    simple: dict[str, float]
    withheld: list[str]
    differing: list[str]
    notes: list[str]
    doubts: list[str]
    pending: list[str]

    @property
    def task(self) -> str:
        """The name of the task."""
        return self.arms[0].task

    @property
    def baseline(self) -> str:
        """The label of the baseline."""
        return self.scores[0].label


def compare(
    baseline: Places,
    against: Places | None = None,
    metric: str | None = None,
    *,
    split: SplitName = "auto",
    level: float = 0.95,
    grouped: bool = True,
) -> Comparison:
    """Compares runs with the runs of a baseline, paired by seed and by example.

    Args:
        baseline: run folders, folders with runs below them, or patterns; or, if these are all in `against`, the label
            of one of the arms there, such as "softmax".
        against: the runs to compare, in the same form. Runs that differ only in their seed form an arm.
        metric: a column of the table of predictions, "loss" or "perplexity"; None: the primary metric of the task.
        split: "test", "validation" (the half that did not select the checkpoints) or "auto" (the test split if all runs
            have been scored on it).
        level: the level of the intervals.
        grouped: whether examples of one group, such as the chapters of a book, may depend on each other. False: they
            are taken as independent, and the intervals are for new examples of the same groups only.

    An arm that shares no scored seed with the baseline is left out if others do, and `Comparison.notes` says so. Raises
    RunError for folders without runs and runs that cannot be compared, and ConfigError for other arguments.
    """
    paths = places_of(baseline if against is None else against)
    arms = arms_of(find_runs(paths))
    if against is None or is_label(baseline, arms):
        chosen = baseline_of(arms, None if against is None else str(baseline))
    else:
        paths = [*places_of(baseline), *paths]
        arms, folders = arms_of(find_runs(paths)), {run.folder for run in find_runs(places_of(baseline))}
        formed = [arm for arm in arms if any(run.folder in folders for run in arm.runs)]
        if len(formed) != 1:
            labels = "; ".join(arm.label for arm in formed) or "they repeat runs of against"
            raise ConfigError([Problem("baseline", f"must be one arm, but these runs form {len(formed)}: {labels}")])
        [chosen] = formed
    others = [arm for arm in arms if arm is not chosen]
    if not others:
        raise ConfigError([Problem("against", f"there is nothing to compare with the baseline, {chosen.label}")])
    pending, left_out = waiting_jobs(paths), list[str]()
    while True:
        try:
            found = compare_arms(chosen, others, metric, split=split, level=level, grouped=grouped, pending=pending)
            verdicts = adjusted(found.verdicts, len(left_out))
            return replace(found, verdicts=verdicts, notes=[*found.notes, *left_out])
        except NoSharedSeed as error:
            others = [arm for arm in others if arm.label != error.label]
            left_out.append(f"{error.label} is not compared: {error}.")
            if not others:
                raise


def compare_arms(
    baseline: Arm,
    others: Sequence[Arm],
    metric: str | None = None,
    *,
    split: SplitName = "auto",
    level: float = 0.95,
    grouped: bool = True,
    pending: Sequence[str] = (),
) -> Comparison:
    """Compares arms with a baseline. pending: further runs that are planned; see `compare` for the other arguments."""
    arms = [baseline, *others]
    if len({arm.task for arm in arms}) > 1:
        names = ", ".join(dict.fromkeys(arm.task for arm in arms))
        raise RunError(f"runs of different tasks cannot be compared: {names}")
    check_code(arms)
    finished = [run for arm in arms for run in arm.finished.values()]
    check_current(finished, split)
    chosen_split = common_split(finished, split)
    scored = {run.folder: table for run in finished if (table := example_table(run, chosen_split)) is not None}
    shared = shared_seeds(arms, scored, chosen_split)
    tables = shared.named_tables()
    primary = primary_metric(finished)
    metric = metric_of(list(tables.values()), metric, primary)
    ids, notes = shared_examples(tables, metric)
    doubts = [*doubts_of(arms), *check_inputs(tables, ids)]
    source = common_source(tables)
    if source == "validation":
        notes.append(
            "The checkpoints were selected on these examples, so all scores are too good, and not all by as much. "
            "Train with task.selection=half, or score the test split with eval.py."
        )
    running = [f"{arm.label}, seed {run.seed}" for arm in arms for run in arm.runs if run.state is RunState.RUNNING]
    waiting = [*running, *pending]
    records = {arm.label: [evaluation_of(run, chosen_split) for run in shared.runs(arm).values()] for arm in arms}
    methods = next((simple for its in records.values() for record in its if (simple := simple_methods(record))), {})
    metrics = {label: [numbers_of(record.get("metrics")) for record in its] for label, its in records.items()}
    of_all = undefined(metric, [record for its in records.values() for record in its])
    of_all += unbeaten(metrics, methods, primary, lambda name: direction_of(finished, name))
    by_arm, withheld = failures(shared, metric, ids)
    groups = next(iter(tables.values())).groups(ids)
    if groups is not None and not grouped:
        notes.append(
            f"The intervals are for new seeds and new examples of the same {len(set(groups))} groups. They are too "
            "narrow for new groups, because examples of one group were taken as independent."
        )
    grids = grids_of(arms, metric, direction_of(finished, metric))
    verdicts = [verdict_of(shared, arm, metric, ids, level, groups if grouped else None, grids) for arm in others]
    if waiting:
        unfinished = counted(len(waiting), "planned run") + (" is" if len(waiting) == 1 else " are")
        verdicts = [silenced(verdict, f"{unfinished} not finished yet") for verdict in verdicts]
    else:
        reasons = [[*of_all, *by_arm[verdict.label]] for verdict in verdicts]
        verdicts = [
            silenced(verdict, why[0]) if why else verdict for verdict, why in zip(verdicts, reasons, strict=True)
        ]
    return Comparison(
        arms=arms,
        metric=metric,
        is_primary=metric == primary,
        direction=direction_of(finished, metric),
        source=source,
        examples=len(ids),
        scores=[shared.scores_of(arm, metric, ids) for arm in arms],
        verdicts=adjusted(verdicts),
        simple={name: its[metric] for name, its in methods.items() if metric in its},
        withheld=[] if waiting else [*of_all, *withheld],
        differing=[key for key in varying(arm.settings for arm in arms) if not is_of_normalizer(key)],
        notes=notes,
        doubts=doubts,
        pending=waiting,
    )


def verdict_of(
    shared: SharedSeeds,
    arm: Arm,
    metric: str,
    ids: Sequence[str],
    level: float,
    groups: Sequence[str] | None,
    grids: Mapping[str, Grid],
) -> Verdict:
    """The verdict on one arm, not adjusted for others.

    groups: the cluster of each example, if there are clusters. grids: the values that sweeps tried, by arm.
    """
    baseline, pairs = shared.arms[0], shared.pairs(arm)
    rows = np.stack([first.values(metric, ids) - second.values(metric, ids) for first, second in pairs.values()])
    difference = paired_difference(rows, groups, level)
    both = [(f"{it.label}, seed {seed}", it.finished[seed]) for it in (baseline, arm) for seed in pairs]
    towards = direction_of([run for _, run in both], metric)
    worse = baseline if difference.estimate * towards > 0 else arm
    others = None
    if worse.label in grids and difference.no_verdict is None:
        one, sign = (0, 1) if worse is baseline else (1, -1)
        better = {seed: pair[one].values(metric, ids) for seed, pair in pairs.items()}
        theirs = partial(scores_of_run, split=shared.split, metric=metric, ids=ids)
        others = other_values(
            grids[worse.label], worse.label, better, theirs, lambda its: paired_difference(sign * its, groups, level)
        )
    return Verdict(
        label=arm.label,
        baseline=baseline.label,
        metric=metric,
        difference=difference,
        direction=towards,
        adjusted=float("nan"),
        by_seed=dict(zip(pairs, rows.mean(1).tolist(), strict=True)),
        no_verdict=difference.no_verdict,
        left_out=shared.left_out(arm),
        cautions=cautions_of(rows, list(pairs), groups, both),
        others=others,
    )


def silenced(verdict: Verdict, reason: str) -> Verdict:
    """The verdict without any claim."""
    return replace(verdict, difference=without_claims(verdict.difference), no_verdict=reason, is_silent=True)


def metric_of(tables: Sequence[ExampleTable], asked: str | None, primary: str | None) -> str:
    """The metric to compare. Raises ConfigError for one that the tables do not have."""
    allowed = [
        name for name in (tables[0].metrics() if tables else []) if all(name in table.metrics() for table in tables)
    ]
    name = asked or primary or next(iter(allowed), "loss")
    if tables and name not in allowed:
        message = f"the runs have no such metric; allowed: {', '.join(allowed)}.{nearest(name, allowed)}"
        raise ConfigError([Problem("metric", message, name)])
    return name


def is_label(baseline: Places, arms: Sequence[Arm]) -> bool:
    """Whether a baseline is given by the label of an arm: it is that of one of these, or no path and no pattern."""
    if not isinstance(baseline, str) or Path(baseline).exists():
        return False
    return not set("*?[/") & set(baseline) or any(arm.label == baseline for arm in arms)


def baseline_of(arms: Sequence[Arm], label: str | None) -> Arm:
    """The arm with a label; without one, softmax, or else the first arm. Raises ConfigError for an unknown label.

    Without a label, an arm of which every run has ended early is chosen only if there is no other.
    """
    labels = [arm.label for arm in arms]
    if label is None:
        usable = [arm.label for arm in arms if not all(run.state.is_unfinished for run in arm.runs)] or labels
        label = DEFAULT_BASELINE if DEFAULT_BASELINE in usable else usable[0]
    if label not in labels:
        message = f"there is neither such a folder nor such an arm; the arms are: {', '.join(labels)}"
        raise ConfigError([Problem("baseline", f"{message}.{nearest(label, labels)}", label)])
    return arms[labels.index(label)]


def places_of(paths: Places) -> list[str | Path]:
    """The places as a list."""
    return [paths] if isinstance(paths, (str, Path)) else list(paths)
