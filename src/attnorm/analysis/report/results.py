"""The final scores of the arms of a task: comparisons on all metrics, the verdicts in one sentence, and tables."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import isnan

from attnorm.analysis.arms import Arm
from attnorm.analysis.cautions import numbers_of, simple_label
from attnorm.analysis.comparison import SOURCES, Comparison, compare_arms
from attnorm.analysis.report.tables import NOTHING, Cell, Column, Table, interval, number, written
from attnorm.analysis.scores import (
    SplitName,
    common_split,
    direction_of,
    evaluation_of,
    example_table,
    primary_metric,
)
from attnorm.analysis.verdict import COSTS, ArmScores, Verdict, adjusted, decimals, mean_costs, p_text
from attnorm.errors import ConfigError, Problem, RunError
from attnorm.tasks.results import NAMES

BASELINE = "baseline"


@dataclass(frozen=True)
class Results:
    """The final scores of the arms of a task.

    comparisons: on the metric of the verdicts first, and then on all other metrics; [] if nothing can be compared.
    left_out: why arms and further metrics are not compared, in words. missing: the number of these arms. reported: the
    metrics at the end of the runs by arm, if there are no scores of single examples.
    """

    comparisons: list[Comparison]
    left_out: list[str]
    missing: int
    reported: dict[str, list[ArmScores]]

    @property
    def main(self) -> Comparison | None:
        """The comparison on the metric of the verdicts."""
        return self.comparisons[0] if self.comparisons else None


def results_of(
    arms: Sequence[Arm],
    baseline: Arm,
    metric: str | None,
    split: SplitName,
    level: float,
    pending: Sequence[str],
) -> Results:
    """Compares the arms of a task with its baseline on every metric. metric: that of the verdicts, or None."""
    others = [arm for arm in arms if arm is not baseline]
    allowed = metrics_of(arms, split)
    if not allowed:
        reason = "No finished run has scores of single examples, so there is nothing to compare yet."
        return Results([], [reason], 0, reported_scores([baseline, *others]))

    def on(name: str, these: Sequence[Arm]) -> Comparison:
        return compare_arms(baseline, these, name, split=split, level=level, pending=pending)

    primary = primary_metric([run for arm in arms for run in arm.finished.values()])
    chosen = next((name for name in (metric, primary) if name in allowed), allowed[0])
    with_runs = [arm for arm in others if arm.finished]
    left_out = [f"{arm.label} is not compared: no run has finished." for arm in others if not arm.finished]
    try:
        try:
            main = on(chosen, with_runs)
        except RunError:  # because of some arms, perhaps
            asked, with_runs = with_runs, []
            for arm in asked:
                try:
                    with_runs += on(chosen, [arm]).arms[1:]
                except RunError as error:
                    left_out.append(f"{arm.label} is not compared: {str(error).rstrip('.')}.")
            main = on(chosen, with_runs)
    except RunError as error:
        return Results([], [sentence(str(error))], 0, reported_scores([baseline, *others]))
    missing, more = len(left_out), list[Comparison]()
    for name in allowed:
        try:
            more += [] if name == chosen else [on(name, with_runs)]
        except RunError as error:  # the verdicts do not depend on it
            left_out.append(f"{title_of(name)} is not compared: {str(error).rstrip('.')}.")
    return Results([replace(main, verdicts=adjusted(main.verdicts, missing)), *more], left_out, missing, {})


def metrics_of(arms: Sequence[Arm], split: SplitName) -> list[str]:
    """The metrics for which all finished runs have scores of single examples, those of the task before the losses."""
    finished = [run for arm in arms for run in arm.finished.values()]
    chosen = common_split(finished, split)
    listed: list[list[str]] = []
    for run in finished:
        with suppress(RunError):
            if (table := example_table(run, chosen)) is not None:
                listed.append(table.metrics())
    return [name for name in (listed[0] if listed else []) if all(name in names for names in listed)]


def reported_scores(arms: Sequence[Arm]) -> dict[str, list[ArmScores]]:
    """The metrics that finished runs reported at the end of training, by metric."""
    scores: dict[str, list[ArmScores]] = {}
    values = {
        (arm.label, seed): numbers_of(evaluation_of(run, "validation").get("metrics"))
        for arm in arms
        for seed, run in arm.finished.items()
    }
    for name in dict.fromkeys(name for metrics in values.values() for name in metrics):
        scores[name] = [
            ArmScores(arm.label, {seed: its[name] for seed in arm.finished if name in (its := values[arm.label, seed])})
            for arm in arms
        ]
    return scores


def with_holm(all_results: Sequence[Results]) -> list[Results]:
    """The results with p-values that are adjusted for all primary metrics on the page together."""
    primary = [it for it in all_results if it.main is not None and it.main.is_primary]
    mains = [it.main for it in primary if it.main is not None]
    missing = sum(it.missing for it in primary)
    verdicts = iter(adjusted([verdict for main in mains for verdict in main.verdicts], missing))
    new = {id(main): replace(main, verdicts=[next(verdicts) for _ in main.verdicts]) for main in mains}
    return [
        replace(results, comparisons=[new.get(id(comparison), comparison) for comparison in results.comparisons])
        for results in all_results
    ]


def direction_in(arms: Sequence[Arm], metric: str) -> int:
    """1 if a higher value of a metric of these arms is better, -1 if a lower one is."""
    return direction_of([run for arm in arms for run in arm.finished.values()], metric)


def main_reported(arms: Sequence[Arm], results: Results) -> str:
    """The metric in `Results.reported` that is shown first: the primary one, if it is there."""
    primary = primary_metric([run for arm in arms for run in arm.finished.values()])
    return primary if primary in results.reported else next(iter(results.reported))


def title_of(metric: str) -> str:
    """A metric in words."""
    return NAMES.get(metric, metric.replace("_", " "))


def arrow(direction: int) -> str:
    """An arrow that points to where a metric is better. direction: 1 if a higher value is, -1 if a lower one is."""
    return "\u2193" if direction < 0 else "\u2191"


def examples_of(comparison: Comparison) -> str:
    """The examples of a comparison in words."""
    return f"on {comparison.examples:,} examples of {SOURCES[comparison.source]}"


def sentence(text: str) -> str:
    """A message as a sentence."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def headline(comparison: Comparison, missing: int) -> str:
    """The verdicts of a task in one sentence. missing: the number of arms that could not be compared."""
    shown = [verdict for verdict in comparison.verdicts if verdict.is_shown]
    decided = [verdict for verdict in comparison.verdicts if verdict.no_verdict is None]
    if comparison.pending:
        return "No verdict yet: planned runs are not finished."
    if not comparison.verdicts:
        which = "only arm that can be compared" if missing else "only arm"
        return f"{comparison.baseline} is the {which}, so there is nothing to compare it with."
    if comparison.withheld and all(verdict.is_silent for verdict in comparison.verdicts):
        return "No verdict: the models have not learned enough to compare their normalizers."
    if not decided:
        return f"No verdict on any difference from {comparison.baseline}."
    if not shown:
        return f"No difference from {comparison.baseline} is shown in {title_of(comparison.metric)}."
    digits = decimals(comparison.metric)
    listed = ", ".join(
        f"{verdict.label} ({written(verdict.difference.estimate, digits, sign=True)})" for verdict in shown[:6]
    )
    more = f" and {len(shown) - 6} more" if len(shown) > 6 else ""
    if len(comparison.verdicts) == 1:
        difference = written(shown[0].difference.estimate, digits, sign=True)
        return f"{shown[0].label} differs from {comparison.baseline} in {title_of(comparison.metric)}: {difference}."
    of = f"{len(shown)} of {len(comparison.verdicts)} arms {'differ' if len(shown) > 1 else 'differs'}"
    return f"{of} from {comparison.baseline} in {title_of(comparison.metric)}: {listed}{more}."


