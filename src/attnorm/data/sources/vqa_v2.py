"""VQA v2 (Goyal et al., 2017): the official question and annotation files, and files with features of the images.

{"questions": [{"question_id": int, "image_id": int, "question": str}]}
{"annotations": [{"question_id": int, "image_id": int, "question_type": str, "answer_type": str,
                  "answers": [{"answer": str}, ... ten of them]}]}
"""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attnorm.data import validation as checks
from attnorm.data.image_features import VisualSource
from attnorm.data.readers import text as files
from attnorm.data.readers.bad_rows import SHOWN, summary
from attnorm.data.readers.image_features import Files, view_problem
from attnorm.data.readers.text import read_json
from attnorm.data.sources.base import path_of
from attnorm.errors import DataError

log = logging.getLogger(__name__)

ANNOTATORS = 10


class Asked(NamedTuple):
    """A record of a question file."""

    id: str
    image: str
    question: str


class Annotated(NamedTuple):
    """A record of an annotation file.

    answer_type: "yes/no", "number" or "other". question_type: the first words of the question.
    """

    id: str
    image: str
    answers: list[str]
    answer_type: str
    question_type: str


class VqaV2(VisualSource):
    """Official files (.json, plain or gzipped), or None. A test split may have no annotations.

    features:  the paths of the views, the primary one first, in the formats of `readers.image_features`. They are the
               same for all splits. None: the questions alone.
    max_boxes: the maximum number of boxes of an image in a view; more raise an error.
    skip_bad:  skip unusable records and questions without an annotation, and log their number, instead of raising an
               error.
    """

    def __init__(
        self,
        *,
        train_questions: str | None,
        train_annotations: str | None,
        validation_questions: str | None = None,
        validation_annotations: str | None = None,
        test_questions: str | None = None,
        test_annotations: str | None = None,
        features: Sequence[str] | None = None,
        max_boxes: int = 100,
        skip_bad: bool = False,
    ):
        self.questions = {"train": train_questions, "validation": validation_questions, "test": test_questions}
        self.annotations = {
            "train": train_annotations,
            "validation": validation_annotations,
            "test": test_annotations,
        }
        self.features, self.max_boxes = [] if features is None else features, max_boxes
        self.skip_bad = skip_bad

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have questions."""
        return tuple(split for split, path in self.questions.items() if path is not None)

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Missing or empty files, a file that is used twice, and features that are not a list of readable paths."""
        problems = checks.whole_number("data.max_boxes", self.max_boxes) + checks.flag("data.skip_bad", self.skip_bad)
        if isinstance(self.features, str) or not isinstance(self.features, Sequence):
            problems.append(f"data.features={self.features}: must be a list of paths, one per view: [a.h5,b.h5]")
        else:
            for number, path in enumerate(self.features):
                problems += view_problem(f"data.features[{number}]={path}", Path(str(path)))
        for split in splits:
            paths = {"questions": self.questions[split], "annotations": self.annotations[split]}
            for part, file in paths.items():
                key = f"data.{split}_{part}={'null' if file is None else file}"
                if isinstance(file, str) and file:
                    problems += files.file_problem(key, Path(file))
                elif file is not None or (split, part) != ("test", "annotations"):
                    problems.append(f"{key}: the {split} split is asked for; name its file of {part}")
            if paths["questions"] and paths["questions"] == paths["annotations"]:
                problems.append(f"data.{split}_annotations={paths['annotations']}: this is the file of the questions")
        return problems

    def fingerprint(self, split: str) -> str:
        """A hash of the two files and of skip_bad."""
        named = [path for path in (self.questions[split], self.annotations[split]) if path is not None]
        return files.digest(["vqa_v2", 1, len(named), *["skip_bad"] * self.skip_bad], *map(Path, named))

    def rows(self, split: str) -> Iterator[tuple[str, str, str, str, str]]:
        """Streams (id, image, question, answers as JSON, answer type), with empty answers if there are no annotations.

        Raises ValueError if the files do not belong together, and for bad records unless they are skipped.
        """
        path = path_of(self.questions, split)
        asked = read_questions(path, self.skip_bad)
        if self.annotations[split] is None:
            yield from ((*it, "[]", "") for it in asked)
            return
        annotated = joined(asked, path, path_of(self.annotations, split), self.skip_bad)
        for it in (it for it in asked if it.id in annotated):
            found = annotated[it.id]
            yield *it, json.dumps(found.answers, ensure_ascii=False), found.answer_type

    def views(self, split: str, cache_dir: str | Path) -> Files | None:
        """The views of `features`, which are read in place."""
        return Files(self.features, self.max_boxes) if self.features else None


