"""Images with captions: the generated ones say what is in the image, and files are read or refused by file and line."""

import hashlib
import json

import numpy as np
import pytest
import torch
from builders import build_source
from PIL import Image
from safetensors.torch import save_file
from scipy.spatial.distance import pdist

from attnorm.data.caption_rows import plain_words
from attnorm.data.images import ImageShape, read_image
from attnorm.data.readers.caption_formats import read_captions, read_list
from attnorm.data.synthetic.scenes import Thing, scene
from attnorm.data.synthetic.scenes.descriptions import PER_SCENE, SIZE_WORDS, captions, location, prominence, relation
from attnorm.data.synthetic.scenes.drawing import GROUND, PAINT, draw
from attnorm.data.synthetic.scenes.generate import COLOURS, SHAPES, SIDES
from attnorm.errors import DataError

WRITTEN = [captions("train", index) for index in range(300)]


# scenes as images


@pytest.mark.parametrize("shape", SHAPES)
def test_a_thing_is_drawn_where_it_is_in_its_colour(shape):
    thing = Thing(shape, "blue", "large", 0.3, 0.6, 0.25)
    image = draw((thing,), 80).astype(int)
    painted = (image != GROUND).any(-1)
    rows, columns = np.nonzero(painted)
    x1, y1, x2, y2 = (80 * edge for edge in thing.box)
    assert columns.min() >= x1 - 1 and columns.max() <= x2 and rows.min() >= y1 - 1 and rows.max() <= y2
    assert painted.sum() > 0.2 * (x2 - x1) * (y2 - y1)
    middle = image[48, 24]
    assert tuple(middle) == (GROUND if shape == "ring" else PAINT["blue"])


def test_shapes_and_colours_look_different():
    things = [Thing(shape, colour, "small", 0.5, 0.5, 0.09) for shape in SHAPES for colour in COLOURS]
    images = np.stack([draw((thing,), 64).astype(float) for thing in things]).reshape(len(things), -1)
    assert pdist(images, "cityblock").min() > 255  # summed over the pixels, for the smallest things at the default size


def test_an_area_is_that_of_the_shape():
    """Against the formulas: 4 x 4 points per pixel leave an error of the order of the circumference in such points."""
    for shape, share in (("circle", np.pi / 4), ("square", 0.88**2), ("diamond", 0.5), ("ring", 0.7 * np.pi / 4)):
        image = draw((Thing(shape, "red", "large", 0.5, 0.5, 0.5),), 100).astype(float)
        covered = (image[..., 1] - GROUND[1]) / (PAINT["red"][1] - GROUND[1])
        assert covered.sum() == pytest.approx(share * 2500, rel=0.02), shape


# captions


def test_captions_are_true():
    for index, written in enumerate(WRITTEN):
        things = scene("train", index)
        for text, about in written:
            words = text.split()
            assert len(words) == len(about)
            for word, number in zip(words, about, strict=True):
                if word in COLOURS:
                    assert things[number].colour == word
                if word in SHAPES:
                    assert things[number].shape == word
                for size, said in SIZE_WORDS.items():
                    if word in said:
                        assert things[number].size == size
            _check_places(text, about, things)


def _check_places(text, about, things):
    """The words of places and relations, from the text alone and the coordinates of the things."""
    named = list(dict.fromkeys(number for number in about if number is not None))
    first, second = (things[number] for number in named[:2])
    for phrase, holds in (
        ("to the left of", first.x < second.x), ("to the right of", first.x > second.x),
        ("above", first.y < second.y), ("below", first.y > second.y),
    ):  # fmt: skip
        if phrase in text:
            assert holds, text
    words = text.split()
    for position, word in enumerate(words):
        if about[position] is None or " to the " in f" {text} ":
            continue
        thing = things[about[position]]
        checks = {"top": thing.y < 1 / 3, "bottom": thing.y > 2 / 3, "left": thing.x < 1 / 3, "right": thing.x > 2 / 3}
        assert checks.get(word, True), text


def test_prominent_things_are_named():
    for index, written in enumerate(WRITTEN):
        things = scene("train", index)
        order = prominence(things)
        ranks = [list(SIDES).index(things[number].size) for number in order]
        assert ranks == sorted(ranks, reverse=True) and len(set(order)) == len(things)
        for _, about in written:
            named = {number for number in about if number is not None}
            assert order[0] in named and named <= set(order[:3]) and len(named) in (2, 3)


def test_references_differ_and_places_are_told_apart():
    assert all(len(written) == PER_SCENE for written in WRITTEN)
    assert np.mean([len({it.text for it in written}) for written in WRITTEN]) > 3
    middle = Thing("ring", "red", "small", 0.5, 0.5, 0.1)
    assert location(middle) == "in the middle"
    assert location(middle._replace(x=0.1, y=0.9)) == "in the bottom left corner"
    assert location(middle._replace(x=0.9)) == "on the right"
    assert relation(middle, middle._replace(x=0.9, y=0.7)) == "to the left of"
    assert relation(middle, middle._replace(x=0.6, y=0.1)) == "below"