def unknown_metric(metric: str, results: Iterable[Results]) -> ConfigError | None:
    """An error if no task has the metric that was asked for."""
    mains = [it.main for it in results if it.main is not None]
    if not mains or any(it.metric == metric for it in mains):
        return None
    names = dict.fromkeys(c.metric for it in results for c in it.comparisons)
    return ConfigError([Problem("metric", f"the runs have no such metric; allowed: {', '.join(names)}", metric)])


# ------------------------------------------------------------------------------------------------------------ tables


def main_table(name: str, arms: Sequence[Arm], results: Results) -> Table | None:
    """The table of final scores: one row per arm, the baseline first."""
    main = results.main
    if main is not None:
        metric, scores, pending, towards = main.metric, main.scores, bool(main.pending), main.direction
        verdicts = {verdict.label: verdict for verdict in main.verdicts}
    elif results.reported:
        metric = main_reported(arms, results)
        scores, verdicts, pending, towards = results.reported[metric], {}, False, direction_in(arms, metric)
    else:
        return None
    digits, level = decimals(metric), next((verdict.difference.level for verdict in verdicts.values()), 0.95)
    title = title_of(metric)
    columns = [
        Column("arm"),
        Column("verdict"),
        Column("difference", True, "arm minus baseline, over the same seeds"),
        Column(f"{level * 100:g} % interval", True, "of the difference, for new seeds and new examples, unadjusted"),
        Column("adjusted p", True, "for new seeds and new examples, adjusted for all comparisons on the page (Holm)"),
        Column(
            f"{title} {arrow(towards)}",
            True,
            f"{title}, mean over seeds; {'lower' if towards < 0 else 'higher'} is better",
        ),
        Column("s.d.", True, "standard deviation over seeds"),
        Column("seeds", True, "number of seeds; all means and differences are over the same seeds"),
        *(Column(cost.name, True, cost.meaning) for cost in COSTS.values()),
    ]
    by_label = {arm.label: arm for arm in arms}
    listed = [*scores, *(ArmScores(label, {}) for label in by_label if label not in {arm.label for arm in scores})]
    rows = []
    for its in listed:
        verdict = verdicts.get(its.label)
        compared = [Cell(BASELINE), *[Cell("")] * 3] if its is scores[0] else verdict_cells(verdict, digits, pending)
        costs = its.costs if main else mean_costs(by_label[its.label].finished.values())
        rows.append(
            [
                Cell(its.label),
                *compared,
                number(its.mean, digits),
                number(its.spread, digits),
                Cell(str(len(its.values)), len(its.values)),
                *(number(costs.get(name), cost.digits) for name, cost in COSTS.items()),
            ]
        )
    if main is not None:
        rest = len(columns) - 6  # besides the label, the cells of a verdict and the score
        for simple, value in main.simple.items():
            label = Cell(simple_label(simple), mark="simple")
            rows.append([label, *[Cell("")] * 4, number(value, digits), *[Cell("")] * rest])
    caption = f"Final {title} of each arm, {examples_of(main)}" if main else f"Final {title} on the validation split"
    return Table(name, caption, columns, rows, can_copy=True)


