"""`attnorm compare`: whether arms differ from a baseline, or how many runs would show it."""

from dataclasses import dataclass
from math import isnan, nan
from typing import Any

from attnorm.analysis.arms import find_runs
from attnorm.analysis.cautions import simple_label, withheld_lines
from attnorm.analysis.comparison import SOURCES, Comparison, compare, places_of
from attnorm.analysis.report.search import searches_of
from attnorm.analysis.scores import SplitName
from attnorm.analysis.statistics.power import plan
from attnorm.analysis.verdict import COSTS, ArmScores, Verdict, decimals
from attnorm.progress import console
from attnorm.run.folder import EVENTS
from attnorm.schema import Level, Positive, Text
from attnorm.spec.command import read
from attnorm.tasks.results import NAMES
from attnorm.training.console import print_table, show_lines, show_warnings
from attnorm.wording import counted

Places = Text | tuple[Text, ...]


@dataclass(frozen=True, kw_only=True)
class CompareSettings:
    """The keys of `attnorm compare`, as in conf/compare.yaml."""

    baseline: Places | None = None
    against: Places
    metric: Text | None = None
    split: SplitName = "auto"
    level: Level = 0.95
    plan: Positive | None = None


def run_compare(arguments: list[str]) -> None:
    """Prints the scores of the arms and the verdicts, or a plan; of a search, the best trial and the value of each."""
    settings = read(arguments, CompareSettings, "attnorm compare").settings
    options: dict[str, Any] = {"metric": settings.metric, "split": settings.split, "level": settings.level}
    searches, others = searches_of(find_runs(places_of(settings.against)))
    for search in searches:
        show_lines(search.headline, search.command)
        rows = [[cell.text for cell in row] for row in search.table.rows]
        print_table(search.table.caption, [[column.name for column in search.table.columns], *rows])
    if searches and not others:
        return
    against = [run.folder for run in others] if searches else settings.against
    places: tuple[Any, Any] = (against, None) if settings.baseline is None else (settings.baseline, against)
    comparison = compare(*places, **options)
    show_warnings(withheld_lines(comparison.withheld))
    show_arms(comparison)
    for verdict in comparison.verdicts:
        if verdict.is_silent and comparison.withheld:
            continue  # the first lines say why
        if settings.plan is None:
            console.print()
            console.print(verdict.sentence(), style="bold" if verdict.is_shown else None, markup=False)
            show_lines(verdict.claim_for_this_test_set() or "")
        else:
            show_plan(comparison, verdict, settings.plan)


def show_arms(comparison: Comparison) -> None:
    """The scores of the arms as a table, and what a reader has to know about them."""
    digits, name = decimals(comparison.metric), NAMES.get(comparison.metric, comparison.metric)
    rows = [["", name, "± over seeds", "seeds", *(it.name for it in COSTS.values())]]
    rows += [[it.label, *cells(it, digits)] for it in comparison.scores]
    empty = [""] * (len(rows[0]) - 2)
    rows += [[simple_label(name), f"{value:,.{digits}f}", *empty] for name, value in comparison.simple.items()]
    kind = "" if comparison.is_primary else "; not the primary metric of the task"
    scored = f"{counted(comparison.examples, 'example')} of {SOURCES[comparison.source]}{kind}"
    title = f"{comparison.task}: {name} on {scored}"
    print_table(title, rows)
    show_lines(*(f"left out: {line}" for it in comparison.scores for line in it.left_out))
    chosen, choices = chosen_by_sweeps(comparison)
    differing = [key for key in comparison.differing if key not in chosen]
    more = [f"The arms differ in more than their attention: {', '.join(differing)}."] if differing else []
    show_warnings([*choices, *comparison.notes, *comparison.doubts, *more])


def chosen_by_sweeps(comparison: Comparison) -> tuple[list[str], list[str]]:
    """The settings that a sweep chose for all arms, and as sentences what it chose, and the verdicts that depend on
    it."""
    if not any((run.folder.parent / EVENTS).is_file() for arm in comparison.arms for run in arm.runs):
        return [], []
    from attnorm.analysis.report.tuning import EqualCost, Tuning, chosen_by, costs_of, depending, tunings_of

    tunings, costs = tunings_of("", comparison.arms), costs_of("", comparison.arms)
    parts: list[Tuning | EqualCost] = [*tunings, *costs]
    sentences = [*(it.choice(comparison.arms) for it in parts), *depending(tunings, comparison.verdicts)]
    return chosen_by(parts, comparison.arms), sentences


def cells(scores: ArmScores, digits: int) -> list[str]:
    """The numbers of an arm as text."""
    costs = [(scores.costs.get(name, nan), cost.digits) for name, cost in COSTS.items()]
    numbers = [(scores.mean, digits), (scores.spread, digits), (len(scores.values), 0), *costs]
    return ["" if isnan(value) else f"{value:,.{places}f}" for value, places in numbers]


def show_plan(found: Comparison, verdict: Verdict, difference: float) -> None:
    """How many seeds and examples would show a difference between an arm and the baseline, and what they would cost; or
    that the runs are too few to plan with."""
    hours = [it.costs["hours"] for it in found.scores if it.label in (verdict.label, verdict.baseline) if it.costs]
    per_run = sum(hours) / len(hours) if hours else None
    try:
        rows = plan(verdict.difference.variances, difference, level=verdict.strict_level, hours_per_run=per_run)
    except ValueError as error:
        console.print()
        console.print(f"{verdict.label} minus {verdict.baseline}: no plan, {error}", markup=False)
        return
    digits = decimals(found.metric)
    table = [["examples", "seeds per arm", "detectable difference", "hours for both arms"]]
    for row in rows:
        seeds = "no number is enough" if row.seeds is None else f"{row.seeds:,}"
        cost = "" if row.hours is None else f"{row.hours:,.2f}"
        table.append([f"{row.examples:,}", seeds, f"{row.detectable:.{digits}f}", cost])
    sizes = f"{counted(verdict.difference.seeds, 'seed')} and {counted(verdict.difference.examples, 'example')}"
    name = NAMES.get(found.metric, found.metric)
    title = f"{verdict.label} minus {verdict.baseline}: to detect {difference:g} {name} with 80 % power, from {sizes}"
    console.print()
    print_table(title, table)