def test_the_corpus_is_frozen():
    texts = [item.text for index in range(50) for item in captions("validation", index, 3)]
    assert hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16] == "f25a124e7c6fc4db"
    pixels = b"".join(draw(scene("test", index), 48).tobytes() for index in range(20))
    assert hashlib.sha256(pixels).hexdigest()[:16] == "1646071f31a8f98c"


def test_the_source_gives_the_generated_scenes(tmp_path):
    source = build_source("scenes_captions", train_size=6, valid_size=4, side=32)
    assert source.check() == []
    rows = dict(source.rows("validation"))
    assert rows["validation-2"].split("\n") == [entry.text for entry in captions("validation", 2)]
    images = source.images("validation", tmp_path)
    assert images.shape == ImageShape(side=32)
    pixels = images.read(["validation-3", "validation-0"])["image"]
    assert np.array_equal(pixels[1].permute(1, 2, 0).numpy(), draw(scene("validation", 0), 32))
    with pytest.raises(ValueError, match="no pixels of 1 image: train-9"):
        images.read(["train-9"])
    other = build_source("scenes_captions", train_size=6, corpus_seed=1)
    assert other.fingerprint("train") != source.fingerprint("train") != source.fingerprint("validation")


# files


def test_captions_are_reduced_to_words_with_the_marks_of_their_script():
    assert plain_words("A man's  T-shirt, (red)…\n«Été» 3_4 -!") == "a man's t-shirt red été 3 4"
    assert plain_words("rock--roll 'n' -5") == "rock roll n 5"
    assert plain_words("एक हिन्दी वाक्य।") == "एक हिन्दी वाक्य"  # its vowel signs are marks, not letters
    assert plain_words("cafe\u0301") == plain_words("caf\u00e9") == "caf\u00e9"