def joined(
    asked: list[Asked], questions: Path, annotations: Path, skip_bad: bool | None = None
) -> dict[str, Annotated]:
    """The annotations by question id.

    Raises ValueError unless there is exactly one annotation for each question, for the same image. With skip_bad, the
    others are skipped.
    """
    annotated = {it.id: it for it in read_annotations(annotations, skip_bad)}
    ids = {it.id for it in asked}
    if not ids & annotated.keys():
        raise DataError(
            f"{annotations}: contains no annotation for any question of {questions}; they belong to different splits"
        )
    without = [f"question {it.id} has no annotation" for it in asked if it.id not in annotated]
    unasked = [f"the annotation of {name} has no question" for name in annotated if name not in ids]
    images = [
        f"question {it.id} is on image {it.image}, but its annotation on image {annotated[it.id].image}"
        for it in asked
        if it.id in annotated and annotated[it.id].image != it.image
    ]
    if not skip_bad:
        for wrong in (without, unasked, images):
            _refuse(f"{questions} and {annotations}", wrong, skip_bad)
        return annotated
    of = {it.id: it.image for it in asked}
    fitting = {name: it for name, it in annotated.items() if of.get(name) == it.image}
    _report(f"{questions} and {annotations}", without + unasked + images, len(fitting))
    return fitting


def read_questions(path: Path, skip_bad: bool | None = None) -> list[Asked]:
    """The records of a question file.

    Raises ValueError that names the bad ones, unless they are skipped (skip_bad; None if the user has no such option).
    """
    return _read(path, "questions", "annotations", _asked, skip_bad)


def read_annotations(path: Path, skip_bad: bool | None = None) -> list[Annotated]:
    """The records of an annotation file, with the same errors as `read_questions`."""
    return _read(path, "annotations", "questions", _annotated, skip_bad)


def _read(path: Path, part: str, other: str, make: Callable[[dict], Any], skip_bad: bool | None) -> list:
    document = read_json(path)
    records = document.get(part) if isinstance(document, dict) else None
    if not isinstance(records, list):
        if isinstance(document, dict) and other in document:
            raise DataError(f"{path}: expected a file of {part}, but this one contains {other}; are the two swapped?")
        raise DataError(f'{path}: not an official VQA file: expected one JSON object {{"{part}": [...]}}')
    found, wrong = {}, []
    for number, record in enumerate(records):
        place = f"{part}[{number}]"
        try:
            made = make(record)
            if made.id in found:
                raise _Wrong("the id is repeated")
            found[made.id] = made
        except _Wrong as error:
            name = record.get("question_id") if isinstance(record, dict) else None
            wrong.append(f"{place}{'' if name is None else f' (question {name})'}: {error}")
    if not skip_bad or not found:
        _refuse(str(path), wrong, skip_bad)
    if not found:
        raise DataError(f"{path}: contains no {part}")
    _report(str(path), wrong, len(found))
    return list(found.values())


class _Wrong(Exception):
    """A problem with a record."""


def _asked(record: object) -> Asked:
    question = _text(record, "question")
    if not question.strip():
        raise _Wrong("the question is empty")
    return Asked(_id(record, "question_id"), _id(record, "image_id"), question)


def _annotated(record: object) -> Annotated:
    answers = _field(record, "answers")
    if not isinstance(answers, list) or len(answers) != ANNOTATORS:
        count = len(answers) if isinstance(answers, list) else json.dumps(answers)[:40]
        raise _Wrong(f"expected {ANNOTATORS} answers, got {count}")
    texts = [_text(answer, "answer") for answer in answers]
    types = (_text(record, name) for name in ("answer_type", "question_type"))
    return Annotated(_id(record, "question_id"), _id(record, "image_id"), texts, *types)


def _field(record: object, name: str) -> object:
    if not isinstance(record, dict):
        raise _Wrong(f"expected an object, got {json.dumps(record)[:40]}")
    if name not in record:
        raise _Wrong(f"no {name}")
    return record[name]


def _id(record: object, name: str) -> str:
    value = _field(record, name)
    if isinstance(value, bool) or not isinstance(value, (int, str)) or value == "":
        raise _Wrong(f"{name} is {json.dumps(value)[:40]}, not a number or text")
    return str(value)


def _text(record: object, name: str) -> str:
    value = _field(record, name)
    if not isinstance(value, str):
        raise _Wrong(f"{name} is {json.dumps(value)[:40]}, not text")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise _Wrong(f"{name} holds half of a surrogate pair, which is not text") from None
    return value


def _refuse(where: str, wrong: list[str], skip_bad: bool | None) -> None:
    """Raises ValueError if there are problems."""
    if wrong:
        more = [f"and {len(wrong) - SHOWN:,} more"] if len(wrong) > SHOWN else []
        remark = ["(data.skip_bad=true skips them)"] if skip_bad is False else []
        head = f"{where}: {len(wrong):,} problem{'s' * (len(wrong) != 1)}:"
        raise DataError("\n  ".join([head, *wrong[:SHOWN], *more, *remark]))


def _report(where: str, wrong: list[str], good: int) -> None:
    """Logs the skipped records, if there are any."""
    if wrong:
        log.warning("%s: %s", where, summary("record", len(wrong), good, "skipped", wrong))
