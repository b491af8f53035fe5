"""The tables of final scores: that of the metric of the verdicts, with speed and memory, and that of the others."""

from collections.abc import Sequence

from attnorm.analysis.arms import Arm
from attnorm.analysis.costs import COSTS, mean_costs
from attnorm.analysis.report.results import Results, arrow, better, examples_of, title_of
from attnorm.analysis.report.tables import NOTHING, Cell, Column, Table, interval, number
from attnorm.analysis.scores import primary_metric
from attnorm.analysis.verdict import ArmScores, Verdict, decimals, p_text
from attnorm.analysis.withheld import simple_label

BASELINE = "baseline"
Group = tuple[str, list[ArmScores], dict[str, Verdict]]  # a metric, the scores of the arms, and verdicts by label


def main_table(name: str, arms: Sequence[Arm], results: Results) -> Table | None:
    """The table of final scores: one row per arm, the baseline first."""
    main = results.main
    if main is not None:
        metric, scores, pending = main.metric, main.scores, bool(main.pending)
        verdicts = {it.label: it for it in main.verdicts}
    elif results.reported:
        metric = primary_of(arms, results.reported)
        scores, verdicts, pending = results.reported[metric], {}, False
    else:
        return None
    digits, level = decimals(metric), next((it.difference.level for it in verdicts.values()), 0.95)
    title = title_of(metric)
    columns = [
        Column("arm"),
        Column("verdict"),
        Column("difference", True, "arm minus baseline, over the same seeds"),
        Column(f"{level * 100:g} % interval", True, "of the difference, for new seeds and new examples, unadjusted"),
        Column("adjusted p", True, "for new seeds and new examples, adjusted for all comparisons on the page (Holm)"),
        Column(f"{title} {arrow(metric)}", True, f"{title}, mean over seeds; {better(metric)} is better"),
        Column("s.d.", True, "standard deviation over seeds"),
        Column("seeds", True, "number of seeds; all means and differences are over the same seeds"),
        *(Column(it.name, True, it.meaning) for it in COSTS.values()),
    ]
    by_label = {arm.label: arm for arm in arms}
    listed = [*scores, *(ArmScores(label, {}) for label in by_label if label not in {it.label for it in scores})]
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
                *(number(costs.get(name), it.digits) for name, it in COSTS.items()),
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
    it = verdict.difference
    low, high = it.new_seeds_and_examples.low, it.new_seeds_and_examples.high
    p = Cell(p_text(verdict.adjusted), verdict.adjusted) if verdict.adjusted == verdict.adjusted else Cell(NOTHING)
    word = "no verdict" if verdict.no_verdict else "shown" if verdict.is_shown else "not shown"
    return [
        Cell(word, mark="shown" if verdict.is_shown else ""),
        number(it.estimate, digits, sign=True),
        interval(low, high, digits),
        p,
    ]


def other_metrics_table(name: str, results: Results) -> Table | None:
    """All other metrics, one row per metric and arm: the difference with the unadjusted interval, mean and spread."""
    if results.main is None:
        main = next(iter(results.reported), None)
        groups: list[Group] = [(metric, scores, {}) for metric, scores in results.reported.items() if metric != main]
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
        digits = decimals(metric)
        for its in scores:
            row = [Cell(f"{title_of(metric)} {arrow(metric)}"), Cell(its.label)]
            if compared:
                found = verdict_cells(verdicts.get(its.label), digits, pending)[1:3]
                row += [Cell(BASELINE), Cell("")] if its is scores[0] else found
            rows.append([*row, number(its.mean, digits), number(its.spread, digits)])
    return Table(name, "The other metrics of each arm", columns, rows, can_copy=True)


def primary_of(arms: Sequence[Arm], reported: dict[str, list[ArmScores]]) -> str:
    """The primary metric of the task if it was reported, and otherwise the first one."""
    primary = primary_metric([run for arm in arms for run in arm.finished.values()])
    return primary if primary in reported else next(iter(reported))
