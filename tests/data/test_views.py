"""Views: arrays of our own and files of others give the same boxes, lazily; what is wrong names image and file."""

import errno
import os
import pickle
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_tensors

from attnorm.cli.errors import exit_code
from attnorm.data.cache import cached
from attnorm.data.image_features import MappedFeatures, new_array, padded, write_features
from attnorm.data.images import write_pixels
from attnorm.data.readers.feature_files import FeatureFiles, view_problem

WIDTH, MOST = 5, 4
SIZE = (200.0, 100.0)  # width and height in pixels
COUNTS = {"7": 3, "12": 4, "300": 1, "x_y": 2}


def boxes_of(image):
    """(features, geometry) of an image, told by its name."""
    random = np.random.default_rng(sum(map(ord, image)))
    corners = random.random((COUNTS[image], 2, 2))
    geometry = np.concatenate([corners.min(1), corners.max(1)], 1)
    return random.standard_normal((COUNTS[image], WIDTH)).astype("f2").astype("f4"), geometry.astype("f4")


def npz(folder, image, name=None, **changes):
    folder.mkdir(exist_ok=True)
    features, geometry = boxes_of(image)
    arrays = {"features": features, "boxes": geometry * [*SIZE, *SIZE], "image_w": SIZE[0], "image_h": SIZE[1]}
    arrays = {key: value for key, value in (arrays | changes).items() if value is not None}
    np.savez(folder / (name or f"{image}.npz"), **arrays)


def folder_of(path, images=COUNTS):
    for image in images:
        npz(path, image)
    return path


def tensors_of(path, images=COUNTS):
    tensors = {}
    for image in images:
        tensors[image], tensors[f"{image}.boxes"] = boxes_of(image)
    save_file(tensors, path)
    return path


def groups_of(path, images=COUNTS, attributes=False):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(path, "w") as file:
        for image in images:
            features, geometry = boxes_of(image)
            group = file.create_group(image)
            group["x"], group["bbox"] = features, geometry * [*SIZE, *SIZE]
            for key, value in (("image_w", SIZE[0]), ("image_h", SIZE[1])):
                if attributes:
                    group.attrs[key] = value
                else:
                    group[key] = value
    return path


def arrays_of(path, images=COUNTS):
    path.mkdir()
    write_features(path, ["v"], [WIDTH], [MOST], list(images), ([boxes_of(image)] for image in images))
    return path


