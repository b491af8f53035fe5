"""The official accuracy of visual question answering (Antol et al., 2015; VQA v2: Goyal et al., 2017).

    accuracy = mean over questions of the accuracy of the answer, in percent,        see `attnorm.tasks.vqa.answers`

It is computed over all questions, over those of each answer type ("yes/no", "number", "other"), and over those of each
question type (the first words, such as "what color is the"). Each value is rounded to two digits. Result files have the
format of the official evaluation: [{"question_id": 1, "answer": "yes"}, ...].
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from attnorm.data.featurizer import Table
from attnorm.data.readers.text import read_json
from attnorm.data.sources.vqa_v2 import read_annotations
from attnorm.errors import DataError
from attnorm.tasks.results import matched
from attnorm.tasks.vqa.answers import accuracy
from attnorm.wording import counted, listed

DIGITS = 2
FORM = '[{"question_id": 1, "answer": "yes"}, ...]'


class Reference(NamedTuple):
    """A question to be scored, with the annotators' answers. A type is "" if it is unknown."""

    id: str
    answers: Sequence[str]
    answer_type: str = ""
    question_type: str = ""


def score(predictions: Mapping[str, str], references: Sequence[Reference]) -> dict:
    """Returns `accuracy` in percent of the `total` questions, and the accuracy of each known answer and question type.

    `missing` is the number of questions without a prediction, which score 0. `extra` is the number of predictions for
    other questions, which are ignored. The official evaluation rejects results with missing or extra predictions.

    predictions: id -> answer.

    Raises ValueError, naming the ids, for repeated ids in the references, for references without an annotator's answer,
    for a prediction that is not text, and if no prediction is for a question of the references.
    """
    kept, counts = matched(predictions, [reference.id for reference in references])
    gold = {reference.id: reference for reference in references}
    if without := [name for name, reference in gold.items() if not reference.answers]:
        raise DataError(f"{counted(len(without), 'question')} without an annotator's answer: {listed(without)}")
    for name, answer in predictions.items():
        if not isinstance(answer, str):
            raise DataError(f"the answer to question {name} is {_shown(answer)}, not text")
    scores = {
        name: accuracy(kept[name], reference.answers) if name in kept else 0.0 for name, reference in gold.items()
    }
    return {
        "accuracy": _percent(scores.values()),
        "answer_types": _by_type(scores, {name: reference.answer_type for name, reference in gold.items()}),
        "question_types": _by_type(scores, {name: reference.question_type for name, reference in gold.items()}),
        "total": len(gold),
        **counts,
    }


def _by_type(scores: Mapping[str, float], types: Mapping[str, str]) -> dict[str, float]:
    groups = defaultdict(list)
    for name, type_ in types.items():
        groups[type_].append(scores[name])
    return {type_: _percent(groups[type_]) for type_ in sorted(groups) if type_}


def _percent(scores: Iterable[float]) -> float:
    scores = list(scores)
    return round(100.0 * sum(scores) / len(scores), DIGITS)


def references(texts: Table) -> list[Reference]:
    """The references in a table of questions on images, as `preprocess.prepare` returns it, without question types."""
    table = texts.select_columns(["id", "answers", "kind"])[:]
    return [Reference(*row) for row in zip(table["id"], map(json.loads, table["answers"]), table["kind"], strict=True)]


def read_references(path: str | Path) -> list[Reference]:
    """Reads the references from an official annotation file. Raises ValueError that names the bad records."""
    records = read_annotations(Path(path))
    return [Reference(record.id, record.texts, record.answer_type, record.question_type) for record in records]


def read_predictions(path: str | Path) -> dict[str, str]:
    """Reads id -> answer from a result file. Raises ValueError, naming the record, for invalid content."""
    content = read_json(Path(path), unique_keys=True)
    if not isinstance(content, list):
        raise DataError(f"{path}: expected a JSON list {FORM}, got {_shown(content)}")
    predictions = {}
    for number, record in enumerate(content):
        where = f"{path}: record {number}"
        if not isinstance(record, dict) or not {"question_id", "answer"} <= record.keys():
            raise DataError(f"{where} is {_shown(record)}; expected {FORM}")
        name, answer = record["question_id"], record["answer"]
        if isinstance(name, bool) or not isinstance(name, (int, str)):
            raise DataError(f"{where}: question_id is {_shown(name)}, not a number or text")
        if not isinstance(answer, str):
            raise DataError(f"{where}: the answer to question {name} is {_shown(answer)}, not text")
        if str(name) in predictions:
            raise DataError(f"{where}: question {name} is answered twice")
        predictions[str(name)] = answer
    return predictions


def results(predictions: Mapping[str, str]) -> str:
    """The content of a result file for predictions, id -> answer. Ids that are whole numbers are written as numbers."""
    records = [{"question_id": _number(name), "answer": answer} for name, answer in predictions.items()]
    return json.dumps(records, ensure_ascii=False)


def _number(name: str) -> int | str:
    return int(name) if name.isascii() and name.isdigit() and str(int(name)) == name else name


def _shown(value: object) -> str:
    return json.dumps(value, default=str)[:60]
