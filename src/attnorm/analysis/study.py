"""A study: the arms of a task, what they scored, and what can be said about their differences.

It is computed once, from run folders, the folder of a sweep, or tables of scores. What the terminal prints and what the
report shows is drawn from it.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

from attnorm.analysis.arms import Arm, Places, arms_of, baseline_of, differing, find_runs, is_of_normalizer, numbers_of
from attnorm.analysis.colours import COLOURS
from attnorm.analysis.comparison import Comparison, ReadExamples, Terms, compare_arms
from attnorm.analysis.ladder.ladder_runs import ladder_of
from attnorm.analysis.scores import (
    ExampleTable,
    common_metrics,
    common_split,
    direction_of,
    example_table,
    primary_metric,
)
from attnorm.analysis.shared_seeds import NoSharedSeed
from attnorm.analysis.table import title_of
from attnorm.analysis.tuning_record import TuningRecord, tunings_of
from attnorm.analysis.unfinished_jobs import waiting_jobs
from attnorm.analysis.verdict import AT_THESE_RATES, ArmScores, adjusted, mean_costs
from attnorm.errors import ConfigError, Problem, RunError
from attnorm.run.folder import find_folder
from attnorm.run.run import Run

Compare = Callable[[Sequence[Arm], str | None], Comparison]
AS_USUAL = Terms()


@dataclass
class Study:
    """Arms of one task that are compared with a baseline.

    arms:        the baseline first; none if only their scores are known.
    comparisons: on the metric of the verdicts first, and then on further metrics; [] if nothing can be compared.
    reported:    if nothing can be compared, what the runs have recorded when they ended, the primary metric first.
    left_out:    why arms and further metrics are not compared, as sentences. missing: the number of these arms.
    tunings: what the sweeps that trained the arms chose for each of them.
    read_examples: `example_table`, which reads each table once. origin: of scores without arms, as a sentence.
    """

    arms: Sequence[Arm] = ()
    comparisons: list[Comparison] = field(default_factory=list)
    reported: list[Comparison] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    missing: int = 0
    tunings: list[TuningRecord] = field(default_factory=list)
    read_examples: ReadExamples = field(default_factory=lambda: cache(example_table))
    origin: str = ""

    @property
    def main(self) -> Comparison | None:
        """The comparison on the metric of the verdicts."""
        return self.comparisons[0] if self.comparisons else None

    @property
    def ranked(self) -> list[Arm]:
        """The baseline, and then the other arms in the order given; of more than charts tell apart, the best first."""
        others = list(self.arms[1:])
        if self.main is not None and len(self.arms) > COLOURS:
            means = {scores.label: -self.main.direction * scores.mean for scores in self.main.scores if scores.values}
            others.sort(key=lambda arm: means.get(arm.label, float("inf")))
        return [*self.arms[:1], *others]

    @property
    def chosen(self) -> list[str]:
        """The settings that one sweep chose for all arms by the same rule."""
        labels = {arm.label for arm in self.arms}
        return [tuning.key for tuning in self.tunings if labels <= tuning.arms.keys()]

    @property
    def confounds(self) -> list[str]:
        """The settings besides the attention in which the arms differ, and that no sweep chose for all of them."""
        keys = [key for key in differing(self.arms) if not is_of_normalizer(key)] if self.arms else []
        return [key for key in keys if key not in self.chosen]

    @property
    def choices(self) -> list[str]:
        """What sweeps chose, as sentences."""
        return [tuning.choice(self.arms) for tuning in self.tunings]

    @property
    def dependences(self) -> list[str]:
        """The verdicts that depend on the value that was tuned, as sentences."""
        verdicts = self.main.verdicts if self.main else []
        lines = [tuning.dependence(verdict) for tuning in self.tunings for verdict in verdicts]
        return [line for line in lines if line]

    @property
    def notes(self) -> list[str]:
        """What a reader of the verdicts has to know, as sentences."""
        if (main := self.main) is None:
            return self.left_out
        keys = self.confounds
        more = [f"The arms differ in more than their attention: {', '.join(keys)}."] if keys else []
        return [*self.choices, *self.dependences, *main.notes, *self.left_out, *main.doubts, *more]


def study_of_arms(
    baseline: Arm, arms: Sequence[Arm], metric: str | None = None, terms: Terms = AS_USUAL, strict: bool = False
) -> Study:
    """Compares arms with one of them.

    metric: that of the verdicts; None: the primary one. strict: compare on this metric alone, and raise an error for
    arms that cannot be compared, unless only some of them share no scored seed with the baseline. Otherwise, arms and
    metrics are left out for any reason.
    """
    arms = [baseline, *(arm for arm in arms if arm is not baseline)]
    study = Study(arms, tunings=tunings_of(arms))
    on: Compare = partial(compare_arms, terms=terms, tunings=study.tunings, read_examples=study.read_examples)
    if strict:
        _begin(study, on, metric, arms, NoSharedSeed)
        study.arms = study.comparisons[0].arms
        labels = {arm.label for arm in study.arms}
        study.tunings = [tuning for tuning in study.tunings if labels & tuning.arms.keys()]
        return study
    runs = [run for arm in arms for run in arm.finished.values()]
    primary, shared, tables = primary_metric(runs), common_split(runs, terms.split), list[ExampleTable | None]()
    for run in runs:
        with suppress(RunError):
            tables.append(study.read_examples(run, shared))
    metrics = common_metrics([table for table in tables if table is not None])
    try:
        if not metrics:
            raise RunError("No finished run has scores of single examples, so there is nothing to compare yet")
        chosen = next((name for name in (metric, primary) if name in metrics), metrics[0])
        study.left_out = [f"{arm.label} is not compared: no run has finished." for arm in arms[1:] if not arm.finished]
        _begin(study, on, chosen, [arms[0], *(arm for arm in arms[1:] if arm.finished)], RunError)
    except RunError as error:
        text = str(error).strip()
        study.left_out = [text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")]
        study.reported = _reported(arms, runs, primary)
        return study
    for name in metrics:
        try:
            study.comparisons += [] if name == chosen else [on(study.comparisons[0].arms, name)]
        except RunError as error:  # the verdicts do not depend on it
            study.left_out.append(f"{title_of(name)} is not compared: {str(error).rstrip('.')}.")
    return study


def _begin(study: Study, on: Compare, metric: str | None, arms: Sequence[Arm], expected: type[RunError]) -> None:
    """Begins a study with the metric of the verdicts. Leaves out arms for which an expected error is raised, and raises
    it if no other is left, unless any error is expected."""
    try:
        main = on(arms, metric)
    except expected:
        kept = [arms[0]]
        for arm in arms[1:]:
            try:
                kept += on([arms[0], arm], metric).arms[1:]
            except expected as error:
                study.left_out.append(f"{arm.label} is not compared: {str(error).rstrip('.')}.")
        if len(kept) == 1 and expected is not RunError:
            raise
        main = on(kept, metric)
    study.missing = len(study.left_out)
    study.comparisons = [replace(main, verdicts=adjusted(main.verdicts, study.missing))]


def _reported(arms: Sequence[Arm], runs: Sequence[Run], primary: str | None) -> list[Comparison]:
    """The metrics that finished runs reported at the end of training, the primary one first."""
    metrics = {run.folder: numbers_of(run.evaluation().get("metrics")) for run in runs}
    reported = []
    names = dict.fromkeys(name for each in metrics.values() for name in each)
    for name in sorted(names, key=lambda name: name != primary):
        scores = []
        for arm in arms:
            values = {seed: metrics[run.folder].get(name) for seed, run in arm.finished.items()}
            known = {seed: value for seed, value in values.items() if value is not None}
            scores.append(ArmScores(arm.label, known, mean_costs(arm.finished.values())))
        reported.append(Comparison(arms=arms, metric=name, direction=direction_of(runs, name), scores=scores))
    return reported


def adjust_together(studies: Iterable[Study]) -> None:
    """Adjusts the p-values for all primary metrics together."""
    primary = [study for study in studies if study.main is not None and study.main.is_primary]
    every = [verdict for study in primary for verdict in study.comparisons[0].verdicts]
    verdicts = iter(adjusted(every, sum(study.missing for study in primary)))
    for study in primary:
        main = study.comparisons[0]
        study.comparisons[0] = replace(main, verdicts=[next(verdicts) for _ in main.verdicts])


def further_values(folder: Path) -> list[tuple[int, str]]:
    """The numbers of arms in jobs.jsonl and their values besides the best one that a sweep trains with the comparison
    seeds, so that every verdict that would be shown at the best values can be decided.

    The arms are compared with the default baseline of `compare` on the primary metric of each task. On a ladder, no
    difference is shown at more than the best values anyway. Raises RunError if the arms of a task cannot be compared.
    """
    by_task: dict[str, list[Arm]] = {}
    for arm in arms_of([run for run in find_runs([folder]) if not ladder_of(run)]):
        by_task.setdefault(arm.task, []).append(arm)
    values: dict[tuple[int, str], None] = {}
    for arms in by_task.values():
        study = study_of_arms(baseline_of(arms, None), arms)
        if study.main is None:
            raise RunError(*study.left_out)
        for verdict in study.main.verdicts:
            if (others := verdict.others) and verdict.word in ("shown", AT_THESE_RATES):
                values |= {(others.number, value): None for value in others.runs}
    return list(values)


def study_of(baseline: Places, against: Places | None, metric: str | None, terms: Terms) -> Study:
    """The study of which `compare` returns the comparison."""
    paths = listed_places(baseline if against is None else against)
    arms = arms_of(find_runs(paths))
    is_label = isinstance(baseline, str) and not Path(baseline).exists()
    if is_label and not any(arm.label == baseline for arm in arms):  # a pattern, a path, or the name of a run
        is_label = not set("*?[/") & set(str(baseline)) and not find_folder(str(baseline), "baseline", True).exists()
    if against is None or is_label:
        chosen = baseline_of(arms, None if against is None else str(baseline))
    else:
        paths = [*listed_places(baseline), *paths]
        arms, folders = arms_of(find_runs(paths)), {run.folder for run in find_runs(listed_places(baseline))}
        formed = [arm for arm in arms if any(run.folder in folders for run in arm.runs)]
        if len(formed) != 1:
            labels = "; ".join(arm.label for arm in formed) or "they repeat runs of against"
            raise ConfigError([Problem("baseline", f"must be one arm, but these runs form {len(formed)}: {labels}")])
        [chosen] = formed
    if len(arms) == 1:
        raise ConfigError([Problem("against", f"there is nothing to compare with the baseline, {chosen.label}")])
    return study_of_arms(chosen, arms, metric, replace(terms, pending=waiting_jobs(paths)), strict=True)


def listed_places(places: Places) -> list[str | Path]:
    """One place or several as a list."""
    return [places] if isinstance(places, (str, Path)) else list(places)
