"""Where the package easy-vqa has its questions and images."""

import importlib.util
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from attnorm.errors import DataError

PART = {"train": "train", "validation": "test"}  # our split -> the package's


def problems(data: str, splits: Sequence[str]) -> Iterator[str]:
    """Splits that do not exist, and packages that are not installed. data: the choice of the group `data`."""
    for split in splits:
        if split not in PART:
            yield f"data={data}: there is no {split} split (its test part is the validation split)"
    for module, package in (("easy_vqa", "easy-vqa"), ("PIL", "pillow")):
        if importlib.util.find_spec(module) is None:
            yield f"data={data}: the package {package} is not installed; pip install {package}"


def part_folder(split: str) -> Path:
    """The folder of a split. Raises DataError if the package is not installed."""
    spec = importlib.util.find_spec("easy_vqa")
    if spec is None or spec.origin is None:
        raise DataError("data: the package easy-vqa is not installed; pip install easy-vqa")
    return Path(spec.origin).parent / "data" / PART[split]


def questions_of(split: str) -> list[tuple[str, str, int]]:
    """(question, answer, number of the image) for each question of a split."""
    return [tuple(record) for record in json.loads((part_folder(split) / "questions.json").read_text())]
