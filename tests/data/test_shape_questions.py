"""easy-VQA: rows and views from the package, checked on a stand-in for it and, where it is installed, on itself."""

import importlib.util
import json
import sys

import numpy as np
import pytest

from attnorm.experiments.vqa_table1.shape_questions import (
    VIEWS,
    EasyVqa,
    brightness_patches,
    cell_boxes,
    colour_shares,
    edge_histograms,
)

QUESTIONS = {
    "train": [["what color is it?", "red", 0], ["is there a circle?", "no", 3], ["is it red?", "yes", 0]],
    "test": [["what shape is it?", "circle", 1]],
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package easy_vqa with three pictures."""
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    for part, questions in QUESTIONS.items():
        folder = tmp_path / "easy_vqa/data" / part / "images"
        folder.mkdir(parents=True)
        (folder.parent / "questions.json").write_text(json.dumps(questions))
        for number in {record[2] for record in questions}:
            pixels = np.full((64, 64, 3), 40 * number, np.uint8)
            pixels[:32, :32] = (255, 0, 0)
            image.fromarray(pixels).convert("RGBA").save(folder / f"{number}.png")
    (tmp_path / "easy_vqa/__init__.py").write_text("raise RuntimeError('reading needs no code of it')\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return tmp_path / "easy_vqa/data"


def test_rows_and_splits(package):
    source = EasyVqa()
    assert source.schema.name == "visual" and source.splits == ("train", "validation") and source.check() == []
    assert list(source.rows("train")) == [
        ("train-0", "train-0", "what color is it?", '["red"]', "other"),
        ("train-1", "train-3", "is there a circle?", '["no"]', "yes/no"),
        ("train-2", "train-0", "is it red?", '["yes"]', "yes/no"),
    ]
    assert list(source.rows("validation")) == [("test-0", "test-1", "what shape is it?", '["circle"]', "other")]
    assert source.check(["test"]) == ["data: there is no test split (its test part is the validation split)"]


def test_views_of_a_split(package, tmp_path):
    views = EasyVqa().views("train", tmp_path / "cache")
    assert views.names == ["colours", "edges", "patches"] and views.widths == [64, 36, 16]
    assert views.boxes == [36] * 3 and list(views.rows) == ["train-0", "train-3"]
    read = views.read(["train-3", "train-0"])
    for (features, present, geometry), describe in zip(read, VIEWS.values(), strict=True):
        assert features.shape[:2] == (2, 36) and present.all() and np.isfinite(features.numpy()).all()
        np.testing.assert_allclose(geometry[1], cell_boxes(), atol=1e-6)
        pixels = np.full((64, 64, 3), 120 / 255)
        pixels[:32, :32] = (1, 0, 0)
        np.testing.assert_allclose(features[0], describe(pixels), atol=1e-3)
    assert not np.allclose(read[0][0][0], read[0][0][1])
    assert views.folder == EasyVqa().views("train", tmp_path / "cache").folder


def test_the_fingerprint_and_the_views_follow_the_package(package, tmp_path):
    source = EasyVqa()
    before = source.fingerprint("train"), source.views("train", tmp_path / "c").folder
    assert source.fingerprint("validation") != before[0]
    (package / "train/images/3.png").write_bytes((package / "train/images/0.png").read_bytes())
    assert source.fingerprint("train") == before[0] and source.views("train", tmp_path / "c").folder != before[1]
    (package / "train/questions.json").write_text(json.dumps(QUESTIONS["test"]))
    assert source.fingerprint("train") != before[0]


def test_packages_that_are_missing_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    source = EasyVqa()
    assert source.check() == [
        "data: the package easy-vqa is not installed; pip install easy-vqa",
        "data: the package pillow is not installed; pip install pillow",
    ]
    uses = (source.fingerprint, lambda split: list(source.rows(split)), lambda split: source.views(split, tmp_path))
    for use in uses:
        with pytest.raises(ValueError, match="the package easy-vqa is not installed"):
            use("train")


# what a view says of the pixels


def test_cells_tile_the_image_row_by_row():
    actual = cell_boxes()
    assert actual.shape == (36, 4) and actual[0].tolist() == [0, 0, 1 / 6, 1 / 6]
    np.testing.assert_allclose(actual[7], [1 / 6, 1 / 6, 2 / 6, 2 / 6])
    np.testing.assert_allclose(actual[5], [5 / 6, 0, 1, 1 / 6])
    np.testing.assert_allclose(((actual[:, 2] - actual[:, 0]) * (actual[:, 3] - actual[:, 1])).sum(), 1)


def pixel_cell(y, x):
    """The cell that the middle of a pixel of a 64 x 64 image lies in."""
    return int((y + 0.5) * 6 / 64) * 6 + int((x + 0.5) * 6 / 64)


@pytest.mark.parametrize(("y", "x"), [(0, 0), (0, 63), (63, 0), (10, 11), (32, 32), (21, 53)])
def test_a_pixel_is_seen_in_its_cell_only(y, x):
    pixels = np.zeros((64, 64, 3))
    dark = [describe(pixels) for describe in (colour_shares, brightness_patches)]
    pixels[y, x] = (1.0, 0.5, 0.0)
    for before, after in zip(dark, (colour_shares(pixels), brightness_patches(pixels)), strict=True):
        assert np.flatnonzero((before != after).any(1)).tolist() == [pixel_cell(y, x)]
    cell = colour_shares(pixels)[pixel_cell(y, x)]
    assert np.flatnonzero(cell).tolist() == [0, 3 * 16 + 2 * 4 + 0] and cell[56] == pytest.approx(1 / 121, rel=0.2)


def test_colours_are_shares_of_the_pixels():
    pixels = np.random.default_rng(0).random((64, 64, 3))
    np.testing.assert_allclose(colour_shares(pixels).sum(1), 1)
    for level, value in ((0, 0.0), (0, 0.24), (1, 0.25), (3, 0.99), (3, 1.0)):
        found = colour_shares(np.full((64, 64, 3), value))
        assert (found[:, level * 21] == 1).all()


def test_edges_have_a_direction_and_a_place():
    pixels = np.zeros((64, 64, 3))
    pixels[:, 32:] = 1  # between the third and the fourth column of cells: brightness changes to the right
    result = edge_histograms(pixels).reshape(6, 6, 2, 2, 9)
    assert result[..., 1:].max() == 0
    assert (result[:, 2, :, 1, 0] > 0).all() and (result[:, 3, :, 0, 0] > 0).all()
    result[:, 2, :, 1, 0] = result[:, 3, :, 0, 0] = 0
    assert not result.any()
    turned = edge_histograms(pixels.swapaxes(0, 1)).reshape(6, 6, 2, 2, 9)
    assert turned[..., 4].max() > 0 and turned[2, :, 1, :, 4].all()  # 90 of 180 degrees
    # from bright to dark or from dark to bright
    np.testing.assert_allclose(edge_histograms(1 - pixels), edge_histograms(pixels))
    assert not edge_histograms(np.full((64, 64, 3), 0.7)).any()


def test_edges_weigh_the_same_in_a_pale_image():
    pixels = np.zeros((64, 64, 3))
    pixels[20:40, 20:40] = 1
    strong, pale = edge_histograms(pixels), edge_histograms(pixels * 0.5)
    norms = np.linalg.norm(strong, axis=1)
    seen = norms > 0
    assert 0 < seen.sum() < 36 and (norms[seen] > 0.9).all() and (norms < 1).all()
    np.testing.assert_allclose(pale, strong, atol=0.1)


def test_patches_are_mean_brightness_in_order():
    rows = np.repeat(np.linspace(0, 1, 64)[:, None, None], 64, 1).repeat(3, 2)
    outcome = brightness_patches(rows).reshape(6, 6, 4, 4)
    assert (np.diff(outcome.mean((1, 3)).ravel()) > 0).all()  # from top to bottom, cell by cell and inside of each
    assert np.ptp(outcome, axis=(1, 3)).max() < 1e-9
    np.testing.assert_allclose(brightness_patches(np.full((64, 64, 3), 0.25)), 0.25)
    np.testing.assert_allclose(outcome.mean(), 0.5, atol=0.01)


@pytest.mark.slow
def test_the_package_itself(tmp_path):
    pytest.importorskip("PIL", reason="pillow is not installed")
    if importlib.util.find_spec("easy_vqa") is None:
        pytest.skip("easy-vqa is not installed")
    source = EasyVqa()
    rows = list(source.rows("validation"))
    assert len(list(source.rows("train"))) == 38_575 and len(rows) == 9_673
    assert len({row[3] for row in rows}) == 13
    views = source.views("validation", tmp_path)
    views.check({row[1] for row in rows})
    for features, _, _ in views.read(["test-0", "test-999"]):
        assert 0 < features.abs().max() < 10
    assert "easy_vqa" not in sys.modules
