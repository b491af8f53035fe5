"""`attnorm compare`: whether arms differ from a baseline, or how many runs would show it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isnan, nan
from pathlib import Path
from typing import Any

from attnorm.analysis.arms import matching
from attnorm.analysis.cautions import simple_label, withheld_lines
from attnorm.analysis.comparison import SOURCES, Comparison, Terms
from attnorm.analysis.ladder.ladder_comparison import compare_ladder
from attnorm.analysis.ladder.ladder_files import ladder_sentences, rows_of, table_of, write_comparison
from attnorm.analysis.ladder.ladder_runs import are_of_ladder, scores_of_places
from attnorm.analysis.ladder.ladder_scores import LadderScores
from attnorm.analysis.ladder.score_rows import ENDINGS as ENDINGS_OF_SCORES
from attnorm.analysis.ladder.score_rows import is_ladder_table, scores_of_tables, write_scores
from attnorm.analysis.score_files import ALL_COLUMNS, read_scores, score_files
from attnorm.analysis.score_tables import Better, study_of_tables
from attnorm.analysis.scores import SplitName
from attnorm.analysis.statistics.power import plan
from attnorm.analysis.study import Study, listed_places, study_of
from attnorm.analysis.study_files import ENDINGS, write_study
from attnorm.analysis.verdict import COSTS, Verdict
from attnorm.config.command import Command, read
from attnorm.config.compose import quoted
from attnorm.errors import ConfigError, Problem
from attnorm.progress import console
from attnorm.run.folder import why_not_writable
from attnorm.schema import Level, Positive, Text
from attnorm.tasks.results import NAMES
from attnorm.training.console import print_table, show_lines, show_warnings
from attnorm.wording import counted

Places = Text | tuple[Text, ...]


@dataclass(frozen=True, kw_only=True)
class CompareSettings:
    """The keys of `attnorm compare`, as in conf/compare.yaml."""

    baseline: Places | None = None
    against: Places | None = None
    scores: Places | None = None
    metric: Text | None = None
    columns: dict[str, Text] = field(default_factory=dict)
    better: Better | None = None
    split: SplitName = "auto"
    level: Level = 0.95
    plan: Positive | None = None
    project: Positive | None = None
    scores_out: Text | None = None
    out: tuple[Text, ...] | None = None

    @property
    def files(self) -> list[Path]:
        """The files to write."""
        return [Path(file) for file in self.out or ()]


def compare_problems(command: Command[CompareSettings]) -> Iterator[Problem]:
    """The problems of keys that do not go together, and of the files to write."""
    settings, typed = command.settings, command.typed
    of_runs = settings.scores is None
    if of_runs and settings.against is None:
        yield Problem("against", "must be given, as in against=<folder>, or scores=<file>")
    if wrong := [name for name in settings.columns if name not in ALL_COLUMNS]:
        yield Problem(f"columns.{wrong[0]}", f"allowed: {', '.join(f'columns.{name}' for name in ALL_COLUMNS)}")
    for key in typed & ({"better", "columns"} if of_runs else {"against", "split"}):
        more = "with scores" if not of_runs else "on runs" + ", whose task says it" * (key == "better")
        yield Problem(key, f"has no effect {more}", getattr(settings, key))
    if not of_runs and isinstance(settings.baseline, tuple):
        yield Problem("baseline", "expected the name of an arm", list(settings.baseline))
    scored = [file.resolve() for place in listed_places(settings.scores or ()) for file in matching(place)]
    outputs = [("out", file, ", ".join(ENDINGS), file.suffix.lower() in ENDINGS) for file in settings.files]
    if settings.scores_out is not None:
        file = Path(settings.scores_out)
        endings = ", ".join(ENDINGS_OF_SCORES)
        outputs.append(("scores_out", file, endings, file.name.endswith(ENDINGS_OF_SCORES)))
    for key, file, endings, has_ending in outputs:
        if not has_ending:
            yield Problem(key, f"must end with {endings}", str(file))
        elif why := why_not_writable(file.parent, file.name):
            yield Problem(key, why, str(file))
        elif file.resolve() in scored:
            yield Problem(key, "is one of the files with scores", str(file))


def run_compare(arguments: list[str]) -> None:
    """Prints the scores of the arms and the verdicts, or a plan."""
    outs = [argument.removeprefix("out=") for argument in arguments if argument.startswith("out=")]
    if len(outs) > 1:  # a shell makes several of out=result.{csv,tex}
        rest = [argument for argument in arguments if not argument.startswith("out=")]
        arguments = [*rest, f"out=[{','.join(map(quoted, outs))}]"]
    settings = read(arguments, CompareSettings, "attnorm compare", check=compare_problems).settings
    tables = [] if settings.scores is None else score_files(settings.scores)
    if any(map(is_ladder_table, tables)):
        return show_ladder(settings, scores_of_tables(tables, settings.metric))
    if settings.against is not None and are_of_ladder(listed_places(settings.against)):
        return show_ladder(settings, scores_of_places(listed_places(settings.against), settings.metric, settings.split))
    for key in ("project", "scores_out"):
        if (value := getattr(settings, key)) is not None:
            raise ConfigError([Problem(key, "has no effect on anything but a ladder", value)])
    if settings.scores is not None:
        assert not isinstance(settings.baseline, tuple)
        options: dict[str, Any] = {"better": settings.better, "level": settings.level}
        given = read_scores(tables, settings.columns)
        return show_study(settings, study_of_tables(given, settings.baseline, settings.metric, **options))
    assert settings.against is not None
    places: tuple[Any, Any] = (settings.against, None)
    if settings.baseline is not None:
        places = (settings.baseline, settings.against)
    show_study(settings, study_of(*places, settings.metric, Terms(settings.split, settings.level)))


def show_ladder(settings: CompareSettings, scores: LadderScores) -> None:
    """Prints how the arms of a ladder differ on its rungs, and writes the files."""
    for key in ("plan", "better", "columns"):
        if value := getattr(settings, key):
            raise ConfigError([Problem(key, "has no effect on a ladder", value)])
    if isinstance(settings.baseline, tuple):
        raise ConfigError([Problem("baseline", "expected the label of an arm of the ladder", list(settings.baseline))])
    comparison = None
    if len(scores.arms) > 1 or settings.scores_out is None or settings.files:  # a table of one arm is for others
        comparison = compare_ladder(scores, settings.baseline, settings.project, settings.level)
        table = table_of(comparison)
        for arm in comparison.arms:
            title = f"{arm.label} minus {comparison.baseline} on the rungs of the ladder"
            print_table(title, rows_of(table, arm.label))
            show_lines(*ladder_sentences(comparison, arm))
            show_warnings([*arm.notes])
        show_warnings([*scores.notes])
    if settings.scores_out is not None:
        write_scores(scores, Path(settings.scores_out))
        show_lines(f"written to {settings.scores_out}")
    for file in settings.files:
        assert comparison is not None
        write_comparison(comparison, file)
        show_lines(f"written to {file}")


def show_study(settings: CompareSettings, study: Study) -> None:
    """Prints the scores of the arms and the verdicts, or a plan, and writes the files."""
    [main] = study.comparisons
    show_warnings(withheld_lines(main.withheld))
    show_arms(study, main)
    for verdict in main.verdicts:
        if verdict.is_silent and main.withheld:
            continue  # the first lines say why
        if settings.plan is None:
            console.print()
            console.print(verdict.sentence(), style="bold" if verdict.is_shown else None, markup=False)
            show_lines(verdict.claim_for_this_test_set() or "")
        else:
            show_needed_runs(main, verdict, settings.plan)
    for file in settings.files:
        write_study(study, file)
        show_lines(f"written to {file}")


def show_arms(study: Study, main: Comparison) -> None:
    """The scores of the arms as a table, and what a reader has to know about them."""
    digits, name = main.digits, NAMES.get(main.metric, main.metric)
    shown = {key: cost for key, cost in COSTS.items() if any(key in scores.costs for scores in main.scores)}
    rows = [["", name, "± over seeds", "seeds", *(cost.name for cost in shown.values())]]
    for scores in main.scores:
        costs = [(scores.costs.get(key, nan), cost.digits) for key, cost in shown.items()]
        numbers = [(scores.mean, digits), (scores.spread, digits), (len(scores.values), 0), *costs]
        rows.append([scores.label, *("" if isnan(value) else f"{value:,.{places}f}" for value, places in numbers)])
    empty = [""] * (len(rows[0]) - 2)
    rows += [[simple_label(simple), f"{value:,.{digits}f}", *empty] for simple, value in main.simple.items()]
    scored = f" on {counted(main.examples, 'example')}" + (f" of {SOURCES[main.source]}" if main.source else "")
    if main.examples == 1 and not main.source:
        scored = ", one score per seed"
    kind = "" if main.is_primary or not main.task else "; not the primary metric of the task"
    print_table(f"{main.task}: {name}{scored}{kind}".removeprefix(": "), rows)
    show_lines(study.origin)
    show_lines(*(f"left out: {line}" for scores in main.scores for line in scores.left_out))
    show_warnings(study.notes)


def show_needed_runs(main: Comparison, verdict: Verdict, difference: float) -> None:
    """How many seeds and examples would show a difference between an arm and the baseline, and what they would cost; or
    that the runs are too few to plan with."""
    hours = [of.costs["hours"] for of in main.scores if of.label in (verdict.label, verdict.baseline) if of.costs]
    per_run = sum(hours) / len(hours) if hours else None
    try:
        rows = plan(verdict.difference.variances, difference, level=verdict.strict_level, hours_per_run=per_run)
    except ValueError as error:
        console.print()
        console.print(f"{verdict.label} minus {verdict.baseline}: no plan, {error}", markup=False)
        return
    digits = main.digits
    table = [["examples", "seeds per arm", "detectable difference", "hours for both arms"]]
    for row in rows:
        seeds = "no number is enough" if row.seeds is None else f"{row.seeds:,}"
        cost = "" if row.hours is None else f"{row.hours:,.2f}"
        table.append([f"{row.examples:,}", seeds, f"{row.detectable:.{digits}f}", cost])
    sizes = f"{counted(verdict.difference.seeds, 'seed')} and {counted(verdict.difference.examples, 'example')}"
    name = NAMES.get(main.metric, main.metric)
    title = f"{verdict.label} minus {verdict.baseline}: to detect {difference:g} {name} with 80 % power, from {sizes}"
    console.print()
    print_table(title, table)
