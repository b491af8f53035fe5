"""VQA v2 (Goyal et al., 2017): the official question and annotation files, and files with features of the images.

{"questions": [{"question_id": int, "image_id": int, "question": str}]}
{"annotations": [{"question_id": int, "image_id": int, "question_type": str, "answer_type": str,
                  "answers": [{"answer": str}, ... ten of them]}]}
"""

import json
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import Field

from attnorm.data.image_features import VisualSource
from attnorm.data.readers import text as files
from attnorm.data.readers.bad_rows import settle
from attnorm.data.readers.feature_files import FeatureFiles, view_problem
from attnorm.data.readers.records import Entry, Id, Identified, Record, Records, Text, Words
from attnorm.data.readers.text import read_json
from attnorm.data.sources.base import NamedSplits, path_of
from attnorm.errors import DataError
from attnorm.schema import Count

ANNOTATORS = 10
Paths = typing.Annotated[Sequence[str], Field(description="a list of paths, one per view: [a.h5,b.h5]")]


class Asked(Identified):
    """A record of a question file."""

    id: Id = Field(alias="question_id")
    image: Id = Field(alias="image_id")
    question: Words


class VqaAnswer(Record):
    """An answer of one annotator."""

    answer: Text


class Annotated(Identified):
    """A record of an annotation file.

    answer_type: "yes/no", "number" or "other". question_type: the first words of the question.
    """

    id: Id = Field(alias="question_id")
    image: Id = Field(alias="image_id")
    answers: list[VqaAnswer] = Field(min_length=ANNOTATORS, max_length=ANNOTATORS)
    answer_type: Text
    question_type: Text

    @property
    def texts(self) -> list[str]:
        """The answers."""
        return [each.answer for each in self.answers]


class VqaV2(NamedSplits, VisualSource):
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
        features: Paths | None = None,
        max_boxes: Count = 100,
        skip_bad: bool = False,
    ):
        self.named = {"train": train_questions, "validation": validation_questions, "test": test_questions}
        self.annotations = {
            "train": train_annotations,
            "validation": validation_annotations,
            "test": test_annotations,
        }
        self.features, self.max_boxes = [] if features is None else features, max_boxes
        self.skip_bad = skip_bad

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Missing or empty files, a file that is used twice, and features that cannot be read."""
        problems = []
        for number, path in enumerate(self.features):
            problems += view_problem(f"data.features[{number}]={path}", Path(path))
        for split in splits:
            paths = {"questions": self.named[split], "annotations": self.annotations[split]}
            for part, file in paths.items():
                key = f"data.{split}_{part}={'null' if file is None else file}"
                if file:
                    problems += files.file_problem(key, Path(file))
                elif file is not None or (split, part) != ("test", "annotations"):
                    problems.append(f"{key}: the {split} split is asked for; name its file of {part}")
            if paths["questions"] and paths["questions"] == paths["annotations"]:
                problems.append(f"data.{split}_annotations={paths['annotations']}: this is the file of the questions")
        return problems

    def fingerprint(self, split: str) -> str:
        """A hash of the two files and of skip_bad."""
        named = [path for path in (self.named[split], self.annotations[split]) if path is not None]
        return files.digest(["vqa_v2", 1, len(named), *["skip_bad"] * self.skip_bad], *map(Path, named))

    def rows(self, split: str) -> Iterator[tuple[str, str, str, str, str]]:
        """Streams (id, image, question, answers as JSON, answer type), with empty answers if there are no annotations.

        Raises ValueError if the files do not belong together, and for bad records unless they are skipped.
        """
        path = path_of(self.named, split)
        asked = read_vqa_questions(path, self.skip_bad)
        if self.annotations[split] is None:
            yield from ((record.id, record.image, record.question, "[]", "") for record in asked)
            return
        annotated = annotations_by_question(asked, path, path_of(self.annotations, split), self.skip_bad)
        for record in asked:
            if (of := annotated.get(record.id)) is not None:
                answers = json.dumps(of.texts, ensure_ascii=False)
                yield record.id, record.image, record.question, answers, of.answer_type

    def views(self, split: str, cache_dir: str | Path) -> FeatureFiles | None:
        """The views of `features`, which are read in place."""
        return FeatureFiles(self.features, self.max_boxes) if self.features else None


def annotations_by_question(
    asked: list[Asked], questions: Path, annotations: Path, skip_bad: bool | None = None
) -> dict[str, Annotated]:
    """The annotations by question id.

    Raises ValueError unless there is exactly one annotation for each question, for the same image. With skip_bad, the
    others are skipped.
    """
    annotated = {record.id: record for record in read_annotations(annotations, skip_bad)}
    images = {record.id: record.image for record in asked}
    if not images.keys() & annotated.keys():
        raise DataError(
            f"{annotations}: contains no annotation for any question of {questions}; they belong to different splits"
        )
    problems = [f"question {name} has no annotation" for name in images if name not in annotated]
    problems += [f"the annotation of {name} has no question" for name in annotated if name not in images]
    problems += [
        f"question {name} is on image {image}, but its annotation on image {annotated[name].image}"
        for name, image in images.items()
        if name in annotated and annotated[name].image != image
    ]
    fitting = {name: record for name, record in annotated.items() if images.get(name) == record.image}
    settle(f"{questions} and {annotations}", problems, len(fitting), skip_bad)
    return fitting


def read_vqa_questions(path: Path, skip_bad: bool | None = None) -> list[Asked]:
    """The records of a question file.

    Raises ValueError that names the bad ones, unless they are skipped (skip_bad; None if the user has no such option).
    """
    return _read(path, "questions", "annotations", Asked, skip_bad)


def read_annotations(path: Path, skip_bad: bool | None = None) -> list[Annotated]:
    """The records of an annotation file, with the same errors as `read_vqa_questions`."""
    return _read(path, "annotations", "questions", Annotated, skip_bad)


def _read(path: Path, part: str, other: str, model: type[Entry], skip_bad: bool | None) -> list[Entry]:
    document = read_json(path)
    entries = document.get(part) if isinstance(document, dict) else None
    if not isinstance(entries, list):
        if isinstance(document, dict) and other in document:
            raise DataError(f"{path}: expected a file of {part}, but this one contains {other}; are the two swapped?")
        raise DataError(f'{path}: not an official VQA file: expected one JSON object {{"{part}": [...]}}')
    if not entries:
        raise DataError(f"{path}: contains no {part}")
    records = Records(model)
    for number, entry in enumerate(entries):
        records.add(entry, f"{part}[{number}]")
    return records.settle(path, skip_bad)