MAKERS = {
    "arrays": lambda path: MappedFeatures(arrays_of(path)),
    "npz": lambda path: FeatureFiles([folder_of(path)], MOST),
    "safetensors": lambda path: FeatureFiles([tensors_of(path.with_suffix(".safetensors"))], MOST),
    "h5": lambda path: FeatureFiles([groups_of(path.with_suffix(".h5"))], MOST),
    "hdf5": lambda path: FeatureFiles([groups_of(path.with_suffix(".hdf5"), attributes=True)], MOST),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_every_form_gives_the_same_boxes(tmp_path, kind):
    views = MAKERS[kind](tmp_path / "v")
    assert views.widths == [WIDTH] and views.boxes == [MOST] and len(views.names) == 1
    views.check(COUNTS)
    size = len(pickle.dumps(views))
    for images in (["12", "7"], ["300"], ["x_y", "x_y", "7"]):
        for reader in (views, pickle.loads(pickle.dumps(views))):
            ((features, present, geometry),) = reader.read(images)
            assert features.dtype == geometry.dtype == torch.float32 and present.dtype == torch.bool
            assert features.shape == (len(images), MOST, WIDTH) and geometry.shape == (len(images), MOST, 4)
            for row, image in enumerate(images):
                count = COUNTS[image]
                assert present[row].tolist() == [True] * count + [False] * (MOST - count)
                np.testing.assert_array_equal(features[row, :count], boxes_of(image)[0])
                np.testing.assert_allclose(geometry[row, :count], boxes_of(image)[1], atol=1e-6)
                assert not features[row, count:].any() and not geometry[row, count:].any()
    assert len(pickle.dumps(views)) == size  # what has been opened does not travel


@pytest.mark.parametrize("kind", MAKERS)
def test_images_without_features_are_named(tmp_path, kind):
    views = MAKERS[kind](tmp_path / "v")
    for use in (views.check, views.read):
        with pytest.raises(ValueError, match=rf"{tmp_path}.*: no features of 1 image: no$"):
            use(["7", "no"])
    with pytest.raises(ValueError, match=r"no features of 12 images: a0, a1, .*, a9, \.\.\.$"):
        views.check([f"a{i}" for i in range(12)])


def test_several_views_have_widths_and_names_of_their_own(tmp_path):
    first, second = folder_of(tmp_path / "one"), tmp_path / "two.safetensors"
    save_tensors({image: torch.ones(2, 3, dtype=torch.bfloat16) for image in COUNTS}, second)
    views = FeatureFiles([first, second], 6)
    assert views.names == ["one", "two.safetensors"] and views.widths == [WIDTH, 3] and views.boxes == [6, 6]
    (_, _, geometry), (features, present, none) = views.read(["7", "12"])
    assert none is None and geometry is not None
    assert features.shape == (2, 6, 3) and present.sum() == 4 and features.dtype == torch.float32
    write_features(
        tmp_path, ["a", "b"], [5, 3], [4, 2], ["7"], [[boxes_of("7"), (np.full((1, 3), 2.0), np.zeros((1, 4)))]]
    )
    (features, _, _), (small, present, _) = MappedFeatures(tmp_path).read(["7"])
    assert features.shape == (1, 4, 5) and small.tolist() == [[[2.0] * 3, [0.0] * 3]]
    assert present.tolist() == [[True, False]]


def test_files_are_found_by_the_names_that_coco_has(tmp_path):
    npz(tmp_path / "v", "7", "COCO_val2014_000000000007.jpg.npz")
    npz(tmp_path / "v", "300", "COCO_train2014_000000000300.npz")
    npz(tmp_path / "v", "7", "000000000012.npz")
    npz(tmp_path / "v", "x_y")
    views = FeatureFiles([tmp_path / "v"], MOST)
    views.check(["7", "300", "12", "000000000012", "x_y"])
    np.testing.assert_array_equal(views.read(["300"])[0][0][0, :1], boxes_of("300")[0])
    with pytest.raises(ValueError, match="no features of 1 image: y"):
        views.check(["y"])


def test_npz_files_have_several_habits(tmp_path):
    features, geometry = boxes_of("7")

    def read(**changes):
        npz(tmp_path / "v", "7", **changes)
        return FeatureFiles([tmp_path / "v"], MOST).read(["7"])[0]

    plain = read()
    for changes in (
        {"features": None, "x": features, "boxes": None, "bbox": geometry * [*SIZE, *SIZE]},
        {"features": features.T},  # (width, boxes): the boxes tell
        {"features": features.astype("f8"), "num_boxes": 3},
        {"boxes": geometry, "image_w": None, "image_h": None},
    ):
        for model, reference in zip(read(**changes), plain, strict=True):
            torch.testing.assert_close(model, reference)
    _, present, actual = read(num_bbox=2)
    assert present.tolist() == [[True, True, False, False]] and not actual[0, 2:].any()
    features, _, actual = read(boxes=None)
    assert actual is None and features.shape == (1, MOST, WIDTH)
    assert not read(num_boxes=0)[1].any()
    overshot = np.array([[-1.0, 0, 201, 50]] * 3)  # a pixel
    assert read(boxes=overshot)[2][0, 0].tolist() == [0.0, 0.0, 1.0, 0.5]


def nan(image, row):
    features = boxes_of(image)[0].copy()
    features[row, 1] = np.nan
    return features


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": nan("7", 2)}, r"NaN or infinite features \(box 2\)"),
        ({"features": np.full((3, WIDTH), 1e39)}, r"NaN or infinite features \(box 0\)"),
        ({"features": np.full((3, WIDTH), -np.inf)}, r"NaN or infinite"),
        ({"features": np.ones((3, WIDTH + 1))}, r"6 features per box, but image \d+ has 5"),
        ({"features": np.ones((MOST + 1, WIDTH)), "boxes": np.zeros((5, 4))}, r"5 boxes, but data.max_boxes=4"),
        ({"features": np.ones((2, WIDTH))}, r"features of 2 boxes, but places of 3"),
        ({"features": np.ones(WIDTH)}, r"the features have the shape \(5,\), not \(boxes, width\)"),
        ({"boxes": np.ones((3, 5))}, r"the boxes have the shape \(3, 5\), not \(boxes, 4\)"),
        ({"boxes": None}, r"boxes without places, but image \d+ has them"),
        ({"image_w": None}, r"boxes outside the image; they are in pixels and image_w, image_h are missing"),
        ({"image_w": 20.0}, r"boxes outside the image"),
        ({"boxes": np.full((3, 4), np.nan)}, r"boxes outside the image"),
        ({"image_h": 0.0}, r"the image is said to be 200 x 0 pixels"),
        ({"num_boxes": 9}, r"the number of boxes is 9, but there are features of 3"),
        ({"features": None}, r"no array 'features' or 'x'"),
        ({"features": np.array([["a"]])}, r"cannot be read"),
        ({"features": np.array([None])}, r"cannot be read"),
    ],
)
def test_features_that_cannot_be_used_name_image_and_file(tmp_path, changes, message):
    npz(tmp_path / "v", "12")
    npz(tmp_path / "v", "7", **changes)
    views = FeatureFiles([tmp_path / "v"], MOST)
    views.read(["12"])
    with pytest.raises(ValueError, match=rf"{tmp_path / 'v' / '7.npz'}: image 7: {message}"):
        views.read(["12", "7"])


