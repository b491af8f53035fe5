"""The experimental setup of a study in sentences, from what its runs have recorded: for a paper, beside a table."""

from collections.abc import Iterable

from attnorm.analysis.arms import as_number
from attnorm.analysis.comparison import Comparison
from attnorm.analysis.provenance import origin_of
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
    origins = [origin_of(run.recorded) for run in runs]

    def setting(key: str) -> str:
        values = (str(arm.settings.get(key, "unknown")) for arm in study.arms)
        return " or ".join(dict.fromkeys(short_name(value) if key.endswith("_") else value for value in values))

    def recorded(name: str) -> str:
        return " or ".join(dict.fromkeys(each[name] for each in origins if name in each)) or "unknown"

    data = [each for run in runs if isinstance(each := run.summary.get("data"), dict)]
    sizes = _span(train.get("kept") for each in data if isinstance(train := each.get("train"), dict))
    parameters, updates = (_span(run.summary.get(key) for run in runs) for key in ("parameters", "steps"))
    hours = _span((as_number(run.summary.get("wall_seconds")) for run in runs), 3600)
    rate, code, device = setting("optimizer.lr"), recorded("the version of attnorm"), recorded("the device")
    commit = recorded("the commit of the code")  # or "an installed package, version ..."
    tuned = [*(tuning.about() for tuning in study.tunings), *study.choices]
    return [
        f"The task is {shown.task} with data of {setting('data._target_')} ({sizes} examples for training).",
        f"The model is {setting('model._target_')} with {parameters} parameters, trained with "
        f"{setting('optimizer._target_')}{f' at a learning rate of {rate}' * (' or ' not in rate)}, for {updates} "
        f"updates of at most {setting('data.batch_tokens')} tokens, in {hours} hours per run on {device}.",
        *(tuned or ["No setting was tuned for single arms."]),
        f"The code is attnorm {code}, {'' if commit.startswith('an installed') else 'commit '}{commit}.",
    ]


def _test(study: Study, shown: Comparison) -> list[str]:
    """The seeds, the metric and the test."""
    seeds = {scores.label: listed_seeds(list(scores.values)) for scores in shown.scores if scores.values}
    means = {each: ", ".join(label for label in seeds if seeds[label] == each) for each in seeds.values()}
    over = "; ".join(each if len(means) == 1 else f"{each} ({labels})" for each, labels in means.items())
    primary, better = ", the primary metric," * shown.is_primary, "lower" if shown.direction < 0 else "higher"
    lines = [f"The means are over {over}."] * bool(over)
    lines.append(f"A {better} {title_of(shown.metric)}{primary} is better.")
    for verdict in shown.verdicts[:1]:
        sizes = verdict.difference
        groups = f" in {counted(sizes.clusters, 'group')}" * (sizes.clusters != sizes.examples)
        if sizes.examples == 1:
            paired = f"Differences from {shown.baseline} are paired by seed. Nothing is said about new examples."
            return [*lines, paired]
        rates = " at every value of the worse arm that may be its best one" * bool(study.tunings)
        lines.append(
            f"Differences from {shown.baseline} are paired by seed and by example{groups}. Their intervals "
            f"({sizes.level * 100:g} %, unadjusted) and p-values are for new seeds and new examples, from two-way "
            f"random effects. The p-values are adjusted for {counted(verdict.family, 'comparison')} (Holm), and a "
            f"difference is shown if its p-value is below {FALSE_CALLS}{rates}."
        )
    return lines


def _span(values: Iterable[object], unit: float = 1) -> str:
    """The smallest and the largest number, or the only one, in a unit."""
    numbers = [number / unit for value in values if (number := as_number(value)) is not None]
    if not numbers:
        return "unknown"
    texts = dict.fromkeys(f"{number:,.0f}" if unit == 1 else f"{number:.3g}" for number in (min(numbers), max(numbers)))
    return " to ".join(texts)
