"""Sources of images: rows, labels and pixels against scikit-learn, and against what the pixels themselves show."""

import importlib.util

import numpy as np
import pytest
from builders import build_source

from attnorm.experiments.vqa_table1.shape_images import LABELS, EasyVqaImages, revealed_label

COLOURS = {  # of the shapes in the images
    "black": (0, 0, 0), "blue": (0, 0, 255), "brown": (165, 42, 42), "gray": (128, 128, 128),
    "green": (0, 255, 0), "red": (255, 0, 0), "teal": (0, 128, 128), "yellow": (255, 255, 0),
}  # fmt: skip


@pytest.fixture(scope="module")
def theirs():
    return pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed").load_digits()


def test_digits_are_those_of_scikit_learn_each_in_one_split(theirs, tmp_path):
    source, seen = build_source("digits"), []
    for split, size in (("train", 1079), ("validation", 359), ("test", 359)):
        rows, pixels = list(source.rows(split)), source.pixels(split, tmp_path)
        assert len(rows) == len(pixels) == size
        for (name, label), image in zip(rows, pixels, strict=True):
            assert label == str(theirs.target[int(name)])
            assert np.abs(image[..., 0] / 255 * 16 - theirs.images[int(name)]).max() < 0.5  # nothing is lost
        seen += [int(name) for name, _ in rows]
    assert seen == list(range(1797))


def test_a_share_of_0_means_no_split(theirs):
    source = build_source("digits", test=0.0)
    assert source.splits == ("train", "validation") and source.check(("train", "validation")) == []
    assert source.check(("test",)) == ["data.test=0: the test split is asked for, so its share must be above 0"]
    assert build_source("digits", validation=0.5, test=0.5).check() == [
        "data.validation=0.5: leaves no image for train"
    ]
    assert source.fingerprint("train") != build_source("digits").fingerprint("train")


@pytest.mark.parametrize(
    ("questions", "label"),
    [
        ([("what shape is in the image?", "circle")], "circle"),
        ([("what color is the shape?", "red")], None),
        ([("what color is the triangle?", "red")], "triangle"),
        ([("is there a rectangle?", "yes")], "rectangle"),
        ([("is there a rectangle?", "no")], None),
        ([("is there not a rectangle?", "no")], "rectangle"),
        ([("is there not a rectangle?", "yes")], None),
        ([("is no circle present?", "no")], "circle"),
        ([("does the image not contain a circle?", "yes"), ("is a triangle present?", "yes")], "triangle"),
        ([], None),
    ],
)
def test_the_shape_follows_from_the_questions(questions, label):
    assert revealed_label(questions, LABELS["shape"]) == label


@pytest.fixture(scope="module")
def easy():
    for module in ("easy_vqa", "PIL"):  # not imported: another test has a package of this name
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    return {label: EasyVqaImages(label=label) for label in LABELS}


@pytest.mark.long
def test_labels_are_what_the_pixels_show(easy):
    """The colour is that of the exact pixels; the shape follows from how much of its bounding box is filled."""
    colours, shapes = (dict(easy[label].rows("validation")) for label in ("colour", "shape"))
    pixels = dict(zip(colours, easy["colour"].read("validation"), strict=True))
    filled = {"triangle": [], "circle": [], "rectangle": []}
    for name, image in pixels.items():
        actual = {colour for colour, value in COLOURS.items() if (image == value).all(-1).any()}
        assert actual == {colours[name]}
        inside = (image.astype(int) - image[0, 0]).__abs__().max(-1) > 60
        rows, columns = inside.any(1).nonzero()[0], inside.any(0).nonzero()[0]
        box = inside[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        if name in shapes and box.size > 400 and rows[0] and columns[0] and rows[-1] < 63 and columns[-1] < 63:
            filled[shapes[name]].append(box.mean())
    triangle, circle, rectangle = filled.values()
    assert min(map(len, filled.values())) > 30
    assert max(triangle) < 0.7 < min(circle) and max(circle) < 0.9 < np.median(rectangle)


def test_a_split_that_does_not_exist_is_refused(easy):
    assert easy["shape"].check(("train", "validation")) == []
    [problem] = easy["shape"].check(("test",))
    assert "there is no test split" in problem
    assert easy["shape"].fingerprint("train") != easy["colour"].fingerprint("train")
