"""`eval.py metric=...`: anyone's predictions, in the official formats, scored by the official rules."""

from collections.abc import Callable
from pathlib import Path

from attnorm.data.vqa_v2 import joined, read_questions
from attnorm.tasks import squad_metric, vqa_metric
from attnorm.training import console
from attnorm.training.errors import ConfigError
from attnorm.training.rerun import Rerun
from attnorm.training.rules import is_number
from attnorm.training.scores import Scores

OF_FILES = ("predictions", "references", "questions", "null_odds", "null_threshold")  # the keys of conf/eval.yaml


def squad(settings: dict) -> dict[str, float]:
    """Exact match and F1; with odds of no answer, at the threshold and at the best one."""
    odds = settings["null_odds"]
    return squad_metric.score(
        squad_metric.read_predictions(settings["predictions"]),
        squad_metric.read_references(settings["references"]),
        None if odds is None else squad_metric.read_null_odds(odds),
        settings["null_threshold"],
    )


def vqa(settings: dict) -> dict[str, float]:
    """The official accuracy, overall and by answer type."""
    questions, annotations = settings["questions"], Path(settings["references"])
    if questions is not None:
        joined(read_questions(Path(questions)), Path(questions), annotations)  # raises where they do not go together
    references = vqa_metric.read_references(annotations)
    predictions = vqa_metric.read_predictions(settings["predictions"])
    try:
        found = vqa_metric.score(predictions, references)
    except ValueError as error:
        raise ValueError(f"{settings['predictions']}, {annotations}: {error}") from error
    return {name: found[name] for name in ("accuracy", "total", "missing")} | found["answer_types"]


METRICS: dict[str, tuple[Callable[[dict], dict[str, float]], tuple[str, ...]]] = {  # and the keys that each reads
    "squad": (squad, ("predictions", "references", "null_odds", "null_threshold")),
    "vqa": (vqa, ("predictions", "references", "questions")),
}
NEEDED = ("predictions", "references")


def score_file(command: Rerun, asked: set[str], of_runs: tuple[str, ...]) -> None:
    """Scores predictions in a file against the official references. asked: the settings that are not the defaults;
    of_runs: those that only a run has."""
    settings = command.settings
    problems = [f"{key}: metric scores a file, not a run; type one of them" for key in of_runs if key in asked]
    problems += [f"{key}: a file has no run to change" for key, _ in command.typed]
    if settings["metric"] not in METRICS:
        raise ConfigError([*problems, f"metric={settings['metric']}: allowed are {', '.join(METRICS)}"])
    score, reads = METRICS[settings["metric"]]
    unread = [key for key in OF_FILES if key in asked - set(reads)]
    problems += [f"{key}: metric={settings['metric']} does not read it" for key in unread]
    for key in reads:
        if key == "null_threshold":
            problems += threshold_problems(settings["null_threshold"], key in asked, settings["null_odds"])
        elif settings[key] is not None and not Path(str(settings[key])).is_file():
            problems.append(f"{key}={settings[key]}: no such file")
        elif settings[key] is None and key in NEEDED:
            problems.append(f"{key}: has to be given, as {key}=<file>")
    if problems:
        raise ConfigError(problems)
    found = score(settings)
    size, scored = int(found.pop("total")), Path(settings["predictions"]).name
    note = "best_*: of the answers that are not yet empty (a run's are in .spans.json)" if settings["null_odds"] else ""
    console.show_scores(Scores(scored, "questions", size, found, note=note), settings["metric"])


def threshold_problems(threshold: object, typed: bool, odds: str | None) -> list[str]:
    """What is wrong with null_threshold: that it is no number, or was typed without the odds that it is for."""
    if not is_number(threshold):
        return [f"null_threshold={threshold}: allowed are numbers"]
    if typed and odds is None:
        return [f"null_threshold={threshold}: it says which null_odds are too high; type null_odds=<file> too"]
    return []
