"""easy-VQA: questions about 64 x 64 images of one coloured shape, with three views of the pixels.

    pip install easy-vqa pillow
    attnorm train task=vqa data=base data._target_=attnorm.experiments.vqa_table1.shape_questions.EasyVqa

Each view divides an image into 6 x 6 cells, which are its boxes. The features of a cell are

colours    the shares of its pixels in each of 4 x 4 x 4 colours (64)
edges      the strength of the brightness gradient in each of 9 directions, in each of its 2 x 2 quarters (36), scaled
           to norm 1 as in "Histograms of Oriented Gradients for Human Detection", Sec. 6.4, so that its scale matches
           that of the colours
patches    its brightness, averaged over 4 x 4 patches (16)
"""

import importlib.util
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from attnorm.data.arrow import progress
from attnorm.data.cache import cached
from attnorm.data.image_features import MappedFeatures, VisualSource, write_features
from attnorm.data.readers import text as files
from attnorm.data.sources.base import Source
from attnorm.errors import DataError

PART = {"train": "train", "validation": "test"}  # our split -> the package's
GRID = 6  # cells per side
COLOURS, DIRECTIONS, QUARTERS, PATCHES = 4, 9, 2, 4
FLAT = 0.01  # change of brightness per pixel; a cell with much smaller changes has no edge


class EasyVqaPackage(Source):
    """A source that reads the package."""

    splits = tuple(PART)

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Splits that do not exist, and packages that are not installed."""
        wrong = [
            f"there is no {split} split (its test part is the validation split)"
            for split in splits
            if split not in PART
        ]
        for module, package in (("easy_vqa", "easy-vqa"), ("PIL", "pillow")):
            if importlib.util.find_spec(module) is None:
                wrong.append(f"the package {package} is not installed; pip install {package}")
        return [f"data: {problem}" for problem in wrong]


def part_folder(split: str) -> Path:
    """The folder of a split. Raises DataError if the package is not installed."""
    spec = importlib.util.find_spec("easy_vqa")
    if spec is None or spec.origin is None:
        raise DataError("data: the package easy-vqa is not installed; pip install easy-vqa")
    return Path(spec.origin).parent / "data" / PART[split]


def questions_of(split: str) -> list[tuple[str, str, int]]:
    """(question, answer, number of the image) for each question of a split."""
    return [tuple(record) for record in json.loads((part_folder(split) / "questions.json").read_text())]


class EasyVqa(EasyVqaPackage, VisualSource):
    """The questions of the installed package. Its test part is the validation split."""

    def fingerprint(self, split: str) -> str:
        """A hash of the questions."""
        return files.digest(["easy_vqa", 1], part_folder(split) / "questions.json")

    def rows(self, split: str) -> Iterator[tuple[str, str, str, str, str]]:
        """Streams (id, image, question, answers, kind)."""
        for number, (question, answer, image) in enumerate(questions_of(split)):
            kind = "yes/no" if answer in ("yes", "no") else "other"
            yield f"{PART[split]}-{number}", f"{PART[split]}-{image}", question, json.dumps([answer]), kind

    def views(self, split: str, cache_dir: str | Path) -> MappedFeatures:
        """The three views of a split's images."""
        numbers = sorted({image for _, _, image in questions_of(split)})
        paths = [part_folder(split) / "images" / f"{number}.png" for number in numbers]

        def build(folder: Path) -> None:
            images = [f"{PART[split]}-{number}" for number in numbers]
            boxes = cell_boxes()
            views = (
                [(describe(pixels), boxes) for describe in VIEWS.values()]
                for pixels in (read_pixels(path) / np.float32(255) for path in progress(paths, f"looking at {split}"))
            )
            widths = (COLOURS**3, DIRECTIONS * QUARTERS**2, PATCHES**2)
            write_features(folder, list(VIEWS), widths, [GRID**2] * len(VIEWS), images, views)

        return MappedFeatures(
            cached(Path(cache_dir) / f"views-{files.digest(['easy_vqa', 2, numbers], *paths)}", build)
        )


def read_pixels(path: Path) -> np.ndarray:
    """uint8 (height, width, 3)."""
    from PIL import Image

    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"), np.uint8)


def cell_boxes() -> np.ndarray:
    """float (36, 4): the boxes of the cells, row by row."""
    y, x = (axis.ravel() / GRID for axis in np.mgrid[:GRID, :GRID])
    return np.stack([x, y, x + 1 / GRID, y + 1 / GRID], axis=1)


def _blocks(values: np.ndarray, count: int) -> np.ndarray:
    """The means over count x count equal parts: (height, width, ...) -> (count, count, ...).

    A part contains the pixels whose centers lie in it. There must be at least as many pixels per side as parts.
    """
    for axis in range(2):
        size = values.shape[axis]
        starts = np.ceil(np.arange(count) * size / count - 0.5).astype(int).clip(0)
        sums = np.add.reduceat(values, starts, axis=axis)
        shape = [-1 if i == axis else 1 for i in range(values.ndim)]
        values = sums / np.diff([*starts, size]).reshape(shape)
    return values


def _by_cell(parts: np.ndarray, side: int) -> np.ndarray:
    """(6 side, 6 side, k) -> (36, side * side * k): groups the values by cell."""
    return parts.reshape(GRID, side, GRID, side, -1).swapaxes(1, 2).reshape(GRID**2, -1)


def colour_shares(pixels: np.ndarray) -> np.ndarray:
    """(height, width, 3) in [0, 1] -> (36, 64)."""
    levels = np.minimum((pixels * COLOURS).astype(int), COLOURS - 1)
    numbers = levels @ np.array([COLOURS**2, COLOURS, 1])
    return _by_cell(_blocks(np.eye(COLOURS**3)[numbers], GRID), 1)


def edge_histograms(pixels: np.ndarray) -> np.ndarray:
    """(height, width, 3) in [0, 1] -> (36, 36)."""
    down, right = np.gradient(pixels.mean(2))
    turn = np.arctan2(down, right) % np.pi * DIRECTIONS / np.pi
    bins = np.minimum(turn.astype(int), DIRECTIONS - 1)
    strength = np.hypot(down, right)[..., None] * np.eye(DIRECTIONS)[bins]
    histograms = _by_cell(_blocks(strength, GRID * QUARTERS), QUARTERS)
    return histograms / np.sqrt(np.square(histograms).sum(1, keepdims=True) + FLAT**2)


def brightness_patches(pixels: np.ndarray) -> np.ndarray:
    """(height, width, 3) in [0, 1] -> (36, 16)."""
    return _by_cell(_blocks(pixels.mean(2)[..., None], GRID * PATCHES), PATCHES)


VIEWS = {"colours": colour_shares, "edges": edge_histograms, "patches": brightness_patches}
