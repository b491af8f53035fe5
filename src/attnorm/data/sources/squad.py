"""SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016, 2018): questions about paragraphs, answered by a span of the paragraph.

{"data": [{"paragraphs": [{"context": str, "qas": [{"id": str, "question": str, "is_impossible": bool,
                                                    "answers": [{"text": str, "answer_start": int}]}]}]}]}
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

from pydantic import Field, model_validator

from attnorm.data import validation as checks
from attnorm.data.readers import text as files
from attnorm.data.readers.records import Identified, Record, Records, Text, Words, described, excerpt
from attnorm.data.sources.base import QUESTIONS, NamedSplits, path_of
from attnorm.errors import DataError

UNANSWERED = "no answers, and is_impossible is not true"
EXPECTED = 'a SQuAD file is one JSON object {"data": [{"paragraphs": [{"context": ..., "qas": [...]}]}]}'


Asked = TypeVar("Asked", bound="ScoredQuestion")


class Article(Record):
    """An article of the file."""

    paragraphs: list[object]


class Paragraph(Record):
    """A paragraph of an article, with the questions about it."""

    context: Text
    qas: list[object]


class SquadAnswer(Record):
    """An answer to a question."""

    text: Text


class Span(SquadAnswer):
    """An answer that begins at the character `answer_start` of the context."""

    text: Words
    answer_start: int


class ScoredQuestion(Identified):
    """A question as the official scorers read it. They do not look for the answers in the context."""

    context: Text
    question: Words
    answers: list[SquadAnswer] = Field(default_factory=list)
    is_impossible: object = False

    @property
    def texts(self) -> list[str]:
        """The answers; none for the impossible questions of SQuAD 2.0."""
        return [answer.text for answer in self.answers]

    @model_validator(mode="after")
    def _has_answers(self) -> "ScoredQuestion":
        if not self.is_impossible and "answers" not in self.model_fields_set:
            raise ValueError(UNANSWERED)
        return self


class SquadQuestion(ScoredQuestion):
    """A question whose answers occur in the context, and whose `is_impossible` agrees with them."""

    answers: list[Span] = Field(default_factory=list)  # type: ignore[assignment]
    is_impossible: bool = False

    @model_validator(mode="after")
    def _fits_context(self) -> "SquadQuestion":
        if self.is_impossible and self.answers:
            raise ValueError("is_impossible is true, but it has answers")
        if not self.is_impossible and not self.answers:
            raise ValueError(UNANSWERED)
        for answer in self.answers:
            text, start = answer.text, answer.answer_start
            if start >= 0 and self.context.startswith(text, start):
                continue
            actual = self.context[start : start + len(text)] if start >= 0 else ""
            matches = islice(re.finditer(f"(?={re.escape(text)})", self.context), 3)
            elsewhere = ", ".join(str(match.start()) for match in matches)
            raise ValueError(
                f"the answer {excerpt(text)} is not at character {start} of the context, which has {excerpt(actual)} "
                f"there; {f'it occurs at {elsewhere}' if elsewhere else 'it does not occur in it'}"
            )
        return self


class Squad(NamedSplits):
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
        self.named = {"train": train, "validation": validation, "test": test}
        self.skip_bad = skip_bad

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Missing or empty files."""
        return checks.split_files(self.named, splits, files.file_problem)

    def fingerprint(self, split: str) -> str:
        """A hash of the file and of skip_bad."""
        return files.digest(["squad", 1, self.skip_bad], path_of(self.named, split))

    def rows(self, split: str) -> Iterator[tuple[str, str, str, str]]:
        """Streams (id, context, question, answers as JSON).

        Raises ValueError that names the bad records before the first row, unless they are skipped.
        """
        path = path_of(self.named, split)
        for question in read_squad(path, SquadQuestion).settle(path, self.skip_bad):
            starts = [answer.answer_start for answer in question.answers]
            answers = json.dumps({"texts": question.texts, "starts": starts}, ensure_ascii=False)
            yield question.id, question.context, question.question, answers


def read_squad(path: Path, model: type[Asked]) -> Records[Asked]:
    """The records of a file. A bad article or paragraph counts as one bad record.

    model: `SquadQuestion`, or `ScoredQuestion` for scoring. Raises ValueError if the file is not a SQuAD file at all.
    """
    try:
        document = files.read_json(path)
    except ValueError as error:
        raise DataError(f"{error}; {EXPECTED}") from error
    if not isinstance(document, dict) or not isinstance(document.get("data"), list):
        raise DataError(f"{path}: not a SQuAD file, it contains {described(document)}; {EXPECTED}")
    questions = Records(model)
    for a, record in enumerate(document["data"]):
        article = questions.part(Article, record, f"data[{a}]")
        for p, record in enumerate(article.paragraphs if article else ()):
            if (paragraph := questions.part(Paragraph, record, f"data[{a}].paragraphs[{p}]")) is None:
                continue
            for q, record in enumerate(paragraph.qas):
                with_context = {**record, "context": paragraph.context} if isinstance(record, dict) else record
                questions.add(with_context, f"data[{a}].paragraphs[{p}].qas[{q}]")
    return questions