def verdict_cells(verdict: Verdict | None, digits: int, pending: bool) -> list[Cell]:
    """Verdict, difference, interval and p-value; only dashes where no claim is made."""
    if verdict is None or verdict.is_silent:
        word = "pending" if pending else NOTHING if verdict is None else "no verdict"
        return [Cell(word), Cell(NOTHING), Cell(NOTHING), Cell(NOTHING)]
    ends = verdict.interval
    return [
        Cell(verdict.word, mark="shown" if verdict.is_shown else ""),
        number(verdict.difference.estimate, digits, sign=True),
        interval(ends.low, ends.high, digits),
        Cell(NOTHING) if isnan(verdict.p_value) else Cell(p_text(verdict.p_value), verdict.p_value),
    ]


def other_metrics_table(name: str, arms: Sequence[Arm], results: Results) -> Table | None:
    """All other metrics, one row per metric and arm: the difference with the unadjusted interval, mean and spread."""
    if results.main is None:
        main = main_reported(arms, results) if results.reported else None
        groups: list[tuple[str, Sequence[ArmScores], dict[str, Verdict]]] = [
            (metric, scores, {}) for metric, scores in results.reported.items() if metric != main
        ]
    else:
        groups = [(it.metric, it.scores, {v.label: v for v in it.verdicts}) for it in results.comparisons[1:]]
    if not groups:
        return None
    pending = bool(results.main and results.main.pending)
    compared = any(verdicts for _, _, verdicts in groups) and not pending
    columns = [Column("metric"), Column("arm")]
    if compared:
        hint = "arm minus baseline, with the interval for new seeds and new examples"
        columns += [Column("difference", True, hint), Column("interval", True, f"{hint}, unadjusted")]
    columns += [Column("mean", True, "mean over seeds"), Column("s.d.", True, "standard deviation over seeds")]
    rows = []
    for metric, scores, verdicts in groups:
        digits, title = decimals(metric), f"{title_of(metric)} {arrow(direction_in(arms, metric))}"
        for its in scores:
            row = [Cell(title), Cell(its.label)]
            if compared:
                cells = verdict_cells(verdicts.get(its.label), digits, pending)[1:3]
                row += [Cell(BASELINE), Cell("")] if its is scores[0] else cells
            rows.append([*row, number(its.mean, digits), number(its.spread, digits)])
    return Table(name, "The other metrics of each arm", columns, rows, can_copy=True)
