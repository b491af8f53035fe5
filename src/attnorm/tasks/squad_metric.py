"""Exact match and F1 of answers, by the rules of SQuAD 1.1 (Rajpurkar et al., 2016) and 2.0 (2018).

Answers are compared normalized: lower case, without the marks of `string.punctuation`, without the words a, an, the,
single spaces. For the tokens P of the prediction and G of a gold answer, as bags,

    F1 = 2 |P n G| / (|P| + |G|),        and where either is empty: 1 if both are, else 0

The best over the gold answers counts. A question without gold answers has the empty one. Where the odds of no answer
exceed a threshold, the prediction counts as empty.
"""

import json
import logging
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from attnorm.data.files import read_json
from attnorm.data.squad import read_questions

log = logging.getLogger(__name__)

Reference = tuple[str, Sequence[str]]  # (id, gold answers), no answers: impossible
NAMED = 10  # ids that a message names

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(answer: str) -> str:
    """What is compared of an answer."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, gold: str) -> float:
    """1.0 if the normalized answers are equal, else 0.0."""
    return float(normalize(prediction) == normalize(gold))


def token_f1(prediction: str, gold: str) -> float:
    """F1 of the tokens of the normalized answers, in [0, 1]."""
    predicted, wanted = normalize(prediction).split(), normalize(gold).split()
    if not predicted or not wanted:
        return float(predicted == wanted)
    common = (Counter(predicted) & Counter(wanted)).total()
    return 2.0 * common / (len(predicted) + len(wanted))


def score(
    predictions: Mapping[str, str],
    references: Sequence[Reference],
    null_odds: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """`exact` and `f1` in percent of the `total` questions, of which `missing` have no prediction and count 0.

    Where some questions are impossible, also HasAns_ and NoAns_ exact, f1, total of the questions with and without an
    answer. With `null_odds` (id -> odds or probability of no answer), answers whose odds are above `threshold` count as
    empty, and best_exact, best_exact_thresh, best_f1, best_f1_thresh say what the best threshold would have given; give
    answers there that are not yet emptied by a threshold. Raises ValueError, naming them, for ids that are not among
    the references, and for predicted questions without odds.
    """
    gold = dict(references)
    if not gold:
        raise ValueError("there are no questions to score")
    if len(gold) < len(references):
        twice = [name for name, count in Counter(name for name, _ in references).items() if count > 1]
        raise ValueError(f"the references have questions twice: {_names(twice)}")
    _refuse_unknown("predictions", predictions, gold)
    missing = [name for name in gold if name not in predictions]
    if missing:
        log.warning("%s without a prediction counted as wrong: %s", _questions(len(missing)), _names(missing))
    exact, f1 = (dict.fromkeys(gold, 0.0) for _ in range(2))
    for name, prediction in predictions.items():
        answers = [answer for answer in gold[name] if normalize(answer)] or [""]
        exact[name] = max(exact_match(prediction, answer) for answer in answers)
        f1[name] = max(token_f1(prediction, answer) for answer in answers)
    if null_odds is None:
        return _means(exact, f1, gold) | {"missing": len(missing)}
    _refuse_unknown("null odds", null_odds, gold)
    if without := [name for name in predictions if name not in null_odds]:
        raise ValueError(f"{_questions(len(without))} with a prediction but without null odds: {_names(without)}")
    odds = {name: value for name, value in null_odds.items() if name in predictions}
    emptied = [_emptied(scores, gold, odds, threshold) for scores in (exact, f1)]
    results = _means(*emptied, gold) | {"missing": len(missing)}
    for metric, scores in (("exact", exact), ("f1", f1)):
        best, at = best_threshold(predictions, scores, gold, odds)
        results |= {f"best_{metric}": best, f"best_{metric}_thresh": at}
    return results


def _emptied(scores: dict[str, float], gold: dict, odds: dict[str, float], threshold: float) -> dict[str, float]:
    """The scores when answers whose odds of none are above the threshold are empty."""
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
    """The best mean score (percent) over thresholds on the odds, and the smallest one that gives it.

    As the official script does it: from "no question is answered" (threshold 0.0), answers are let in one by one in
    the order of their odds. scores: id -> score of its answer; all of `gold` are counted, those without odds as wrong.
    """
    current = best = float(sum(not gold[name] for name in odds))
    threshold = 0.0
    for name in sorted(odds, key=odds.__getitem__):
        current += scores[name] if gold[name] else -float(bool(predictions[name]))
        if current > best:
            best, threshold = current, odds[name]
    return 100.0 * best / len(gold), threshold


def references(texts) -> list[tuple[str, list[str]]]:
    """(id, gold answers) of each row of a table of questions, as `data.corpus.prepare` makes it."""
    table = texts.select_columns(["id", "answers"])[:]
    return [(name, json.loads(cell)["texts"]) for name, cell in zip(table["id"], table["answers"], strict=True)]


def read_references(path: str | Path) -> list[tuple[str, list[str]]]:
    """(id, gold answers) of each question of an official file. Raises ValueError naming the bad records."""
    questions, bad = read_questions(Path(path), answers_in_context=False)
    if bad:
        listed = "; ".join(map(str, bad[:NAMED]))
        raise ValueError(f"{path}: {len(bad):,} bad records: {listed}{'; ...' * (len(bad) > NAMED)}")
    return [(question.id, question.texts) for question in questions]


def read_predictions(path: str | Path) -> dict[str, str]:
    """id -> answer, from a JSON object. Raises ValueError for what is none, or holds what is not text."""
    return _read_mapping(Path(path), str, "text", '{"question id": "answer", ...}')


def read_null_odds(path: str | Path) -> dict[str, float]:
    """id -> odds (or probability) of no answer, from a JSON object. Raises ValueError as `read_predictions` does."""
    return _read_mapping(Path(path), (int, float), "a number", '{"question id": 0.5, ...}')


def _read_mapping(path: Path, kind: type | tuple[type, ...], called: str, form: str) -> dict:
    content = read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path}: one JSON object {form} is expected, not {_called(content)}")
    for name, value in content.items():
        if not isinstance(value, kind) or isinstance(value, bool) or value != value:
            raise ValueError(f"{path}: {name} has {json.dumps(value)[:60]}, not {called}; {form} is expected")
    return content


def _called(value: object) -> str:
    return {list: "a list", str: "a text"}.get(type(value), json.dumps(value))


def _refuse_unknown(what: str, named: Mapping[str, object], gold: Mapping[str, object]) -> None:
    if unknown := [name for name in named if name not in gold]:
        raise ValueError(
            f"the {what} are for {_questions(len(unknown))} that the references do not have: {_names(unknown)}"
        )


def _questions(count: int) -> str:
    return f"{count:,} question{'s' * (count != 1)}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