def test_other_files_and_images_beside_others_are_checked_as_well(tmp_path):
    path = tmp_path / "v.safetensors"
    features, geometry = boxes_of("7")
    save_file({"12": features, "12.boxes": geometry, "7": nan("7", 0), "7.boxes": geometry}, path)
    with pytest.raises(ValueError, match=rf"{path}: image 7: NaN"):
        FeatureFiles([path], MOST).read(["7"])
    for tensors, message in (
        ({"12": features, "12.boxes": geometry * 100}, r"v.safetensors: image 12: boxes outside the image"),
        ({"7.boxes": geometry[:1]}, r"v.safetensors: no features of any image"),
    ):
        save_file(tensors, path)
        with pytest.raises(ValueError, match=message):
            FeatureFiles([path], MOST)
    npz(tmp_path / "v", "12", boxes=None)
    npz(tmp_path / "v", "7")
    with pytest.raises(ValueError, match=r"7.npz: image 7: boxes with places, but image \d+ has none"):
        FeatureFiles([tmp_path / "v"], MOST).read(["7"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.h5", None, "v.h5: no such file"),
        ("v.h5", b"", "v.h5: the file is empty"),
        ("v.npy", b"x", r"v.npy: unknown format; a folder of .npz files, or a file .h5, .hdf5, .safetensors"),
        ("v", "folder", "no .npz file in this folder"),
        ("v.safetensors", b"nothing of the sort", "v.safetensors: cannot be read"),
        ("a/7.npz", b"torn", "7.npz: image 7: cannot be read"),
    ],
)
def test_a_view_that_cannot_be_opened(tmp_path, name, content, message):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    view = path.parent if path.suffix == ".npz" else path
    with pytest.raises(ValueError, match=message):
        FeatureFiles([view], MOST)
    if content in (None, b"", b"x", "folder"):
        (problem,) = view_problem(f"data.features[0]={view}", view)
        assert problem.startswith(f"data.features[0]={view}: ")
    else:
        assert view_problem("x", view) == []


def test_h5_says_what_it_needs(tmp_path, monkeypatch):
    (tmp_path / "v.h5").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ValueError, match=r"v.h5: .*h5py is not installed; pip install h5py"):
        FeatureFiles([tmp_path / "v.h5"], MOST)


