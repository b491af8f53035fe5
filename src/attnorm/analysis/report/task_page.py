"""What the report says about the runs of one task, drawn from their study."""

from collections import defaultdict
from dataclasses import dataclass

from attnorm.analysis.arms import is_of_normalizer, varying
from attnorm.analysis.cautions import withheld_lines
from attnorm.analysis.chart import Chart
from attnorm.analysis.comparison import Comparison
from attnorm.analysis.provenance import doubts_of
from attnorm.analysis.report.drawings import drawings_of, tuning_figures
from attnorm.analysis.report.examples import confusions_of, contrasts_of, samples_of
from attnorm.analysis.report.forest import forest
from attnorm.analysis.report.tables import further_metrics_table, runs_table, scores_table, settings_table, tuning_table
from attnorm.analysis.study import Study
from attnorm.analysis.table import Table, title_of, written
from attnorm.analysis.verdict import decimals
from attnorm.errors import in_yaml


@dataclass(frozen=True)
class SweptPart:
    """What a sweep chose for each arm: in words, as a table, and in charts."""

    about: str
    table: Table
    figures: list[Chart]
    notes: list[str]


class TaskPage:
    """What the page says about the runs of one task.

    name: the name of the task. anchor: the HTML id of its part of the page. overview: names and values of its size.
    withheld: why verdicts are withheld, as sentences for a box above everything else; [] if none is. verdicts: those
    that are not explained by this box.
    headline: the verdicts in one sentence. warnings, notes: what a reader has to know. doubts: what differs between
    the runs besides their settings.
    differing: the settings in which the arms differ; None if there is only one arm. confounds: those that are not
    settings of the attention, without `chosen`: those that a sweep chose for each arm by the same rule. equal: the
    settings that all arms share, by group.
    tunings: what the sweeps that trained the runs chose for each arm.
    main, others: the tables of scores. runs: that of the runs.
    """

    def __init__(self, anchor: str, study: Study, metric: str | None):
        main, arms, self.anchor = study.main, study.ranked, anchor
        verdicts = main.verdicts if main else []
        compared = [verdict.label for verdict in verdicts if not verdict.is_silent]
        self.name = arms[0].task
        seeds = {len(arm.finished) for arm in arms}
        of_arm = str(min(seeds)) if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
        self.overview = [("arms", f"{len(arms):,}"), ("seeds per arm", of_arm), ("baseline", arms[0].label)]
        if main is not None:
            self.overview += [("metric", title_of(main.metric)), ("examples", f"{main.examples:,}")]
        self.withheld = withheld_lines(main.withheld) if main else []
        self.headline = headline(main, study.missing) if main else "There is nothing to compare yet."
        self.differing, self.confounds = settings_table(study.arms), study.confounds
        varied = varying(arm.settings for arm in study.arms)
        self.chosen = [key for key in study.chosen if key in varied and not is_of_normalizer(key)]
        self.equal: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for key, value in sorted(study.arms[0].settings.items()):
            if key not in varied:
                group, _, name = key.partition(".")
                self.equal[group].append((name or group, in_yaml(value)))
        self.warnings = [*_warnings_of(study, metric), *study.dependences]
        self.verdicts = [verdict for verdict in verdicts if not (self.withheld and verdict.is_silent)]
        runs = [line for scores in (main.scores if main else ()) for line in scores.left_out]
        left_out = [f"Left out of the scores: {'; '.join(runs)}."] if runs else []
        self.notes = [*study.choices, *study.left_out, *(main.notes if main else ()), *left_out]
        self.doubts = main.doubts if main else doubts_of(study.arms)
        self.tunings = list[SweptPart]()
        for number, tuning in enumerate(study.tunings, start=1):
            about = f"{tuning.about()} Bands reach from the smallest to the largest seed."
            figures = tuning_figures(f"{anchor}-tuned-{number}-curve", tuning, arms)
            self.tunings.append(SweptPart(about, tuning_table(tuning, arms), figures, tuning.notes))
        self.main, self.others, self.runs = scores_table(study), further_metrics_table(study), runs_table(arms)
        self.forest = forest(f"forest-{anchor}", main) if main and compared else None
        self.drawings = drawings_of(anchor, arms, compared)
        self.confusions = confusions_of(study)
        self.samples = samples_of(study)
        self.contrasts = contrasts_of(study) if compared else []

    @property
    def charts(self) -> list[Chart]:
        """All charts, in no order."""
        drawn = self.drawings
        curves = [*drawn.curves, *drawn.differences, *drawn.scalars, *drawn.attention, *drawn.measures]
        tuned = [chart for part in self.tunings for chart in part.figures]
        return [*([self.forest] if self.forest else []), *curves, *tuned]


def _warnings_of(study: Study, metric: str | None) -> list[str]:
    """What makes the comparison less than a comparison of normalizers."""
    warnings, confounds, main = list[str](), study.confounds, study.main
    if confounds:
        more = len(confounds) - 8
        keys = ", ".join(confounds[:8]) + (f" and {more} more" if more > 0 else "")
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


def headline(comparison: Comparison, missing: int) -> str:
    """The verdicts of a task in one sentence. missing: the number of arms that could not be compared."""
    shown = [verdict for verdict in comparison.verdicts if verdict.is_shown]
    if comparison.pending:
        return "No verdict yet: planned runs are not finished."
    if not comparison.verdicts:
        which = "only arm that can be compared" if missing else "only arm"
        return f"{comparison.baseline} is the {which}, so there is nothing to compare it with."
    if comparison.withheld and all(verdict.is_silent for verdict in comparison.verdicts):
        return "No verdict: the models have not learned enough to compare their normalizers."
    if all(verdict.no_verdict is not None for verdict in comparison.verdicts):
        return f"No verdict on any difference from {comparison.baseline}."
    title = title_of(comparison.metric)
    if not shown:
        return f"No difference from {comparison.baseline} is shown in {title}."
    digits = decimals(comparison.metric)
    differences = [(verdict.label, written(verdict.difference.estimate, digits, sign=True)) for verdict in shown]
    if len(comparison.verdicts) == 1:
        return f"{shown[0].label} differs from {comparison.baseline} in {title}: {differences[0][1]}."
    first = ", ".join(f"{label} ({difference})" for label, difference in differences[:6])
    more = f" and {len(shown) - 6} more" if len(shown) > 6 else ""
    of = f"{len(shown)} of {len(comparison.verdicts)} arms {'differ' if len(shown) > 1 else 'differs'}"
    return f"{of} from {comparison.baseline} in {title}: {first}{more}."
