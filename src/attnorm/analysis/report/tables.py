"""The tables of the report: scores and verdicts of the arms, further metrics, settings, runs, and what sweeps chose."""

from collections.abc import Sequence
from dataclasses import replace
from math import isnan

from attnorm.analysis.arms import Arm, as_number, differing, is_of_normalizer
from attnorm.analysis.cautions import simple_label
from attnorm.analysis.comparison import SOURCES, Comparison
from attnorm.analysis.setup_sentences import setup_sentences
from attnorm.analysis.study import Study
from attnorm.analysis.table import NOTHING, Cell, Column, Table, interval, number, title_of
from attnorm.analysis.tuning_record import TuningRecord
from attnorm.analysis.verdict import COSTS, ArmScores, Verdict, p_is
from attnorm.errors import in_yaml
from attnorm.wording import counted

BASELINE = "baseline"
MANY = 6  # arms that fit side by side


def scores_table(study: Study) -> Table | None:
    """The final scores and the verdicts: one row per arm, the baseline first."""
    if (shown := next(iter((*study.comparisons, *study.reported)), None)) is None:
        return None
    verdicts = {verdict.label: verdict for verdict in shown.verdicts}
    digits, level = shown.digits, next((of.difference.level for of in shown.verdicts), 0.95)
    costs = COSTS if study.arms else {}
    speed = "tokens/s of the arm over those of the baseline, each the median over seeds, on one machine"
    title, better = title_of(shown.metric), "lower" if shown.direction < 0 else "higher"
    columns = [
        Column("arm"),
        Column("verdict"),
        Column("difference", True, "arm minus baseline, over the same seeds"),
        Column(f"{level * 100:g} % interval", True, "of the difference, for new seeds and new examples, unadjusted"),
        Column("adjusted p", True, "for new seeds and new examples, adjusted for all comparisons on the page (Holm)"),
        *([Column("speed", True, speed)] if costs else []),
        Column(f"{title} {_arrow(shown)}", True, f"{title}, mean over seeds; {better} is better"),
        Column("s.d.", True, "standard deviation over seeds"),
        Column("seeds", True, "number of seeds; all means and differences are over the same seeds", in_caption=True),
        *(Column(cost.name, True, cost.meaning, key in ("hours", "parameters")) for key, cost in costs.items()),
    ]
    scored = {scores.label: scores for scores in shown.scores}
    rows = []
    for label in dict.fromkeys([*scored, *(arm.label for arm in study.ranked)]):
        scores = scored.get(label, ArmScores(label, {}))
        verdict = verdicts.get(label)
        compared = [*_verdict_cells(verdict, shown), *([number(verdict.speed if verdict else None)] if costs else [])]
        if label == shown.baseline:
            compared = [Cell(BASELINE), *[Cell("")] * (4 if costs else 3)]
        means, seeds = [number(scores.mean, digits), number(scores.spread, digits)], len(scores.values)
        of_costs = (number(scores.costs.get(name), cost.digits) for name, cost in costs.items())
        rows.append([Cell(label), *compared, *means, Cell(str(seeds), seeds), *of_costs])
    for simple, value in shown.simple.items():
        name = Cell(simple_label(simple), mark="simple")
        before = [Cell("")] * (5 if costs else 4)
        rows.append([name, *before, number(value, digits), *[Cell("")] * (len(columns) - len(before) - 2)])
    caption = f"Final {title} on the validation split"
    if shown.examples:
        of = f" of {SOURCES[shown.source]}" if shown.source else ""
        caption = f"Final {title} of each arm" + f", on {shown.examples:,} examples{of}" * (shown.examples > 1)
    return Table(caption, columns, rows, can_copy=True, about=setup_sentences(study))


def further_metrics_table(study: Study) -> Table | None:
    """All other metrics, one row per metric and arm: the difference with the unadjusted interval, mean and spread."""
    others = [*study.comparisons, *study.reported][1:]
    if not others:
        return None
    compared = any(other.verdicts for other in others) and not (study.main and study.main.pending)
    columns = [Column("metric"), Column("arm")]
    if compared:
        hint = "arm minus baseline, with the interval for new seeds and new examples"
        columns += [Column("difference", True, hint), Column("interval", True, f"{hint}, unadjusted")]
    columns += [Column("mean", True, "mean over seeds"), Column("s.d.", True, "standard deviation over seeds")]
    rows = []
    for shown in others:
        digits, verdicts = shown.digits, {verdict.label: verdict for verdict in shown.verdicts}
        for scores in shown.scores:
            row = [Cell(f"{title_of(shown.metric)} {_arrow(shown)}"), Cell(scores.label)]
            if compared:
                cells = _verdict_cells(verdicts.get(scores.label), shown)[1:3]
                row += [Cell(BASELINE), Cell("")] if scores.label == shown.baseline else cells
            rows.append([*row, number(scores.mean, digits), number(scores.spread, digits)])
    return Table("The other metrics of each arm", columns, rows, can_copy=True)


