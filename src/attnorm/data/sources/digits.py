"""The handwritten digits of scikit-learn, "Optical Recognition of Handwritten Digits": 1,797 images of 8 x 8 pixels."""

import importlib.util
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from attnorm.data.images import ImageSource
from attnorm.data.readers import text as files
from attnorm.data.sources.base import SPLITS
from attnorm.errors import DataError, Problem
from attnorm.schema import Share

BRIGHTEST = 16  # the values of the dataset are 0 to 16


class Digits(ImageSource):
    """The images in the order of the dataset: first those of train, then those of validation, then those of test.

    Images that follow each other tend to be of the same writer, so a random split would be easier than this one.

    validation, test: the shares of the images in these splits. A share of 0 means that there is no such split.
    """

    labels = tuple("0123456789")
    shape = (8, 8, 1)

    def __init__(self, *, validation: Share = 0.2, test: Share = 0.2):
        self.shares = {"validation": validation, "test": test}

    @property
    def splits(self) -> tuple[str, ...]:
        return ("train", *(split for split in SPLITS[1:] if self.shares[split]))

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Shares that leave nothing for train, splits that are empty, and a package that is not installed."""
        problems: list[str] = [
            Problem(f"data.{split}", f"the {split} split is asked for, so its share must be above 0", 0)
            for split in splits
            if split != "train" and not self.shares[split]
        ]
        if sum(self.shares.values()) >= 1:
            problems.append(Problem("data.validation", "leaves no image for train", self.shares["validation"]))
        if importlib.util.find_spec("sklearn") is None:
            message = "the package scikit-learn is not installed; pip install scikit-learn"
            problems.append(Problem("data", message, "digits"))
        return problems

    def fingerprint(self, split: str) -> str:
        """A hash of the file of the package and of the shares."""
        spec = importlib.util.find_spec("sklearn")
        if spec is None or spec.origin is None:
            raise DataError("data=digits: the package scikit-learn is not installed; pip install scikit-learn")
        path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
        return files.digest(["digits", 1, split, self.shares], path)

    def rows(self, split: str) -> Iterator[tuple[str, str]]:
        """Streams (number in the dataset, digit)."""
        _, labels = self.images
        for number in self.numbers(split):
            yield str(number), self.labels[labels[number]]

    def read(self, split: str) -> np.ndarray:
        pixels, _ = self.images
        return np.rint(pixels[self.numbers(split)] * (255 / BRIGHTEST)).astype(np.uint8)[..., None]

    @cached_property
    def images(self) -> tuple[np.ndarray, np.ndarray]:
        """float (1797, 8, 8) from 0 to 16, and int (1797,)."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        return digits.images, digits.target

    def numbers(self, split: str) -> range:
        """The numbers of a split's images in the dataset."""
        count = len(self.images[1])
        sizes = {name: round(share * count) for name, share in self.shares.items()}
        starts = {"train": 0, "validation": count - sizes["validation"] - sizes["test"], "test": count - sizes["test"]}
        ends = {"train": starts["validation"], "validation": starts["test"], "test": count}
        return range(starts[split], ends[split])
