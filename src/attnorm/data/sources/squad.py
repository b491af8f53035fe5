"""SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016, 2018): questions about paragraphs, answered by a span of the paragraph.

{"data": [{"paragraphs": [{"context": str, "qas": [{"id": str, "question": str, "is_impossible": bool,
                                                    "answers": [{"text": str, "answer_start": int}]}]}]}]}
"""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnorm.data import validation as checks
from attnorm.data.readers import text as files
from attnorm.data.readers.bad_rows import summary
from attnorm.data.sources.base import QUESTIONS, Source, path_of
from attnorm.errors import DataError

log = logging.getLogger(__name__)

EXPECTED = 'a SQuAD file is one JSON object {"data": [{"paragraphs": [{"context": ..., "qas": [...]}]}]}'


@dataclass(frozen=True)
class Question:
    """A record of the file.

    starts: the character positions of the answers in the context (empty if only the texts were requested). texts: empty
            for
    the impossible questions of SQuAD 2.0.
    """

    id: str
    context: str
    question: str
    texts: list[str]
    starts: list[int]


@dataclass(frozen=True)
class Bad:
    """An unusable record: its id (or its path in the JSON if it has no id), and the reason."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


class Squad(Source):
    """`train`, `validation` and `test` are official SQuAD files (.json, also with .gz), or None.

    skip_bad: skip bad records and report their number, instead of raising an error. Plausible answers to impossible
    questions are ignored.
    """

    schema = QUESTIONS

    def __init__(
        self,
        *,
        train: str | None,
        validation: str | None = None,
        test: str | None = None,
        skip_bad: bool = False,
    ):
        self.paths = {"train": train, "validation": validation, "test": test}
        self.skip_bad = skip_bad

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have a path."""
        return tuple(split for split, path in self.paths.items() if path is not None)

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Missing or empty files; a skip_bad that is not true or false."""
        problems = checks.split_files(self.paths, splits, files.file_problem)
        return problems + checks.flag("data.skip_bad", self.skip_bad)

    def fingerprint(self, split: str) -> str:
        """A hash of the file and of skip_bad."""
        return files.digest(["squad", 1, self.skip_bad], path_of(self.paths, split))

    def rows(self, split: str) -> Iterator[tuple[str, str, str, str]]:
        """Streams (id, context, question, answers as JSON).

        Raises ValueError that names the bad records before the first row, unless they are skipped.
        """
        path = path_of(self.paths, split)
        questions, bad = read_questions(path)
        if bad and not self.skip_bad:
            raise DataError(f"{path}: {_bad_records(bad, len(questions), 'data.skip_bad=true skips them')}")
        if bad:
            log.warning("%s: %s", path, _bad_records(bad, len(questions), "skipped"))
        for it in questions:
            answers = json.dumps({"texts": it.texts, "starts": it.starts}, ensure_ascii=False)
            yield it.id, it.context, it.question, answers


def _bad_records(bad: list[Bad], good: int, remark: str) -> str:
    return summary("record", len(bad), good, remark, list(map(str, bad)))


def read_questions(path: Path, answers_in_context: bool = True) -> tuple[list[Question], list[Bad]]:
    """Returns the good and the bad records of a file, in order. A bad article or paragraph counts as one record.

    answers_in_context: whether an answer must occur in the context at its start, and is_impossible must agree with the
    answers. Scoring requires neither. Raises ValueError if the file is not a SQuAD file at all.
    """
    try:
        document = files.read_json(path)
    except ValueError as error:
        raise DataError(f"{error}; {EXPECTED}") from error
    if not isinstance(document, dict) or not isinstance(document.get("data"), list):
        raise DataError(f"{path}: not a SQuAD file, it contains {_shape(document)}; {EXPECTED}")
    good, bad = [], []
    places: dict[str, str] = {}
    for place, context, record in _records(document):
        try:
            if context is None:
                raise _Wrong(place, record)
            question = _question(place, context, record, answers_in_context)
            if question.id in places:
                raise _Wrong(question.id, f"{place} has the id of {places[question.id]}")
        except _Wrong as wrong:
            bad.append(Bad(*wrong.args))
        else:
            places[question.id] = place
            good.append(question)
    return good, bad


class _Wrong(Exception):
    """The arguments are the name of a record and the problem with it."""


def _records(document: dict) -> Iterator[tuple[str, str | None, object]]:
    """Yields (path in the JSON, context, record) for each question, and (path, None, reason) for malformed parts."""
    for a, article in enumerate(document["data"]):
        place = f"data[{a}]"
        if not isinstance(article, dict) or not isinstance(article.get("paragraphs"), list):
            yield place, None, f'expected an object with a list "paragraphs", got {_shape(article)}'
            continue
        for p, paragraph in enumerate(article["paragraphs"]):
            inner = f"{place}.paragraphs[{p}]"
            if not isinstance(paragraph, dict) or not isinstance(paragraph.get("qas"), list):
                yield inner, None, f'expected an object with a list "qas", got {_shape(paragraph)}'
                continue
            try:
                context = _text(inner, paragraph, "context", inner)
            except _Wrong as wrong:
                yield inner, None, wrong.args[1]
                continue
            for q, record in enumerate(paragraph["qas"]):
                yield f"{inner}.qas[{q}]", context, record


def _question(place: str, context: str, record: object, in_context: bool) -> Question:
    if not isinstance(record, dict):
        raise _Wrong(place, f"expected an object, got {_shape(record)}")
    name = _text(place, record, "id", place)
    question = _text(name, record, "question", place)
    if not question.strip():
        raise _Wrong(name, "the question is empty")
    answers, impossible = record.get("answers", []), record.get("is_impossible", False)
    if in_context and not isinstance(impossible, bool):  # the official scorers only use the answers
        raise _Wrong(name, f"{place}.is_impossible is {_shape(impossible)}, not true or false")
    if not isinstance(answers, list):
        raise _Wrong(name, f"{place}.answers is {_shape(answers)}, not a list")
    if in_context and impossible and answers:
        raise _Wrong(name, "is_impossible is true, but it has answers")
    if not impossible and not answers and (in_context or "answers" not in record):
        raise _Wrong(name, "no answers, and is_impossible is not true")
    texts, starts = [], []
    for number, answer in enumerate(answers):
        inner = f"{place}.answers[{number}]"
        if not isinstance(answer, dict):
            raise _Wrong(name, f"{inner} is {_shape(answer)}, not an object")
        texts.append(_text(name, answer, "text", inner))
        if in_context:
            starts.append(_start(name, answer, inner, context))
    return Question(name, context, question, texts, starts)


def _start(name: str, answer: dict, place: str, context: str) -> int:
    """The start of the answer. Raises _Wrong if its text does not occur there."""
    text, start = answer["text"], answer.get("answer_start")
    if not isinstance(start, int) or isinstance(start, bool):
        raise _Wrong(name, f"{place}.answer_start is {_shape(start)}, not a whole number")
    if not text.strip():
        raise _Wrong(name, f"{place}.text is empty")
    if start < 0 or not context.startswith(text, start):
        there = context[start : start + len(text)] if start >= 0 else ""
        elsewhere = _occurrences(text, context)
        raise _Wrong(
            name,
            f"the answer {_short(text)} is not at character {start} of the context, which has {_short(there)} there; "
            + (f"it occurs at {', '.join(map(str, elsewhere))}" if elsewhere else "it does not occur in it"),
        )
    return start


def _occurrences(text: str, context: str) -> list[int]:
    places = [context.find(text)]
    while places[-1] >= 0 and len(places) < 4:
        places.append(context.find(text, places[-1] + 1))
    return [place for place in places if place >= 0][:3]


def _text(name: str, record: dict, key: str, place: str) -> str:
    """A text of a record. Raises _Wrong if it is missing or is not text."""
    value = record.get(key)
    if not isinstance(value, str):
        raise _Wrong(name, f"{place}.{key} is {_shape(value) if key in record else 'missing'}, not text")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise _Wrong(name, f"{place}.{key} holds half of a surrogate pair, which is not text") from None
    return value


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


def _shape(value: object) -> str:
    """A description of a JSON value, for messages."""
    if isinstance(value, dict):
        return f"an object with {', '.join(map(repr, list(value)[:5])) or 'nothing in it'}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return "null" if value is None else _short(value) if isinstance(value, str) else json.dumps(value)
