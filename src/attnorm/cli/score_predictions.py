"""`eval.py metric=...`: a file of predictions, by anyone, scored by the official rules."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from attnorm import progress
from attnorm.config.overrides import EvalCommand
from attnorm.data.sources.vqa_v2 import joined, read_questions
from attnorm.errors import ConfigError, DataError
from attnorm.schema import Number, value_problems
from attnorm.tasks.headlines import rouge
from attnorm.tasks.results import Results
from attnorm.tasks.squad import metric as squad_metric
from attnorm.tasks.vqa import metric as vqa_metric
from attnorm.training import console

FILES = ("predictions", "references", "questions", "null_odds")  # the keys of conf/eval.yaml that name files,
OF_FILES = (*FILES, "null_threshold", "stemmer")  # and all that are for them
NEEDED = ("predictions", "references")


def squad(settings: dict) -> Results:
    """Exact match and F1; with odds of no answer, at the threshold and at the best one."""
    odds = settings["null_odds"]
    predictions = squad_metric.read_predictions(settings["predictions"])
    gold = squad_metric.read_references(settings["references"])
    null_odds = None if odds is None else squad_metric.read_null_odds(odds)
    found = _of(settings, lambda: squad_metric.score(predictions, gold, null_odds, settings["null_threshold"]))
    note = "best_*: of the answers that are not yet empty (a run's are in .spans.json)" if odds else ""
    return _questions(settings, found, note)


def vqa(settings: dict) -> Results:
    """The official accuracy, overall and by answer type."""
    questions, annotations = settings["questions"], Path(settings["references"])
    if questions is not None:
        joined(read_questions(Path(questions)), Path(questions), annotations)  # raises where they do not go together
    gold = vqa_metric.read_references(annotations)
    predictions = vqa_metric.read_predictions(settings["predictions"])
    found = _of(settings, lambda: vqa_metric.score(predictions, gold))
    kept = ("accuracy", "total", "missing", "extra")
    note = "the official evaluation refuses this file: it needs exactly one answer to each question"
    partial = found["missing"] or found["extra"]
    return _questions(settings, {name: found[name] for name in kept} | found["answer_types"], note if partial else "")


def lines(settings: dict) -> Results:
    """ROUGE-1, -2 and -L of texts, one per line, against one file of references or several."""
    path, references = settings["predictions"], settings["references"]
    paths = references if isinstance(references, list) else [references]
    texts = rouge.read_texts(path)
    if not texts:
        raise DataError(f"{path}: there are no lines to score")
    golds = rouge.read_references(paths, path, len(texts))
    scorer = rouge.Rouge(settings["stemmer"])
    found = scorer.detailed(progress.tracked(texts, "ROUGE"), golds)
    best = f"; the best F1 over {len(paths)} references counts" if len(paths) > 1 else ""
    return Results(Path(path).name, "texts", len(texts), found, note=scorer.describe() + best)


def _of(settings: dict, score: Callable[[], dict]) -> dict:
    """What `score` gives; its errors name the files."""
    try:
        return score()
    except ValueError as error:
        raise DataError(f"{settings['predictions']}, {settings['references']}: {error}") from error


def _questions(settings: dict, found: dict, note: str) -> Results:
    size = found.pop("total")
    return Results(Path(settings["predictions"]).name, "questions", size, found, note=note)


class Metric(NamedTuple):
    """How a file is scored, the keys that this reads, and whether there may be several files of references."""

    score: Callable[[dict], Results]
    reads: tuple[str, ...]
    several: bool = False


METRICS = {
    "squad": Metric(squad, ("predictions", "references", "null_odds", "null_threshold")),
    "vqa": Metric(vqa, ("predictions", "references", "questions")),
    "rouge": Metric(lines, ("predictions", "references", "stemmer"), several=True),
}


def score_file(command: EvalCommand, of_runs: tuple[str, ...]) -> None:
    """Scores predictions in a file against the official references. of_runs: the settings that only a run has."""
    settings, name = command.settings, command.settings["metric"]
    problems = [f"{key}: metric scores a file, not a run; type one of them" for key in of_runs if key in command.asked]
    problems += [f"{key}: a file has no run to change" for key, _ in command.typed]
    if name not in METRICS:
        raise ConfigError([*problems, f"metric={name}: allowed: {', '.join(METRICS)}"])
    metric = METRICS[name]
    problems += [f"{key}: metric={name} does not read it" for key in OF_FILES if key in command.asked - {*metric.reads}]
    for key in metric.reads:
        if key in FILES:
            problems += file_problems(key, settings[key], name, metric.several and key == "references")
        elif key == "null_threshold":
            problems += threshold_problems(settings[key], key in command.asked, settings["null_odds"])
        else:
            problems += value_problems(key, settings[key], bool)
    if problems:
        raise ConfigError(problems)
    console.show_scores(metric.score(settings), name)


def file_problems(key: str, value: object, metric: str, several: bool) -> list[str]:
    """What is wrong with the path, or the list of `several` paths, of a key: missing, no file, more than one."""
    if isinstance(value, list) and value and not several:
        return [f"{key}={value}: metric={metric} reads one file"]
    if value in (None, "", []):
        return [f"{key}: must be given, as in {key}=<file>"] if key in NEEDED else []
    paths = value if isinstance(value, list) else [value]
    return [f"{key}={path}: no such file" for path in paths if not Path(str(path)).is_file()]


def threshold_problems(threshold: object, typed: bool, odds: str | None) -> list[str]:
    """The problems of null_threshold: it is not a number, or it was typed without the odds that it applies to."""
    if problems := value_problems("null_threshold", threshold, Number):
        return list(problems)
    if typed and odds is None:
        return [f"null_threshold={threshold}: it says which null_odds are too high; type null_odds=<file> too"]
    return []