FLICKR = "b.png#0\tA dog .\nb.png#1\tTwo Dogs run\na.png#0\tA cat\n"
FOUND = {"b.png": ["a dog", "two dogs run"], "a.png": ["a cat"]}
FORMATS = {
    "captions.token.txt": FLICKR,
    "captions.txt": 'image,caption\nb.png,A dog .\nb.png,"Two Dogs, run"\na.png,A cat\n',
    "captions.csv": "image,caption\nb.png,A dog .\nb.png,Two Dogs, run\na.png,A cat\n",
    "results.csv": "image_name| comment_number| comment\nb.png| 0| A dog .\nb.png| 1| Two |Dogs run\na.png| 0| A cat\n",
    "numbered.txt": "image_name,comment_number,comment\nb.png,0,A dog .\nb.png,1,Two Dogs, run\na.png,0,A cat\n",
    "captions.json": json.dumps({
        "images": [{"id": 7, "file_name": "b.png"}, {"id": 8, "file_name": "a.png"}],
        "annotations": [{"image_id": 7, "caption": "A dog ."}, {"image_id": 7, "caption": "Two Dogs run"},
                        {"image_id": 8, "caption": "A cat"}],
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_is_read(tmp_path, name):
    (tmp_path / name).write_text(FORMATS[name])
    assert read_captions(tmp_path / name) == FOUND


BAD = {
    "line.txt": (FLICKR + "c.png A bird\n", "line.txt:4: expected <image>#<number>, a tab and a caption"),
    "columns.csv": ("image,caption\na.png\n", "columns.csv:2: expected the columns image, caption"),
    "header.csv": ("a.png,A cat\n", "header.csv:1: expected the header image,caption"),
    "bar.csv": ("image_name| comment_number| comment\nb.png| 4 A dog\n", "bar.csv:2: expected the columns image_name"),
    "return.csv": ("image,caption\na.png,A cat\r sits\n", "return.csv:2: new-line character"),
    "empty.txt": ("\n", "empty.txt: contains no captions"),
    "list.json": ("[]", "list.json: the file is a list of 0, not an object; expected COCO's object"),
    "broken.json": ('{"images": [\n', "broken.json:2: not JSON"),
    "id.json": ('{"images": [], "annotations": [{"image_id": 3, "caption": "x"}]}', r"annotations\[0\]: there is no"),
    "text.json": ('{"images": [{"id": 1}], "annotations": []}', r"text.json: images\[0\]\.file_name is missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_by_file_and_line(tmp_path, name):
    content, message = BAD[name]
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        read_captions(tmp_path / name)


@pytest.fixture
def folder(tmp_path):
    """Two images with captions, in the layout of Flickr8k."""
    (tmp_path / "images").mkdir()
    for number, name in enumerate(("a.png", "b.png")):
        Image.new("RGB", (40, 30), (200, 100 * number, 0)).save(tmp_path / "images" / name)
    (tmp_path / "captions.txt").write_text(FLICKR)
    for split, name in (("train", "b.png"), ("dev", "a.png")):
        (tmp_path / f"{split}.txt").write_text(f"{name}\n")
    return tmp_path


def flickr(folder, **options):
    captions = str(folder / "captions.txt")
    lists = {"train_list": str(folder / "train.txt"), "validation_list": str(folder / "dev.txt")}
    settings = {"train": captions, "validation": captions, "images": str(folder / "images"), **lists, **options}
    return build_source("caption_files", side=16, **settings)


def test_images_and_captions_of_a_folder(folder):
    source = flickr(folder)
    assert source.check() == []
    assert list(source.rows("train")) == [("b.png", "a dog\ntwo dogs run")]
    assert list(source.rows("validation")) == [("a.png", "a cat")]
    pixels = source.images("train", folder / "cache").read(["b.png"])["image"]
    assert pixels.shape == (1, 3, 16, 16) and pixels[0, :, 3, 3].tolist() == [200, 100, 0]


def test_a_photograph_is_turned_upright(tmp_path):
    """The camera was held sideways: EXIF orientation 6 says that the first row of the file is the right side."""
    photo = Image.new("RGB", (40, 20), (255, 0, 0))
    photo.paste((0, 0, 255), (0, 0, 20, 20))  # the left half of the file, the upper half of the scene
    exif = photo.getexif()
    exif[0x0112] = 6
    photo.save(tmp_path / "photo.png", exif=exif)
    pixels = read_image(tmp_path / "photo.png", 16)
    assert (pixels[2] == [0, 0, 255]).all() and (pixels[-3] == [255, 0, 0]).all()


def test_features_take_the_place_of_images(folder):
    np.savez(folder / "b.npz", features=np.ones((3, 5), np.float32))
    images = flickr(folder, images=None, features=str(folder), max_boxes=4).images("train", folder)
    assert images.shape == ImageShape(width=5, regions=4)
    actual = images.read(["b.png"])
    assert actual["image"].shape == (1, 4, 5) and actual["present"].tolist() == [[True] * 3 + [False]]
    with pytest.raises(ValueError, match="no features of 1 image: a"):
        images.check(["a.png"])


@pytest.mark.parametrize("name", ["COCO_val2014_000000000042", "COCO_val2014_000000000042.jpg", "42"])
def test_features_of_coco_have_the_name_or_the_id_of_their_image(folder, name):
    image = "COCO_val2014_000000000042.jpg"
    (folder / "captions.txt").write_text(f"image,caption\n{image},a dog\n")
    (folder / "train.txt").write_text(f"{image}\n")
    save_file({name: torch.ones(3, 5)}, folder / "features.safetensors")
    images = flickr(folder, images=None, features=str(folder / "features.safetensors")).images("train", folder)
    images.check([image])
    assert images.read([image])["present"].sum() == 3


def test_problems_with_files_are_found_before_reading(folder):
    same = flickr(folder, train_list=None, validation_list=None).check()
    assert len(same) == 2 and "data.train_list=null: validation would share images with it" in str(same)
    [leak] = flickr(folder, train_list=None).check()
    assert "data.train_list=null: validation would share images with it" in str(leak)
    tested = flickr(folder, test=str(folder / "captions.txt"))
    assert tested.check() == [] and "data.test_list=null: train and validation would" in str(tested.check(["test"]))
    twice = flickr(folder, validation_list=str(folder / "train.txt")).check()
    assert "data.validation_list" in str(twice) and "train would share images" in str(twice)
    assert "data.images=null: name the folder of the images" in str(flickr(folder, images=None).check())
    assert "not both" in str(flickr(folder, features=str(folder / "captions.txt")).check())
    assert "no such folder" in str(flickr(folder, validation_images=str(folder / "none")).check())
    assert "no such file" in str(flickr(folder, validation_list=str(folder / "none")).check())


def test_a_missing_damaged_or_too_large_image_is_named(folder, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(DataError, match=r"b\.png: not a readable image: .*exceeds limit"):
        read_image(folder / "images" / "b.png", 16)
    monkeypatch.undo()
    (folder / "train.txt").write_text("b.png\nc.png\n")
    with pytest.raises(ValueError, match=r"train\.txt:2: c\.png has no caption"):
        list(flickr(folder).rows("train"))
    (folder / "train.txt").write_text("b.png\n\nb.png\n")
    with pytest.raises(ValueError, match=r"train\.txt:3: b\.png is also in line 1"):
        read_list(folder / "train.txt")
    (folder / "images" / "a.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"a\.png: not a readable image"):
        flickr(folder).images("validation", folder / "cache")
    (folder / "images" / "a.png").unlink()
    with pytest.raises(ValueError, match=r"images: no such image: a\.png"):
        flickr(folder).images("validation", folder / "cache")
    with pytest.raises(ValueError, match=r"none\.png: no such image"):
        read_image(folder / "none.png", 16)
