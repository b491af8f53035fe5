"""What a sweep chose for each arm before the comparison: a tuned value, and a number of updates of equal cost.

Everything is read from the file sweep.json beside the runs. The file is not trusted: if it has another form, it is left
out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeVar

from attnorm.analysis.arms import Arm, as_number
from attnorm.analysis.grids import sweeps_of
from attnorm.analysis.report.charts import COLOURS, Figure, curves, styles_of_arms
from attnorm.analysis.report.curves import Point, metric_curves, metric_rows, runs_to_draw
from attnorm.analysis.report.drawings import title_of_curve
from attnorm.analysis.report.runs import Setup
from attnorm.analysis.report.tables import Cell, Column, Table, number
from attnorm.analysis.verdict import Verdict
from attnorm.run.folder import RunState
from attnorm.sweeps.tuning import mean
from attnorm.wording import counted

Part = TypeVar("Part")


@dataclass(frozen=True)
class Trial:
    """A tuning run that has finished. value: of the metric that selects the value. score: of the primary
    metric, if there is one."""

    value: float | None
    metric: str | None
    score: float | None


@dataclass(frozen=True)
class Tuning:
    """How a sweep tuned its arms.

    key:    the setting that is tuned. values: those that were tried. mode: "min" if a lower metric is better, or "max".
    trials: by arm and value, one for each tuning seed.
    best:   the value with which each arm is compared.
    about:  the metric, the seeds and the budget in words. table: the mean of the metric at every value.
    notes:  why the grid was not extended further, and the arms that failed at every value.
    """

    key: str
    values: list[str]
    mode: str
    trials: dict[str, dict[str, list[Trial]]]
    best: dict[str, str]
    about: str
    figures: list[Figure]
    table: Table
    notes: list[str]

    @property
    def labels(self) -> set[str]:
        """The arms that were tuned."""
        return set(self.trials)

    def choice(self, arms: Sequence[Arm]) -> str:
        """The values of the arms, as a sentence. arms: all that are compared."""
        values, others = ", ".join(map(" ".join, self.best.items())), beside(self, arms, "tuned")
        return f"{'Only some arms have their' if others else 'Each arm has its'} best {self.key}: {values}.{others}"


@dataclass(frozen=True)
class EqualCost:
    """What the arms of a sweep cost. unit: of the cost. updates: of each arm. figures: validation curves against it."""

    unit: str
    updates: dict[str, str]
    about: str
    table: Table
    figures: list[Figure]
    key: ClassVar[str] = "trainer.max_steps"  # the setting that the sweep chose

    @property
    def labels(self) -> set[str]:
        """The arms whose cost is known."""
        return set(self.updates)

    def choice(self, arms: Sequence[Arm]) -> str:
        """The updates of the arms, as a sentence, and what the cost depends on. arms: all that are compared."""
        more = (
            " A time depends on the implementation as well as on the normalizer. It was measured once for all seeds of "
            "an arm, so its error, often a few percent, is in no interval."
        )
        more = "" if self.unit == "FLOPs" else more
        updates, others = ", ".join(map(" ".join, self.updates.items())), beside(self, arms, "measured")
        who = "Only some arms" if others else "All arms"
        return f"{who} spend the same {self.unit}, with different numbers of updates: {updates}.{more}{others}"


def beside(part: Tuning | EqualCost, arms: Sequence[Arm], done: str) -> str:
    """Which arms a sweep has not tuned or measured with the others, as a sentence; "" if there are none."""
    others = ", ".join(arm.label for arm in arms if arm.label not in part.labels)
    return f" Not {done} with them: {others}." if others else ""


def parts_of(
    name: str, arms: Sequence[Arm], key: str, read: Callable[[str, dict[str, Any], dict[str, str]], Part]
) -> list[Part]:
    """Reads the entry `key` of sweep.json for each sweep that has it in a known form.

    name: the prefix of the names of figures and tables; the number of the sweep is appended.
    """
    parts: list[Part] = []
    for _, content, labels in sweeps_of(arms):
        if content.get(key):
            try:
                parts.append(read(f"{name}-{len(parts) + 1}", content, labels))
            except (AttributeError, IndexError, KeyError, TypeError, ValueError):
                continue  # another version has written it, or another program
    return parts


def tunings_of(anchor: str, arms: Sequence[Arm]) -> list[Tuning]:
    """How the sweeps that trained these arms tuned them."""
    return parts_of(f"{anchor}-tuned", arms, "tuning", partial(tuning_of, order=[arm.label for arm in arms]))


def tuning_of(name: str, content: dict[str, Any], labels: dict[str, str], order: Sequence[str]) -> Tuning:
    """How one sweep tuned its arms."""
    tuning, jobs = content["tuning"], {str(job["name"]): job for job in content["jobs"]}
    tuned = {next((labels[it] for it in its["compare"] if it in labels), ""): its for its in tuning["arms"]}
    tuned = {label: tuned[label] for label in order if label in tuned}
    values = [str(value) for value in tuning["values"]]
    trials = {
        label: {value: [trial_of(jobs[job]) for job in its["tune"][value]] for value in values}
        for label, its in tuned.items()
    }
    first, *_ = tuned.values()
    metric, mode, seeds = str(first["monitor"]), str(first["mode"]), ", ".join(map(str, tuning["seeds"]))
    names = {job for its in tuning["arms"] for value in values for job in its["tune"][value]}
    further = sum(len(names) for its in tuning["arms"] for names in its.get("further", {}).values())
    lost = [str(its["arm"]) for its in tuning["arms"] if its["best"] is None]
    notes = [*map(str, tuning["notes"]), *(f"{it} is not compared, because runs failed at every value." for it in lost)]
    seconds = sum(as_number(jobs[job]["seconds"]) or 0 for job in names)
    updates = sum(as_number(jobs[job]["steps"]) or 0 for job in names)
    rows = []
    for label, its in tuned.items():
        best, means = str(its["best"]), [mean_of(trials[label][value]) for value in values]
        cells = [Cell("failed") if mean is None else number(mean, 4) for mean in means]
        marks = ["shown" if value == best else "" for value in values]
        marked = [replace(cell, mark=mark) for cell, mark in zip(cells, marks, strict=True)]
        rows.append([Cell(label), Cell(best), *marked])
    points = [
        Point(label, _positive(value), mean, min(scores), max(scores), len(scores))
        for label, its in trials.items()
        for value, each in its.items()
        if (mean := mean_of(each)) is not None and (scores := [it.value for it in each if it.value is not None])
    ]
    key = str(tuning["key"])
    title = f"{title_of_curve(metric)} against {key}"
    tried = [_positive(value) for value in values]
    styles = styles_of_arms(list(trials))
    figure = [curves(f"{name}-curve", title, points, styles, along=key, tried=tried)] if points else []
    at_values = [Column(value, True, f"mean at {key}={value}") for value in values]
    columns = [Column("arm"), Column(f"best {key}"), *at_values]
    added = f", of which {', '.join(map(str, tuning['added']))} were added at the edge" if tuning["added"] else ""
    better = "lower" if mode == "min" else "higher"
    about = (
        f"Every arm tried the same {len(values)} values of {key}{added}, with the tuning seeds {seeds}. It is compared "
        f"at the value with the best mean of {metric} ({better} is better) on the validation examples that select "
        f"checkpoints; no run of another seed played a part. Budget: {counted(len(names), 'run')}, "
        f"{updates:,.0f} updates, {seconds / 3600:.2f} hours. Bands reach from the smallest to the largest seed."
    )
    if further:
        compare = "run compares" if further == 1 else "runs compare"
        about += f" {further} {compare} the worse arm of a verdict at its other values, with the comparison seeds."
    table = Table(f"{name}-table", f"Mean of {metric} over the tuning seeds", columns, rows, can_copy=True)
    chosen = {label: str(its["best"]) for label, its in tuned.items()}
    return Tuning(key, values, mode, trials, chosen, about, figure, table, notes)


def _positive(value: object) -> float:
    """The number that a value of the file is or spells. Raises ValueError unless it is above 0."""
    found = as_number(float(str(value)))
    if found is None or found <= 0:
        raise ValueError(value)
    return found


def trial_of(job: dict[str, Any]) -> Trial:
    """A tuning run, as sweep.json lists it."""
    value = as_number(job["best_value"]) if job["state"] == RunState.FINISHED else None
    return Trial(value, job["metric"], None if value is None else as_number(job["score"]))


def mean_of(trials: Sequence[Trial]) -> float | None:
    """The mean of the metric that selects the value; None if a run failed."""
    return mean([trial.value for trial in trials])


def depending(tunings: Sequence[Tuning], verdicts: Sequence[Verdict]) -> list[str]:
    """The verdicts that depend on the value that was tuned, as sentences."""
    return [line for tuning in tunings for verdict in verdicts if (line := dependence(tuning, verdict))]


def dependence(tuning: Tuning, verdict: Verdict) -> str | None:
    """Says if a difference that is shown reverses or disappears when both arms use the same value; None otherwise.

    It disappears if the tuning seeds do not agree on its sign. The scores are those of the tuning runs, in the metric
    of the verdict if it is the primary one, and otherwise in the metric that selects the value.
    """
    if not verdict.is_shown or not {verdict.label, verdict.baseline} <= tuning.labels:
        return None
    is_better = verdict.difference.estimate * verdict.direction > 0
    reverses, disappears = list[str](), list[str]()
    for value in tuning.values:
        gains = gains_of(tuning, tuning.trials[verdict.label][value], tuning.trials[verdict.baseline][value], verdict)
        signs = {(gain > 0) - (gain < 0) for gain in gains}
        if not gains or signs == {1 if is_better else -1}:
            continue
        opposite = sum(gains) < 0 if is_better else sum(gains) > 0
        (reverses if opposite else disappears).append(value)
    if not reverses and not disappears:
        return None
    words = [
        *([f"has the opposite sign at {', '.join(reverses)}"] if reverses else []),
        *([f"is not of one sign over the tuning seeds at {', '.join(disappears)}"] if disappears else []),
    ]
    return (
        f"The verdict on {verdict.label} depends on {tuning.key}: if it has the same value as {verdict.baseline}, the "
        f"difference between their tuning runs {' and '.join(words)}."
    )


def gains_of(tuning: Tuning, ours: Sequence[Trial], theirs: Sequence[Trial], verdict: Verdict) -> list[float]:
    """How much better an arm is than the baseline, by tuning seed. Failed runs are worse; [] if both arms have some."""
    if mean_of(ours) is None or mean_of(theirs) is None:
        return [] if mean_of(ours) is mean_of(theirs) else [1.0 if mean_of(theirs) is None else -1.0]
    primary = all(trial.metric == verdict.metric and trial.score is not None for trial in (*ours, *theirs))
    sign = verdict.direction if primary else -1 if tuning.mode == "min" else 1
    values = [[(it.score if primary else it.value) or 0.0 for it in trials] for trials in (ours, theirs)]
    return [sign * (a - b) for a, b in zip(*values, strict=True)]


def costs_of(anchor: str, arms: Sequence[Arm]) -> list[EqualCost]:
    """What the updates of these arms cost, for each sweep that gave all arms the same budget."""
    return parts_of(f"{anchor}-costs", arms, "cost", partial(_cost_of, arms=arms))


def _cost_of(name: str, content: dict[str, Any], labels: dict[str, str], arms: Sequence[Arm]) -> EqualCost:
    """What the updates of the arms of one sweep cost."""
    jobs = {str(job["name"]): job for job in content["jobs"]}
    measured = {str(its["arm"]): its for its in content["cost"]["arms"]}
    known = {label: measured[jobs[job]["arm"]] for job, label in labels.items() if job in jobs}
    costs = {arm.label: known[arm.label] for arm in arms if arm.label in known}
    unit = str(next(iter(costs.values()))["unit"])
    drawn = [arm for arm in arms if arm.label in costs][:COLOURS]
    rows = [
        [
            Cell(label),
            Cell(f"{_positive(its['per_update']):.4g}", _positive(its["per_update"])),
            number(its["updates"], 0),
            Cell(f"{_positive(its['total']):.4g}", _positive(its["total"])),
        ]
        for label, its in costs.items()
    ]
    columns = [Column("arm"), Column(f"{unit} per update", True), Column("updates", True), Column(unit, True)]
    recorded = metric_rows({arm.label: runs_to_draw(arm) for arm in drawn})
    figures = [
        curves(
            f"{name}-{place}",
            f"{title_of_curve(metric)} against {unit}",
            [replace(it, step=it.step * _positive(costs[it.series]["per_update"])) for it in points],
            styles_of_arms([arm.label for arm in drawn]),
            along=unit,
        )
        for place, (metric, points) in enumerate(metric_curves(recorded).items(), start=1)
        if metric.startswith("val/")
    ]
    about = (
        f"Every arm trained for as many updates as cost the same as those of the baseline, in {unit} measured "
        "before the sweep, one arm at a time. The curves show validations against this cost; no verdict rests on them."
    )
    table = Table(f"{name}-table", "The cost of an update, and the updates of each arm", columns, rows)
    return EqualCost(unit, {label: f"{its['updates']:,}" for label, its in costs.items()}, about, table, figures)


def without_chosen(setup: Setup, parts: Sequence[Tuning | EqualCost], arms: Sequence[Arm]) -> Setup:
    """The setup without the confounds that one sweep chose for all arms by the same rule."""
    chosen = [key for key in chosen_by(parts, arms) if key in setup.confounds]
    return replace(setup, confounds=[key for key in setup.confounds if key not in chosen], chosen=chosen)


def chosen_by(parts: Sequence[Tuning | EqualCost], arms: Sequence[Arm]) -> list[str]:
    """The settings that one sweep chose for all arms by the same rule."""
    labels = {arm.label for arm in arms}
    return [part.key for part in parts if labels <= part.labels]