def test_h5_may_hold_bare_features_and_is_checked(tmp_path):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file["7"] = boxes_of("7")[0]
        file["9"] = np.full((2, WIDTH), np.nan)
    views = FeatureFiles([tmp_path / "v.h5"], MOST)
    ((features, present, geometry),) = views.read(["7"])
    assert geometry is None and present.sum() == 3
    np.testing.assert_array_equal(features[0, :3], boxes_of("7")[0])
    with pytest.raises(ValueError, match=r"v.h5: image 9: NaN"):
        views.read(["9"])
    (tmp_path / "w.h5").write_bytes(b"torn")
    with pytest.raises(ValueError, match=r"w.h5: cannot be read"):
        FeatureFiles([tmp_path / "w.h5"], MOST)


def test_padding_keeps_each_image_apart():
    views = padded([(np.ones((2, 3)), None), (np.zeros((0, 3)), None)], 2, 3)
    assert views[1].tolist() == [[True, True], [False, False]] and views[2] is None and views[0].sum() == 6


LAZY = """
import json, resource, struct, sys
import numpy as np
from pathlib import Path
from attnorm.data.readers.feature_files import FeatureFiles
from attnorm.data.image_features import MappedFeatures

folder, images, boxes, width = Path(sys.argv[1]), 2000, 64, 1024
size = boxes * width * 4  # 500 MB a file, all of it zeros, so that it costs no disk
header = {str(i): {"dtype": "F32", "shape": [boxes, width], "data_offsets": [i * size, (i + 1) * size]}
          for i in range(images)}
text = json.dumps(header).encode()
with open(folder / "big.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    file.truncate(8 + len(text) + images * size)
shapes = {"features": ("f2", (boxes, width)), "present": ("?", (boxes,)), "geometry": ("f4", (boxes, 4))}
for name, (dtype, shape) in shapes.items():
    np.lib.format.open_memmap(folder / f"view0.{name}.npy", "w+", dtype, (images, *shape))
about = {"names": ["v"], "widths": [width], "boxes": [boxes], "images": [str(i) for i in range(images)]}
(folder / "views.json").write_text(json.dumps(about))

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

def own():  # without the pages of files, which the system takes back as it needs them
    return int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]) / 1024

makers = (lambda: FeatureFiles([folder / "big.safetensors"], boxes), lambda: MappedFeatures(folder))
for measure, number in ((peak, 30), (own, images)):
    for maker in makers:
        before = measure()
        views = maker()
        for first in range(0, number, 10):
            views.read([str(i) for i in range(first, first + 10)])
        print(measure() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks the system how much memory a process has")
@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", LAZY, tmp_path], capture_output=True, text=True, timeout=200, check=True
    )
    grown = [float(line) for line in ran.stdout.split()]
    assert len(grown) == 4 and max(grown) < 60, grown  # MB; the files are of 500 and 250


# disks


@pytest.fixture
def small_files():
    """Files may grow to 100,000 bytes only: like a full disk, but without the right to mount one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def unused():
    raise AssertionError("an image was made although there is no room for it")
    yield


@pytest.mark.parametrize("function", ["posix_fallocate", "write"])
@pytest.mark.parametrize(
    ("write", "file"),
    [
        (lambda folder: write_pixels(folder, 64, ["a"] * 100, unused()), "pixels.npy"),
        (lambda folder: write_features(folder, ["v"], [100], [50], ["a"] * 100, unused()), "view0.features.npy"),
    ],
)
def test_a_full_disk_is_noticed_before_the_first_image_and_named(
    monkeypatch, capsys, tmp_path, small_files, function, write, file
):
    if function == "write":  # as on a file system that cannot allocate
        monkeypatch.delattr(os, "posix_fallocate")
    assert exit_code(lambda: cached(tmp_path / "images", write)) == 1
    said = capsys.readouterr().err
    assert f"images.part/{file}'" in said and "Traceback" not in said
    assert list(tmp_path.glob("images*/*")) == []


def test_the_disk_has_room_for_every_page_that_is_mapped(tmp_path):
    array = new_array(tmp_path / "x.npy", "u1", (100, 1000))
    assert (tmp_path / "x.npy").stat().st_blocks * 512 >= array.nbytes
    assert array.shape == (100, 1000) and not array.any()


def test_an_error_without_a_file_gets_the_folder_that_is_prepared(tmp_path):
    def build(folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=str(tmp_path / "rows")):
        cached(tmp_path / "rows", build)
