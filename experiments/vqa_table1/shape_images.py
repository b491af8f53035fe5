"""The images of the package easy-vqa: 64 x 64 pixels, one coloured shape each. The label is the shape or the colour.

    pip install easy-vqa pillow
    attnorm train task=image_classification data=base model.patch=8 \\
      data._target_=attnorm.experiments.vqa_table1.shape_images.EasyVqaImages data.label=colour

The package has no list of labels, only questions and answers. The label of an image follows from them: from the answer
to a question about it ("what shape is in the image?"), from a shape that a question takes for granted ("what color is
the circle?"), or from a question about presence ("is there a circle?" yes; "is no circle present?" no). Images whose
questions do not reveal the label are left out.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Literal

import numpy as np

from attnorm.data.arrow import progress
from attnorm.data.images import ImageSource
from attnorm.data.readers import text as files
from attnorm.experiments.vqa_table1.shape_questions import PART, EasyVqaPackage, part_folder, questions_of, read_pixels

LABELS = {
    "shape": ("circle", "rectangle", "triangle"),
    "colour": ("black", "blue", "brown", "gray", "green", "red", "teal", "yellow"),
}


class EasyVqaImages(EasyVqaPackage, ImageSource):
    """The images of the installed package. Its test part is the validation split.

    label: "shape" (3 labels) or "colour" (8 labels).
    """

    shape = (64, 64, 3)

    def __init__(self, *, label: Literal["shape", "colour"] = "shape"):
        self.label, self.labels = label, LABELS[label]

    def fingerprint(self, split: str) -> str:
        """A hash of the questions, and of the kind of label."""
        return files.digest(["easy_vqa_images", 1, self.label], part_folder(split) / "questions.json")

    def rows(self, split: str) -> Iterator[tuple[str, str]]:
        """Streams (id, label)."""
        for number, label in _labels(split, self.label).items():
            yield f"{PART[split]}-{number}", label

    def read(self, split: str) -> np.ndarray:
        numbers = progress(_labels(split, self.label), f"reading the images of {split}")
        return np.stack([read_pixels(part_folder(split) / "images" / f"{number}.png") for number in numbers])


@cache
def _labels(split: str, kind: str) -> dict[int, str]:
    """The labels of the images of a split, by the number of the image, as far as its questions reveal them."""
    questions: dict[int, list[tuple[str, str]]] = {}
    for question, answer, image in questions_of(split):
        questions.setdefault(image, []).append((question, answer))
    labels = ((image, revealed_label(asked, LABELS[kind])) for image, asked in sorted(questions.items()))
    return {image: label for image, label in labels if label is not None}


def revealed_label(questions: Iterable[tuple[str, str]], labels: Sequence[str]) -> str | None:
    """The label that questions with their answers reveal; None if they do not."""
    for question, answer in questions:
        if answer in labels:
            return answer
        words = question.rstrip("?").split()
        named = [word for word in words if word in labels]
        if not named:
            continue
        denied = "not" in words or "no" in words
        if answer not in ("yes", "no") or (answer == "yes") != denied:
            return named[0]
    return None