def _arrow(comparison: Comparison) -> str:
    """An arrow that points to where the metric is better."""
    return "\u2193" if comparison.direction < 0 else "\u2191"


def _verdict_cells(verdict: Verdict | None, comparison: Comparison) -> list[Cell]:
    """Verdict, difference, interval and p-value; only dashes where no claim is made."""
    if verdict is None or verdict.is_silent:
        word = "pending" if comparison.pending else NOTHING if verdict is None else "no verdict"
        return [Cell(word), Cell(NOTHING), Cell(NOTHING), Cell(NOTHING)]
    ends, digits = verdict.interval, comparison.digits
    return [
        Cell(verdict.word, mark="shown" if verdict.is_shown else ""),
        number(verdict.difference.estimate, digits, sign=True),
        interval(ends.low, ends.high, digits),
        Cell(NOTHING) if isnan(verdict.p_value) else Cell(p_is(verdict.p_value).removeprefix("= "), verdict.p_value),
    ]


def settings_table(arms: Sequence[Arm]) -> Table | None:
    """The settings in which arms differ; what differs from the first arm, the baseline, is marked.

    There is one column per arm, or, if there are many arms, one column per setting. None for a single arm.
    """
    if len(arms) < 2:
        return None
    keys = sorted(differing(arms), key=lambda key: (is_of_normalizer(key), key))
    texts = [[in_yaml(arm.settings[key]) if key in arm.settings else NOTHING for key in keys] for arm in arms]
    by_arm = [
        [Cell(text, mark="" if text == first else "differs") for text, first in zip(each, texts[0], strict=True)]
        for each in texts
    ]
    caption = "The settings in which the arms differ"
    if len(arms) > max(MANY, len(keys)):
        rows = [[Cell(arm.label), *row] for arm, row in zip(arms, by_arm, strict=True)]
        return Table(caption, [Column("arm"), *(Column(key) for key in keys)], rows)
    marks = ["" if is_of_normalizer(key) else "confound" for key in keys]
    rows = [[Cell(key, mark=mark), *row] for key, mark, *row in zip(keys, marks, *by_arm, strict=True)]
    return Table(caption, [Column("setting"), *(Column(arm.label) for arm in arms)], rows)


def runs_table(arms: Sequence[Arm]) -> Table:
    """One row per run."""
    names = {"arm": False, "seed": True, "state": False, "updates": True, "hours": True, "folder": False}
    rows = []
    for arm in arms:
        for run in arm.runs:
            seconds = as_number(run.summary.get("wall_seconds"))
            hours, steps = None if seconds is None else seconds / 3600, as_number(run.summary.get("steps"))
            of_run = [Cell(arm.label), Cell(str(run.seed), run.seed), Cell(str(run.state))]
            rows.append([*of_run, number(steps, 0), number(hours), Cell(str(run.folder))])
    return Table(f"All {counted(len(rows), 'run')}", [Column(*column) for column in names.items()], rows)


def tuning_table(tuning: TuningRecord, arms: Sequence[Arm]) -> Table:
    """The mean of the metric that selects a value, by arm and value; the chosen values are marked."""
    rows = []
    for label, tuned in tuning.of(arms).items():
        means = {value: tuned.mean(value) for value in tuning.values}
        cells = {value: Cell("failed") if mean is None else number(mean, 4) for value, mean in means.items()}
        cells[tuned.best] = replace(cells[tuned.best], mark="shown")
        rows.append([Cell(label), Cell(tuned.best), *cells.values()])
    at_values = [Column(value, True, f"mean at {tuning.key}={value}") for value in tuning.values]
    columns = [Column("arm"), Column(f"best {tuning.key}"), *at_values]
    return Table(f"Mean of {tuning.monitor} over the tuning seeds", columns, rows, can_copy=True)
