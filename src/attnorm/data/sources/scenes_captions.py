"""The built-in corpus `scenes_captions`: rendered scenes with several captions each, generated without download."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from attnorm.data.arrow import progress
from attnorm.data.cache import cached
from attnorm.data.caption_rows import CaptionSource
from attnorm.data.images import MappedPixels, Side, write_pixels
from attnorm.data.readers import text as files
from attnorm.data.sources.base import SPLITS
from attnorm.data.synthetic.scenes.descriptions import captions
from attnorm.data.synthetic.scenes.drawing import draw
from attnorm.data.synthetic.scenes.generate import image_name, scene
from attnorm.schema import Count, WholeNumber


class ScenesCaptions(CaptionSource):
    """`train_size`, `valid_size` and `test_size` scenes, with five captions each.

    side: pixels per side of an image. corpus_seed selects another corpus of the same kind.
    """

    splits = SPLITS

    def __init__(
        self,
        *,
        train_size: Count = 8_000,
        valid_size: Count = 1_000,
        test_size: Count = 1_000,
        side: Side = 64,
        corpus_seed: WholeNumber = 0,
    ):
        self.sizes = {"train": train_size, "validation": valid_size, "test": test_size}
        self.side, self.corpus_seed = side, corpus_seed

    def fingerprint(self, split: str) -> str:
        """A hash of the parameters, and of the first captions, which change if the generator changes."""
        first = [captions(split, index, self.corpus_seed) for index in range(min(50, self.sizes[split]))]
        return files.digest(["scenes_captions", 1, split, self.sizes[split], self.corpus_seed, first])

    def rows(self, split: str) -> Iterator[tuple[str, str]]:
        """Generates (id, captions) one by one."""
        for index in range(self.sizes[split]):
            texts = [caption.text for caption in captions(split, index, self.corpus_seed)]
            yield image_name(split, index), "\n".join(texts)

    def images(self, split: str, cache_dir: str | Path) -> MappedPixels:
        """The rendered scenes of a split."""

        def fill(folder: Path) -> None:
            names = [image_name(split, index) for index in range(self.sizes[split])]
            indices = progress(range(len(names)), f"drawing {split}")
            write_pixels(folder, self.side, names, (self.draw(split, index) for index in indices))

        first = hashlib.blake2b()
        for index in range(min(10, self.sizes[split])):
            first.update(self.draw(split, index).tobytes())
        settings = ["scenes_captions", 1, split, self.sizes[split], self.side, self.corpus_seed, first.hexdigest()]
        return MappedPixels(cached(Path(cache_dir) / f"pixels-{files.digest(settings)}", fill))

    def draw(self, split: str, index: int) -> np.ndarray:
        """Scene number `index` of a split as an image, uint8 (side, side, 3)."""
        return draw(scene(split, index, self.corpus_seed), self.side)
