"""The built-in corpus `scenes` as a source. It is generated, so that everything can run without other data."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from attnorm.data.arrow import progress
from attnorm.data.cache import cached
from attnorm.data.image_features import MappedFeatures, VisualSource, write_features
from attnorm.data.readers import text as files
from attnorm.data.sources.base import SPLITS
from attnorm.data.synthetic.scenes.detectors import BOXES, DETECTORS, detect
from attnorm.data.synthetic.scenes.generate import image_name
from attnorm.data.synthetic.scenes.questions import PER_SCENE, questions
from attnorm.schema import Count, WholeNumber


class Scenes(VisualSource):
    """`train_size`, `valid_size` and `test_size` questions, four per scene.

    `corpus_seed` selects another corpus of the same kind.
    """

    splits = SPLITS

    def __init__(
        self,
        *,
        train_size: Count = 80_000,
        valid_size: Count = 2_000,
        test_size: Count = 2_000,
        corpus_seed: WholeNumber = 0,
    ):
        self.sizes = {"train": train_size, "validation": valid_size, "test": test_size}
        self.corpus_seed = corpus_seed

    def scenes(self, split: str) -> int:
        """The number of scenes for the questions of a split."""
        return -(-self.sizes[split] // PER_SCENE)

    def fingerprint(self, split: str) -> str:
        """A hash of the parameters and of the first questions, which change if the generator changes."""
        first = [questions(split, index, self.corpus_seed) for index in range(min(50, self.scenes(split)))]
        return files.digest(["scenes", 1, split, self.sizes[split], self.corpus_seed, first])

    def rows(self, split: str) -> Iterator[tuple[str, str, str, str, str]]:
        """Generates (id, image, question, answers, kind) one by one."""
        for number in range(self.sizes[split]):
            index, position = divmod(number, PER_SCENE)
            if position == 0:
                asked = questions(split, index, self.corpus_seed)
            question = asked[position]
            answers = json.dumps([question.answer])
            yield f"{split}-{number}", image_name(split, index), question.text, answers, question.kind

    def views(self, split: str, cache_dir: str | Path) -> MappedFeatures:
        """The outputs of the detectors for the scenes of a split."""
        scenes = self.scenes(split)

        def fill(folder: Path) -> None:
            names, widths = zip(*((detector.name, detector.width) for detector in DETECTORS), strict=True)
            scene_views = (
                detect(split, index, self.corpus_seed) for index in progress(range(scenes), f"looking at {split}")
            )
            images = [image_name(split, index) for index in range(scenes)]
            boxes = ([(view.features, view.places) for view in views] for views in scene_views)
            write_features(folder, names, widths, [BOXES] * len(names), images, boxes)

        first = hashlib.blake2b()
        for index in range(min(10, scenes)):
            for view in detect(split, index, self.corpus_seed):
                first.update(view.features.astype("f2").tobytes() + view.places.astype("f4").tobytes())
        settings = ["scenes", 1, split, scenes, self.corpus_seed, first.hexdigest()]
        return MappedFeatures(cached(Path(cache_dir) / f"views-{files.digest(settings)}", fill))
