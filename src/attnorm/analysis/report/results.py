"""The final scores of the arms of a task: the comparisons on all metrics, and the verdicts in one sentence."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from attnorm.analysis.arms import Arm, TrainedRun, as_number
from attnorm.analysis.comparison import SOURCES, Comparison, all_verdicts, compare_arms
from attnorm.analysis.report.tables import written
from attnorm.analysis.scores import SplitName, common_split, example_table, primary_metric
from attnorm.analysis.verdict import ArmScores, decimals
from attnorm.errors import ConfigError, Problem, RunError
from attnorm.tasks.results import LOWER_IS_BETTER, NAMES


@dataclass(frozen=True)
class Results:
    """The final scores of the arms of a task.

    comparisons: on the metric of the verdicts first, and then on all other metrics; [] if nothing can be compared.
    left_out: why arms are not compared, in words. reported: the metrics at the end of the runs by arm, if there are no
    scores of single examples.
    """

    comparisons: list[Comparison]
    left_out: list[str]
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
        return Results([], [reason], reported_scores([baseline, *others]))

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
            with_runs, reasons = comparable(with_runs, lambda arm: on(chosen, [arm]))
            main, left_out = on(chosen, with_runs), left_out + reasons
        more = [on(name, with_runs) for name in allowed if name != chosen]
    except RunError as error:
        return Results([], [sentence(str(error))], reported_scores([baseline, *others]))
    return Results([main, *more], left_out, {})


def comparable(arms: Sequence[Arm], compare: Callable[[Arm], object]) -> tuple[list[Arm], list[str]]:
    """The arms that can be compared with the baseline, and why the others cannot."""
    kept, left_out = [], []
    for arm in arms:
        try:
            compare(arm)
            kept.append(arm)
        except RunError as error:
            left_out.append(f"{arm.label} is not compared: {str(error).rstrip('.')}.")
    return kept, left_out


def metrics_of(arms: Sequence[Arm], split: SplitName) -> list[str]:
    """The metrics for which all finished runs have scores of single examples, those of the task before the losses."""
    finished = [run for arm in arms for run in arm.finished.values()]
    chosen = common_split(finished, split)
    listed: list[list[str]] = []
    for arm in arms:  # the runs of an arm have the same columns
        for run in arm.finished.values():
            try:
                table = example_table(run, chosen)
            except RunError:
                continue
            if table is not None:
                listed.append(table.metrics())
                break
    return [name for name in (listed[0] if listed else []) if all(name in it for it in listed)]


def reported_scores(arms: Sequence[Arm]) -> dict[str, list[ArmScores]]:
    """The metrics that finished runs reported at the end of training, by metric."""
    found: dict[str, list[ArmScores]] = {}
    values = {(arm.label, run.seed): reported_metrics(run) for arm in arms for run in arm.finished.values()}
    for name in dict.fromkeys(name for metrics in values.values() for name in metrics):
        found[name] = [
            ArmScores(arm.label, {seed: its[name] for seed in arm.finished if name in (its := values[arm.label, seed])})
            for arm in arms
        ]
    return found


def reported_metrics(run: TrainedRun) -> dict[str, float]:
    """The metrics of the final evaluation, as recorded in summary.json."""
    validation = run.summary.get("validation")
    metrics = validation.get("metrics") if isinstance(validation, dict) else None
    if not isinstance(metrics, dict):
        return {}
    return {str(name): found for name, value in metrics.items() if (found := as_number(value)) is not None}


def with_holm(all_results: Sequence[Results]) -> list[Results]:
    """The results with p-values that are adjusted for all primary metrics on the page together."""
    primary = [it.main for it in all_results if it.main is not None and it.main.is_primary]
    verdicts = all_verdicts(primary)
    adjusted = {id(it): replace(it, verdicts=[next(verdicts) for _ in it.verdicts]) for it in primary}
    return [
        replace(it, comparisons=[adjusted.get(id(comparison), comparison) for comparison in it.comparisons])
        for it in all_results
    ]


def title_of(metric: str) -> str:
    """A metric in words."""
    return NAMES.get(metric, metric.replace("_", " "))


def arrow(metric: str) -> str:
    """An arrow that points to where the metric is better."""
    return "\u2193" if metric in LOWER_IS_BETTER else "\u2191"


def better(metric: str) -> str:
    """Whether "lower" or "higher" is better."""
    return "lower" if metric in LOWER_IS_BETTER else "higher"


def examples_of(comparison: Comparison) -> str:
    """The examples of a comparison in words."""
    return f"on {comparison.examples:,} examples of {SOURCES[comparison.source]}"


def sentence(text: str) -> str:
    """A message as a sentence."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def headline(comparison: Comparison) -> str:
    """The verdicts of a task in one sentence."""
    shown = [it for it in comparison.verdicts if it.is_shown]
    decided = [it for it in comparison.verdicts if it.no_verdict is None]
    if comparison.pending:
        return "No verdict yet: planned runs are not finished."
    if not comparison.verdicts:
        return f"{comparison.baseline} is the only arm, so there is nothing to compare it with."
    if comparison.withheld and all(it.is_silent for it in comparison.verdicts):
        return "No verdict: the models have not learned enough to compare their normalizers."
    if not decided:
        return f"No verdict on any difference from {comparison.baseline}."
    if not shown:
        return f"No difference from {comparison.baseline} is shown in {title_of(comparison.metric)}."
    digits = decimals(comparison.metric)
    listed = ", ".join(f"{it.label} ({written(it.difference.estimate, digits, sign=True)})" for it in shown[:6])
    more = f" and {len(shown) - 6} more" if len(shown) > 6 else ""
    if len(comparison.verdicts) == 1:
        difference = written(shown[0].difference.estimate, digits, sign=True)
        return f"{shown[0].label} differs from {comparison.baseline} in {title_of(comparison.metric)}: {difference}."
    of = f"{len(shown)} of {len(comparison.verdicts)} arms {'differ' if len(shown) > 1 else 'differs'}"
    return f"{of} from {comparison.baseline} in {title_of(comparison.metric)}: {listed}{more}."


def unknown_metric(metric: str, found: Iterable[Results]) -> ConfigError | None:
    """An error if no task has the metric that was asked for."""
    mains = [it.main for it in found if it.main is not None]
    if not mains or any(it.metric == metric for it in mains):
        return None
    names = dict.fromkeys(c.metric for it in found for c in it.comparisons)
    return ConfigError([Problem("metric", f"the runs have no such metric; allowed: {', '.join(names)}", metric)])
