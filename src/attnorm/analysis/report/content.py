"""Everything that the report says, collected from run folders into plain values."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from attnorm.analysis.arms import Arm, arms_of
from attnorm.analysis.cautions import withheld_lines
from attnorm.analysis.comparison import Comparison, baseline_of
from attnorm.analysis.provenance import check_code, doubts_of
from attnorm.analysis.report import charts
from attnorm.analysis.report.drawings import Drawings, drawings_of
from attnorm.analysis.report.examples import Contrast, Example, contrasts_of, samples_of
from attnorm.analysis.report.forest import forest
from attnorm.analysis.report.results import (
    Results,
    headline,
    main_table,
    other_metrics_table,
    results_of,
    title_of,
    unknown_metric,
    with_holm,
)
from attnorm.analysis.report.runs import (
    Progress,
    Setup,
    Trouble,
    name_of,
    progress_of,
    readable_runs,
    runs_table,
    setup_of,
    sweep_at_work,
    troubles_of,
)
from attnorm.analysis.report.search import Search, searches_of
from attnorm.analysis.report.tables import Table
from attnorm.analysis.report.tuning import EqualCost, Tuning, costs_of, depending, tunings_of, without_chosen
from attnorm.analysis.scores import SplitName
from attnorm.analysis.verdict import Verdict
from attnorm.analysis.waiting import waiting_jobs
from attnorm.run.folder import RunState

Places = Sequence[str | Path]


@dataclass(frozen=True)
class TaskPage:
    """What the page says about the runs of one task.

    name: the name of the task. anchor: the HTML id of its part of the page. facts: names and values of its size.
    tunings, costs: what the sweeps that trained the runs chose for each arm.
    withheld: why verdicts are withheld, as sentences for a box above everything else; [] if none is. verdicts: those
    that are not explained by this box.
    headline: the verdicts in one sentence. warnings, notes: what a reader has to know. doubts: what differs between
    the runs besides their settings.
    """

    name: str
    anchor: str
    facts: list[tuple[str, str]]
    withheld: list[str]
    headline: str
    setup: Setup
    warnings: list[str]
    verdicts: list[Verdict]
    notes: list[str]
    doubts: list[str]
    tunings: list[Tuning]
    costs: list[EqualCost]
    main: Table | None
    others: Table | None
    forest: charts.Figure | None
    drawings: Drawings
    samples: list[Example]
    contrasts: list[Contrast]
    runs: Table


@dataclass(frozen=True)
class Report:
    """The whole page.

    searches: those that are shown as a whole; their trials are no arms.
    troubles: runs that are not finished. running: how far the others have come. waiting: planned runs that have not
    started. refresh: seconds after which the page loads itself again; None: never.
    """

    title: str
    written: str
    places: list[str]
    facts: list[tuple[str, str]]
    tasks: list[TaskPage]
    searches: list[Search]
    troubles: list[Trouble]
    running: list[Progress]
    waiting: list[str]
    refresh: int | None
    at_work: bool


def collect(
    places: Places,
    baseline: str | None = None,
    metric: str | None = None,
    *,
    split: SplitName = "auto",
    level: float = 0.95,
    refresh: int | None = None,
    ended: bool = False,
) -> Report:
    """Reads the runs in some places.

    baseline: the label of the arm that the others are compared with; None: softmax, or else the first arm. metric: the
    metric of the verdicts; None: the primary one of each task. split, level: see `compare`. refresh: see `Report`.
    ended: no sweep is at work there, even if the lock of one is held; for that sweep itself.

    Raises RunError for a place without runs and for runs with different versions of an own module, and ConfigError for
    a baseline or a metric that no task has.
    """
    runs, unreadable = readable_runs(places)
    waiting, at_work = waiting_jobs(places), not ended and sweep_at_work(places)
    searches, compared = searches_of(runs)
    by_task: dict[str, list[Arm]] = {}
    for arm in arms_of(compared):
        by_task.setdefault(arm.task, []).append(arm)
    for arms in by_task.values():
        check_code(arms)
    baselines = baselines_of(by_task, baseline)
    pending = [*waiting, *(_unfinished(by_task) if at_work else ())]
    results = {task: results_of(arms, baselines[task], metric, split, level, pending) for task, arms in by_task.items()}
    if metric is not None and (error := unknown_metric(metric, results.values())):
        raise error
    adjusted = dict(zip(results, with_holm(list(results.values())), strict=True))
    tasks = [
        task_page(f"task-{number}", arms, baselines[task], adjusted[task], metric)
        for number, (task, arms) in enumerate(by_task.items(), start=1)
    ]
    arms = arms_of(runs)
    return Report(
        title=title_for(by_task, baselines) if by_task or not searches else searches[0].title,
        written=f"{datetime.now():%Y-%m-%d %H:%M:%S}",
        places=[str(place) for place in places],
        facts=_facts_of(arms, waiting),
        tasks=tasks,
        searches=searches,
        troubles=[*troubles_of(arms), *unreadable],
        running=progress_of(arms),
        waiting=waiting,
        refresh=refresh,
        at_work=at_work,
    )


def baselines_of(by_task: dict[str, list[Arm]], label: str | None) -> dict[str, Arm]:
    """The baseline of each task. A task that has no arm with this label gets the one that it has without a label."""
    if label is not None and by_task and not any(arm.label == label for arms in by_task.values() for arm in arms):
        baseline_of([arm for arms in by_task.values() for arm in arms], label)  # raises ConfigError
    return {
        task: baseline_of(arms, label if any(arm.label == label for arm in arms) else None)
        for task, arms in by_task.items()
    }


def _unfinished(by_task: dict[str, list[Arm]]) -> list[str]:
    """The runs that have ended without finishing, which a sweep that is at work may resume."""
    return [
        name_of(arm, run) for arms in by_task.values() for arm in arms for run in arm.runs if run.state.is_unfinished
    ]


def task_page(anchor: str, arms: Sequence[Arm], baseline: Arm, results: Results, metric: str | None) -> TaskPage:
    """What the page says about one task."""
    main = results.main
    ordered = ordered_arms(arms, baseline, main)
    tunings, costs = tunings_of(anchor, ordered), costs_of(anchor, ordered)
    chosen: list[Tuning | EqualCost] = [*tunings, *costs]
    setup = without_chosen(setup_of(anchor, arms, baseline), chosen, arms)
    split: SplitName = "test" if main is not None and main.source == "test" else "validation"
    compared = [verdict.label for verdict in main.verdicts if not verdict.is_silent] if main else []
    decided = bool(compared)
    return TaskPage(
        name=baseline.task,
        anchor=anchor,
        facts=task_facts(arms, baseline, main),
        withheld=withheld_lines(main.withheld) if main else [],
        headline=headline(main, results.missing) if main else "There is nothing to compare yet.",
        setup=setup,
        warnings=[*_warnings_of(setup, main, metric), *depending(tunings, main.verdicts if main else [])],
        verdicts=[verdict for verdict in main.verdicts if not (main.withheld and verdict.is_silent)] if main else [],
        notes=[
            *(it.choice(arms) for it in chosen),
            *results.left_out,
            *(main.notes if main else []),
            *left_out_of(main),
        ],
        doubts=main.doubts if main else doubts_of(arms),
        tunings=tunings,
        costs=costs,
        main=main_table(f"results-{anchor}", ordered, results),
        others=other_metrics_table(f"metrics-{anchor}", ordered, results),
        forest=forest(f"forest-{anchor}", main) if main and decided else None,
        drawings=drawings_of(anchor, ordered, compared),
        samples=samples_of(main, ordered, split) if main else [],
        contrasts=contrasts_of(main, baseline, ordered, split) if main and decided else [],
        runs=runs_table(f"runs-{anchor}", ordered),
    )


def ordered_arms(arms: Sequence[Arm], baseline: Arm, main: Comparison | None) -> list[Arm]:
    """The baseline, then the arms in the order given; if there are too many colours to tell apart, the best first."""
    others = [arm for arm in arms if arm is not baseline]
    if main is not None and len(arms) > charts.COLOURS:
        means = {scores.label: -main.direction * scores.mean for scores in main.scores if scores.values}
        others.sort(key=lambda arm: means.get(arm.label, float("inf")))
    return [baseline, *others]


def _warnings_of(setup: Setup, main: Comparison | None, metric: str | None) -> list[str]:
    """What makes the comparison less than a comparison of normalizers."""
    warnings = []
    if setup.confounds:
        more = len(setup.confounds) - 8
        keys = ", ".join(setup.confounds[:8]) + (f" and {more} more" if more > 0 else "")
        warnings.append(
            f"More than the attention differs between the arms: {keys}. A difference between two arms that differ in "
            "these settings cannot be attributed to the normalizer."
        )
    if main is not None and metric is not None and main.metric != metric:
        warnings.append(f"The runs of this task have no metric {metric}; {title_of(main.metric)} is shown instead.")
    elif main is not None and not main.is_primary:
        warnings.append(
            f"{title_of(main.metric)} is not the metric that the task declared as its primary one before training, so "
            "these verdicts are exploratory, and their p-values are adjusted for this task only."
        )
    return warnings


def left_out_of(main: Comparison | None) -> list[str]:
    """The runs of a comparison that do not count, as one sentence in a list; [] if all do."""
    runs = [line for scores in main.scores for line in scores.left_out] if main else []
    return [f"Left out of the scores: {'; '.join(runs)}."] if runs else []


def _facts_of(arms: Sequence[Arm], waiting: Sequence[str]) -> list[tuple[str, str]]:
    """The size of the whole set of runs."""
    runs = [run for arm in arms for run in arm.runs]
    finished = sum(run.state is RunState.FINISHED for run in runs)
    return [("runs finished", f"{finished:,} of {len(runs) + len(waiting):,}")]


def task_facts(arms: Sequence[Arm], baseline: Arm, main: Comparison | None) -> list[tuple[str, str]]:
    """The size of the comparison of a task."""
    seeds = {len(arm.finished) for arm in arms}
    facts = [
        ("arms", f"{len(arms):,}"),
        ("seeds per arm", str(min(seeds)) if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"),
        ("baseline", baseline.label),
    ]
    if main is not None:
        facts += [("metric", title_of(main.metric)), ("examples", f"{main.examples:,}")]
    return facts


def title_for(by_task: dict[str, list[Arm]], baselines: dict[str, Arm]) -> str:
    """The title of the page."""
    if len(by_task) == 1:
        [(task, arms)] = by_task.items()
        labels = [arm.label for arm in ordered_arms(arms, baselines[task], None)]
        if len(labels) <= 4 and sum(map(len, labels)) < 60:
            return f"{', '.join(labels)} on {task}"
    return f"Attention normalizers on {', '.join(list(by_task)[:4])}" if by_task else "Attention normalizers"
