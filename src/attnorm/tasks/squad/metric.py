"""Exact match and F1 of answers, by the rules of SQuAD 1.1 (Rajpurkar et al., 2016) and 2.0 (2018).

Answers are normalized before they are compared: lower case, no characters of `string.punctuation`, no words a, an, the,
and single spaces. For the tokens P of the prediction and G of a gold answer, as bags,

    F1 = 2 |P n G| / (|P| + |G|)

The best value over the gold answers counts. The two official scripts differ for answers that are empty after
normalization:

    1.1 (every question has an answer, and there are no odds): such a gold answer counts like any other. F1 is 0 if P or
        G is empty.
    2.0 (some questions have no answer): such a gold answer is ignored. A question without gold answers has the empty
        answer. F1 is 1 if P and G are both empty.

As in the 2.0 script, a question has an answer if its list of answers is not empty. If the odds of no answer exceed a
threshold, the prediction counts as empty.
"""

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from attnorm.data.featurizer import Table
from attnorm.data.readers.records import described
from attnorm.data.readers.text import read_json
from attnorm.data.sources.squad import ScoredQuestion, read_squad
from attnorm.errors import DataError
from attnorm.tasks.results import matched
from attnorm.wording import counted, listed

Reference = tuple[str, Sequence[str]]  # (id, gold answers); without answers the question is impossible

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(answer: str) -> str:
    """Normalizes an answer for the comparison."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, gold: str) -> float:
    """1.0 if the normalized answers are equal, else 0.0."""
    return float(normalize(prediction) == normalize(gold))


def token_f1(prediction: str, gold: str) -> float:
    """F1 of the tokens of the normalized answers, in [0, 1]."""
    predicted, expected = normalize(prediction).split(), normalize(gold).split()
    if not predicted or not expected:
        return float(predicted == expected)
    common = (Counter(predicted) & Counter(expected)).total()
    return 2.0 * common / (len(predicted) + len(expected))


def score(
    predictions: Mapping[str, str],
    references: Sequence[Reference],
    null_odds: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """Returns `exact` and `f1` in percent of the `total` questions.

    `missing` questions have no prediction and score 0, as in the 1.1 script (the 2.0 script fails). `extra` predictions
    and odds, for other questions, are ignored, as in both scripts.

    If some questions are impossible, the result also contains HasAns_ and NoAns_ exact, f1 and total, for the questions
    with and without an answer. With `null_odds` (id -> odds or probability of no answer), an answer whose odds exceed
    `threshold` counts as empty, and best_exact, best_exact_thresh, best_f1 and best_f1_thresh are the results and
    values of the best threshold. In that case, pass answers that no threshold has emptied.

    Raises ValueError, naming the questions, for predictions without odds, and if no prediction is for a question of the
    references.
    """
    gold = dict(references)
    predictions, counts = matched(predictions, [name for name, _ in references])
    exact, f1 = _scores(predictions, gold, null_odds)
    if null_odds is None:
        return _means(exact, f1, gold) | counts
    if without := [name for name in predictions if name not in null_odds]:
        raise DataError(f"{counted(len(without), 'question')} with a prediction but no null odds: {listed(without)}")
    odds = {name: value for name, value in null_odds.items() if name in predictions}
    emptied = (_emptied(exact, gold, odds, threshold), _emptied(f1, gold, odds, threshold))
    results = _means(*emptied, gold) | counts
    for metric, scores in (("exact", exact), ("f1", f1)):
        best, at = best_threshold(predictions, scores, gold, odds)
        results |= {f"best_{metric}": best, f"best_{metric}_thresh": at}
    return results


def question_scores(
    predictions: Mapping[str, str],
    references: Sequence[Reference],
    null_odds: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, list[float]]:
    """`exact` and `f1` of each question in percent, in the order of the references. Their means are those of `score`.

    Every question must have a prediction that no threshold has emptied, and every prediction must have odds.
    """
    gold = dict(references)
    exact, f1 = _scores(predictions, gold, null_odds)
    if null_odds is not None:
        exact, f1 = (_emptied(values, gold, null_odds, threshold) for values in (exact, f1))
    return {name: [100.0 * values[question] for question in gold] for name, values in (("exact", exact), ("f1", f1))}


def _scores(
    predictions: Mapping[str, str], gold: Mapping[str, Sequence[str]], null_odds: Mapping[str, float] | None
) -> tuple[dict[str, float], dict[str, float]]:
    """Exact match and F1 in [0, 1] of each predicted answer. Questions without a prediction score 0."""
    exact, f1 = (dict.fromkeys(gold, 0.0) for _ in range(2))
    by_rules_of_2 = null_odds is not None or not all(gold.values())
    for name, prediction in predictions.items():
        answers = gold[name]
        if by_rules_of_2:
            answers = [answer for answer in answers if normalize(answer)] or [""]
        exact[name] = max(exact_match(prediction, answer) for answer in answers)
        if by_rules_of_2 or normalize(prediction):
            f1[name] = max(token_f1(prediction, answer) for answer in answers)
    return exact, f1


def _emptied(scores: dict[str, float], gold: dict, odds: Mapping[str, float], threshold: float) -> dict[str, float]:
    """The scores if answers whose odds of no answer exceed the threshold are empty."""
    return scores | {name: float(not gold[name]) for name, value in odds.items() if value > threshold}


def _means(exact: dict[str, float], f1: dict[str, float], gold: dict[str, Sequence[str]]) -> dict[str, float]:
    parts = {"": list(gold)}
    if not all(gold.values()):
        parts["HasAns_"] = [name for name, answers in gold.items() if answers]
        parts["NoAns_"] = [name for name, answers in gold.items() if not answers]
    results = {}
    for part, names in parts.items():
        if names:
            results[f"{part}exact"] = 100.0 * sum(exact[name] for name in names) / len(names)
            results[f"{part}f1"] = 100.0 * sum(f1[name] for name in names) / len(names)
            results[f"{part}total"] = len(names)
    return results


def best_threshold(
    predictions: Mapping[str, str],
    scores: Mapping[str, float],
    gold: Mapping[str, Sequence[str]],
    odds: Mapping[str, float],
) -> tuple[float, float]:
    """The best mean score (percent) over thresholds on the odds, and the smallest threshold that attains it.

    As in the official script, the search starts with no question answered (threshold 0.0) and accepts the answers one
    by one in the order of their odds. scores: id -> score of its answer. All questions of `gold` count; those without
    odds count as wrong.
    """
    current = best = float(sum(not gold[name] for name in odds))
    threshold = 0.0
    for name in sorted(odds, key=odds.__getitem__):
        current += scores[name] if gold[name] else -float(bool(predictions[name]))
        if current > best:
            best, threshold = current, odds[name]
    return 100.0 * best / len(gold), threshold


def references(texts: Table) -> list[tuple[str, list[str]]]:
    """(id, gold answers) of each row of a table of questions, as `preprocess.prepare` returns it."""
    table = texts.select_columns(["id", "answers"])[:]
    return [(name, json.loads(cell)["texts"]) for name, cell in zip(table["id"], table["answers"], strict=True)]


def read_references(path: str | Path) -> list[tuple[str, list[str]]]:
    """(id, gold answers) of each question of an official file. Raises ValueError that names the bad records."""
    questions = read_squad(Path(path), ScoredQuestion).settle(Path(path), None)
    return [(question.id, question.texts) for question in questions]


def read_predictions(path: str | Path) -> dict[str, str]:
    """Reads id -> answer from a JSON object. Raises ValueError for other content and for values that are not text."""
    form = '{"question id": "answer", ...}'
    return _read_mapping(Path(path), lambda value: value if isinstance(value, str) else None, "text", form)


def read_null_odds(path: str | Path) -> dict[str, float]:
    """Reads id -> odds (or probability) of no answer from a JSON object.

    Raises ValueError as `read_predictions` does, and also for NaN and for numbers that are too large for a float.
    """
    return _read_mapping(Path(path), _number, "a number", '{"question id": 0.5, ...}')


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _read_mapping(path: Path, convert: Callable[[object], object], called: str, form: str) -> dict:
    """The JSON object in a file with converted values. `convert` returns None for a value that is not `called`."""
    content = read_json(path, unique_keys=True)
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected one JSON object {form}, got {described(content)}")
    converted = {name: convert(value) for name, value in content.items()}
    for name, value in converted.items():
        if value is None:
            raise DataError(
                f"{path}: {listed([name])} has {json.dumps(content[name])[:60]}, not {called}; expected {form}"
            )
    return converted
