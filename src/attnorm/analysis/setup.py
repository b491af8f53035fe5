"""The experimental setup of a study in sentences, from what its runs have recorded: for a paper, beside a table."""

from collections.abc import Iterable

from attnorm.analysis.arms import as_number
from attnorm.analysis.comparison import Comparison
from attnorm.analysis.provenance import environment_facts
from attnorm.analysis.study import Study
from attnorm.analysis.table import title_of
from attnorm.analysis.verdict import FALSE_CALLS, listed_seeds
from attnorm.imports import short_name
from attnorm.wording import counted


def setup_sentences(study: Study) -> str:
    """Task, data, sizes, cost, seeds, tuning, metric and test, as far as they are recorded; "" if nothing is."""
    shown = next(iter((*study.comparisons, *study.reported)), None)
    if shown is None:
        return ""
    return " ".join([*(_training(study, shown) if study.arms else [study.origin]), *_test(study, shown)])


def _training(study: Study, shown: Comparison) -> list[str]:
    """How the arms were trained."""
    seeds = {scores.label: scores.values for scores in shown.scores}
    runs = [arm.finished[seed] for arm in study.arms for seed in seeds.get(arm.label, ())]
    facts = [environment_facts(run.environment) for run in runs]

    def setting(key: str) -> str:
        return " or ".join(dict.fromkeys(short_name(str(arm.settings.get(key))) for arm in study.arms))

    def recorded(fact: str) -> str:
        return " or ".join(dict.fromkeys(each[fact] for each in facts if fact in each))

    data = [run.summary.get("data") for run in runs]
    sizes = _span(each["train"].get("kept") for each in data if isinstance(each, dict) and "train" in each)
    parameters, updates = (_span(run.summary.get(key) for run in runs) for key in ("parameters", "steps"))
    hours = _span((as_number(run.summary.get("wall_seconds")) for run in runs), 3600)
    rates = {str(arm.settings.get("optimizer.lr")) for arm in study.arms}
    device, commit = recorded("the device"), recorded("the commit of the code")
    swept = [*(part.about() for part in study.tunings), *(part.about() for part in study.costs), *study.choices]
    return [
        f"The task is {shown.task} with data of {setting('data._target_')}"
        + f" ({sizes} for training)" * bool(sizes)
        + ".",
        f"The model is {setting('model._target_')}" + f" with {parameters} parameters" * bool(parameters) + ".",
        f"It was trained with {setting('optimizer._target_')}"
        + (f" at a learning rate of {rates.pop()}" if len(rates) == 1 else "")
        + f", for {updates} updates of at most {setting('data.batch_tokens')} tokens" * bool(updates)
        + ".",
        *([f"A run took {hours} hours" + f" on {device}" * bool(device) + "."] if hours else []),
        *(swept or ["No setting was tuned for single arms."]),
        f"The code is attnorm {recorded('the version of attnorm')}" + f", commit {commit}" * bool(commit) + ".",
    ]


def _test(study: Study, shown: Comparison) -> list[str]:
    """The seeds, the metric and the test."""
    seeds: dict[str, list[str]] = {}
    for scores in shown.scores:
        if scores.values:
            seeds.setdefault(listed_seeds(list(scores.values)), []).append(scores.label)
    have = [f"{', '.join(labels)} with {numbers}" for numbers, labels in seeds.items()]
    primary = ", the primary metric," if shown.is_primary else ""
    better = "lower" if shown.direction < 0 else "higher"
    lines = [
        f"The means are over {numbers}." if len(seeds) == 1 else f"The means are those of {'; '.join(have)}."
        for numbers in [*seeds][:1]
    ]
    lines.append(f"A {better} {title_of(shown.metric)}{primary} is better.")
    if not shown.verdicts:
        return lines
    difference = shown.verdicts[0].difference
    groups = f" in {counted(difference.clusters, 'group')}" if difference.clusters != difference.examples else ""
    rates = " at every value of the worse arm that may be its best one" if study.tunings else ""
    family = counted(shown.verdicts[0].family, "comparison")
    return [
        *lines,
        f"Differences from {shown.baseline} are paired by seed and by example{groups}. Their intervals "
        f"({difference.level * 100:g} %, unadjusted) and p-values are for new seeds and new examples, from two-way "
        f"random effects. The p-values are adjusted for {family} (Holm), and a difference is shown if its p-value is "
        f"below {FALSE_CALLS}{rates}.",
    ]


def _span(values: Iterable[object], unit: float = 1) -> str:
    """The smallest and the largest number, or the only one, in a unit; "" without numbers."""
    numbers = [number / unit for value in values if (number := as_number(value)) is not None]
    if not numbers:
        return ""
    texts = dict.fromkeys(f"{number:,.0f}" if unit == 1 else f"{number:.3g}" for number in (min(numbers), max(numbers)))
    return " to ".join(texts)
