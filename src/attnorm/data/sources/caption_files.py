"""Images with captions in files, in the layout of COCO or of Flickr8k: captions, and a folder of images or features."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from attnorm.data import validation as checks
from attnorm.data.arrow import progress
from attnorm.data.cache import cached
from attnorm.data.caption_rows import CaptionSource
from attnorm.data.images import Images, MappedPixels, RegionFeatures, Side, read_image, write_pixels
from attnorm.data.readers import text as files
from attnorm.data.readers.caption_formats import read_captions, read_list
from attnorm.data.readers.feature_files import FeatureFiles, view_problem
from attnorm.data.sources.base import NamedSplits, path_of
from attnorm.errors import DataError, Problem
from attnorm.schema import Count


class CaptionFiles(NamedSplits, CaptionSource):
    """`train`, `validation` and `test` are files with captions in the formats of `readers.captions`, or None.

    Several splits may name the same file (Flickr8k). Then each of them needs a list of its images.

    train_list, validation_list, test_list: files with the names of the images of a split, one per line; None: all
              images of the file with captions.
    images:   folder with the image files. features: instead, the path of ready-made features of their regions, in the
              formats of `readers.image_features`, by the name of the image file without its ending.
    train_images, validation_images, test_images: the folder of the images of a split, if it is not `images`.
    side:     images are cut to a square and scaled to so many pixels per side; not used with features.
    max_boxes: the maximum number of regions of an image with features; more raise an error.
    """

    def __init__(
        self,
        *,
        train: str | None,
        validation: str | None = None,
        test: str | None = None,
        train_list: str | None = None,
        validation_list: str | None = None,
        test_list: str | None = None,
        images: str | None = None,
        train_images: str | None = None,
        validation_images: str | None = None,
        test_images: str | None = None,
        features: str | None = None,
        side: Side = 128,
        max_boxes: Count = 100,
    ):
        self.named = {"train": train, "validation": validation, "test": test}
        self.lists = {"train": train_list, "validation": validation_list, "test": test_list}
        folders = {"train": train_images, "validation": validation_images, "test": test_images}
        self.folders = {split: folder or images for split, folder in folders.items()}
        self.features, self.side, self.max_boxes = features, side, max_boxes

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Missing files and folders, neither or both of images and features, and splits that share their images."""
        problems = checks.split_files(self.named, splits, files.file_problem)
        for split in splits:
            listed = self.lists[split]
            if listed is not None:
                problems += files.file_problem(f"data.{split}_list={listed}", Path(listed))
            others = [other for other in self.splits if other != split and self.named[other] == self.named[split]]
            if same := [other for other in others if listed is None or self.lists[other] == listed]:
                message = f"{' and '.join(same)} would share images with it; give a list of the images of {split} alone"
                problems.append(Problem(f"data.{split}_list", message, listed))
        return [*problems, *self._image_problems(splits)]

    def _image_problems(self, splits: Sequence[str]) -> list[str]:
        folders = {split: folder for split, folder in self.folders.items() if folder is not None}
        if self.features is not None:
            both = [Problem("data.features", "give features or folders of images, not both", self.features)]
            return view_problem(f"data.features={self.features}", Path(self.features)) + both * bool(folders)
        missing = [split for split in splits if split not in folders]
        if missing:
            message = f"name the folder of the images of {' and '.join(missing)}, or data.features"
            return [Problem("data.images", message, None)]
        wrong = {folder: None for split, folder in folders.items() if split in splits and not Path(folder).is_dir()}
        return [Problem("data.images", "no such folder", folder) for folder in wrong]

    def fingerprint(self, split: str) -> str:
        """A hash of the captions and of the list of images."""
        listed = self.lists[split]
        paths = [path_of(self.named, split), *([] if listed is None else [Path(listed)])]
        return files.digest(["caption_files", 2, len(paths)], *paths)

    def rows(self, split: str) -> Iterator[tuple[str, str]]:
        """Streams (id, captions). The id is the name of the image file.

        Raises ValueError that names file and line for bad captions, and for a listed image that has no captions.
        """
        for image, captions in self._captions(split).items():
            yield image, "\n".join(captions)

    def images(self, split: str, cache_dir: str | Path) -> Images:
        """The images of a split: scaled once and kept in the cache, or ready-made features, which are read in place."""
        if self.features is not None:
            return RegionFeatures(FeatureFiles([self.features], self.max_boxes))
        folder, names = Path(str(self.folders[split])), list(self._captions(split))
        paths = [folder / name for name in names]
        if missing := [path.name for path in paths if not path.is_file()]:
            more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise DataError(f"{folder}: no such image: {missing[0]}{more}, of {self.named[split]}")

        def fill(target: Path) -> None:
            pixels = (read_image(path, self.side) for path in progress(paths, f"scaling {split}"))
            write_pixels(target, self.side, names, pixels)

        stamps = [[path.name, (about := path.stat()).st_size, about.st_mtime_ns] for path in paths]
        key = files.digest(["caption_files", 2, str(folder.resolve()), self.side, stamps])
        return MappedPixels(cached(Path(cache_dir) / f"pixels-{key}", fill))

    def _captions(self, split: str) -> Mapping[str, list[str]]:
        """The captions of the images of a split."""
        path, listed = path_of(self.named, split), self.lists[split]
        captions = read_captions(path)
        if listed is None:
            return captions
        names = read_list(Path(listed))
        for name, line in names.items():
            if name not in captions:
                raise DataError(f"{listed}:{line}: {name} has no caption in {path}")
        return {name: captions[name] for name in names}
