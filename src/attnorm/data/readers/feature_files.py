"""Features of images in files, one path a view: a folder of .npz files, one .h5 file, or one .safetensors file.

.npz          a file an image, <id>.npz, or named as COCO names its images, COCO_val2014_<id, 12 digits>.jpg.npz or
              <id, 12 digits>.npz: arrays
              features or x (boxes, width); boxes or bbox (boxes, 4) in pixels with image_w and image_h, or in [0, 1]
              without; num_boxes or num_bbox, if only the first so many are there
.h5           a group an image, named by its id, that holds the same (sizes and counts may be attributes); or just its
              features
.safetensors  tensors <id> (boxes, width) and, if there is a geometry, <id>.boxes (boxes, 4) in [0, 1]
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnorm.data.image_features import Boxes, ImageFeatures, View, coco_id, padded, refuse_missing
from attnorm.data.readers import text as files
from attnorm.errors import DataError

ENDINGS = (".h5", ".hdf5", ".safetensors")
# The name that we use, and those that files have.
_NAMES = {
    "features": ("features", "x"),
    "boxes": ("boxes", "bbox"),
    "count": ("num_boxes", "num_bbox"),
    "width": ("image_w",),
    "height": ("image_h",),
}


class FeatureFiles(ImageFeatures):
    """One view from each of `paths`, the primary one first. More than `max_boxes` boxes of an image raise an error.

    The first image of a view determines its width and whether it has a geometry. Only the requested features are read.
    Raises ValueError for a view that cannot be opened or has no images.
    """

    def __init__(self, paths: Sequence[str | Path], max_boxes: int):
        self.readers: list[FeatureReader] = []
        for path in map(Path, paths):
            if problems := view_problem(f"features {path}", path):
                raise DataError(problems[0])
            kind = NpzFolder if path.is_dir() else SafetensorsFile if path.suffix == ".safetensors" else Hdf5File
            self.readers.append(kind(path))
        self.names = [each.path.name for each in self.readers]
        self.boxes = [max_boxes] * len(self.readers)
        self.widths, self.geometry = [], []
        for each in self.readers:
            if each.first is None:
                raise DataError(f"{each.path}: no features of any image in it")
            features, geometry = each.boxes(each.first)
            self.widths.append(features.shape[1])
            self.geometry.append(geometry is not None)

    def has(self, image: str) -> bool:
        return all(image in each.images() for each in self.readers[: len(self.names)])

    def check(self, images: Iterable[str]) -> None:
        images, of_views = list(images), {each.path: each.images() for each in self.readers[: len(self.names)]}
        refuse_missing({path: [image for image in images if image not in known] for path, known in of_views.items()})

    def read(self, images: Sequence[str]) -> list[View]:
        return [
            padded([self._boxes(view, image) for image in images], self.boxes[view], self.widths[view])
            for view in range(len(self.names))
        ]

    def _boxes(self, view: int, image: str) -> Boxes:
        each, width, most = self.readers[view], self.widths[view], self.boxes[view]
        refuse_missing({each.path: [image] * (image not in each.images())})
        features, geometry = each.boxes(image)
        if features.shape[1] != width:
            wrong = f"{features.shape[1]} features per box, but image {each.first} has {width}"
        elif len(features) > most:
            wrong = f"{len(features)} boxes, but data.max_boxes={most}"
        elif (geometry is not None) != self.geometry[view]:
            here, there = ("without", "them") if geometry is None else ("with", "none")
            wrong = f"boxes {here} places, but image {each.first} has {there}"
        else:
            return features, geometry
        raise DataError(f"{each.where(image)}: image {image}: {wrong}")


def view_problem(key: str, path: Path) -> list[str]:
    """A problem if `path` is not a folder with .npz files or a nonempty file of a known format."""
    if path.is_dir():
        return [] if any(path.glob("*.npz")) else [f"{key}: no .npz file in this folder"]
    if path.exists() and path.suffix not in ENDINGS:
        return [f"{key}: unknown format; a folder of .npz files, or a file {', '.join(ENDINGS)}"]
    return files.file_problem(key, path)


class FeatureReader(ABC):
    """Features of images at one path."""

    def __init__(self, path: Path):
        self.path = path
        self._opened: tuple[int | None, Any] = (None, None)

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_opened": (None, None)}

    def opened(self) -> Any:
        """The result of `open` in this process. The workers of a loader must not share a file with the main process."""
        if self._opened[0] != os.getpid():
            try:
                self._opened = (os.getpid(), self.open())
            except (OSError, ValueError) as error:
                raise DataError(f"{self.path}: cannot be read: {error}") from error
        return self._opened[1]

    @abstractmethod
    def open(self) -> Any:
        """Opens what is needed for reading: a file, or an index."""

    def images(self) -> Collection[str]:
        """The ids of the images: by default, what is opened."""
        return self.opened()

    @property
    def first(self) -> str | None:
        """The image that determines the properties of the view. None if there are no images."""
        return next(iter(self.images()), None)

    @abstractmethod
    def arrays(self, image: str) -> Mapping[str, np.ndarray]:
        """The available arrays of an image, with the names of _NAMES."""

    def where(self, image: str) -> Path:
        """The file with the features of this image."""
        return self.path

    def boxes(self, image: str) -> Boxes:
        """Returns features, float32 (n, width), and geometry in [0, 1].

        Raises ValueError that names image and file if they are invalid.
        """
        try:
            arrays = self.arrays(image)
        except Exception as error:  # for a damaged file, the libraries raise zlib.error, NotImplementedError and others
            raise DataError(f"{self.where(image)}: image {image}: cannot be read: {error}") from error
        try:
            return _boxes(arrays)
        except (ValueError, TypeError) as error:
            said = error if isinstance(error, DataError) else f"cannot be read: {error}"
            raise DataError(f"{self.where(image)}: image {image}: {said}") from error


class NpzFolder(FeatureReader):
    """.npz files."""

    def open(self) -> dict[str, str]:
        index = {}
        for name in sorted(entry.name for entry in os.scandir(self.path) if entry.name.endswith(".npz")):
            stem = name.removesuffix(".npz")
            index[stem] = name
            if (number := coco_id(stem)) is not None:
                index[number] = name
        return index

    def where(self, image: str) -> Path:
        return self.path / self.opened()[image]

    def arrays(self, image: str) -> dict[str, np.ndarray]:
        with np.load(self.where(image), allow_pickle=False) as arrays:
            return _renamed(arrays)


class Hdf5File(FeatureReader):
    """HDF5."""

    def open(self) -> Any:
        try:
            import h5py
        except ImportError as error:
            raise DataError("h5py is not installed; pip install h5py") from error
        return h5py.File(self.path, "r")

    def arrays(self, image: str) -> dict[str, np.ndarray]:
        entry = self.opened()[image]
        if not hasattr(entry, "keys"):
            return _renamed({"features": entry} | dict(entry.attrs))
        return _renamed(dict(entry.attrs) | dict(entry.items()))


class SafetensorsFile(FeatureReader):
    """Safetensors."""

    def open(self) -> Any:
        from safetensors import SafetensorError, safe_open

        try:
            file = safe_open(self.path, framework="pt")
        except SafetensorError as error:
            raise DataError(str(error)) from error
        names = dict.fromkeys(file.keys())
        return file, names, {name: None for name in names if not name.endswith(".boxes")}

    def images(self) -> Collection[str]:
        return self.opened()[2]

    def arrays(self, image: str) -> dict[str, np.ndarray]:
        file, names, _ = self.opened()
        tensors = {"features": image, "boxes": f"{image}.boxes"}
        return {our_name: file.get_tensor(name).float().numpy() for our_name, name in tensors.items() if name in names}


def _renamed(arrays: Mapping) -> dict[str, np.ndarray]:
    return {
        our_name: np.asarray(arrays[name]) for our_name, names in _NAMES.items() for name in names if name in arrays
    }


def _boxes(arrays: Mapping[str, np.ndarray]) -> Boxes:
    if "features" not in arrays:
        raise DataError("no array 'features' or 'x'")
    with np.errstate(over="ignore"):  # too large values become infinite and are rejected below
        features, places = arrays["features"].astype(np.float32), arrays.get("boxes")
    if features.ndim != 2:
        raise DataError(f"the features have the shape {features.shape}, not (boxes, width) of one image")
    if places is not None:
        if places.ndim != 2 or places.shape[1] != 4:
            raise DataError(f"the boxes have the shape {places.shape}, not (boxes, 4)")
        if len(features) != len(places) == features.shape[1]:
            features = features.T  # a widespread form of the bottom-up features is (width, boxes)
        if len(features) != len(places):
            raise DataError(f"features of {len(features)} boxes, but places of {len(places)}")
    count = int(arrays.get("count", len(features)))
    if not 0 <= count <= len(features):
        raise DataError(f"the number of boxes is {count}, but there are features of {len(features)}")
    features = features[:count]
    if not np.isfinite(features).all():
        box = int((~np.isfinite(features)).any(1).argmax())
        raise DataError(f"NaN or infinite features (box {box})")
    return features, None if places is None else _shares(places[:count].astype(np.float32), arrays)


def _shares(places: np.ndarray, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Boxes as fractions of the image's width and height."""
    if "width" in arrays and "height" in arrays:
        width, height = float(arrays["width"]), float(arrays["height"])
        if not (width > 0 and height > 0):
            raise DataError(f"the image is said to be {width:g} x {height:g} pixels")
        places = places / np.array([width, height, width, height], np.float32)
    if not ((places >= -0.01) & (places <= 1.01)).all():  # also NaN; detectors overshoot by a pixel
        raise DataError(
            "boxes outside the image; they are in pixels and image_w, image_h are missing or not the image's"
        )
    return places.clip(0.0, 1.0)
