"""Image captioning: images with several captions each, models that write captions, and CIDEr-D, BLEU-4 and ROUGE-L."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field

from attnorm.data.captions import CAPTIONS
from attnorm.data.images import Images, ImageShape
from attnorm.data.preprocess import Split
from attnorm.data.readers.text import digest, read_json
from attnorm.data.sampler import MicroBatch
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import DataError, RunError
from attnorm.models.generation import Decoding
from attnorm.progress import tracked
from attnorm.schema import Share
from attnorm.spec.settings import ResolvedConfig
from attnorm.tasks.captioning.features import CaptionCollator, CaptionFeaturizer
from attnorm.tasks.captioning.generate import NamedImages, write, write_captions
from attnorm.tasks.captioning.metric import CORPUS_METRICS, CaptionMetric, overall
from attnorm.tasks.captioning.module import CaptioningModule, references, sample
from attnorm.tasks.input_hashes import hash_of, hash_of_image
from attnorm.tasks.results import Predictions, Results
from attnorm.tasks.seq2seq.base import length_problems
from attnorm.tasks.task import Task, TaskConfig, Tokens

FILE = "images.json"


@dataclass(frozen=True, kw_only=True)
class CaptioningTaskConfig(TaskConfig):
    """The keys of `task`, as in conf/task/captioning.yaml."""

    label_smoothing: Share = 0.0
    scored_images: Annotated[int, Field(ge=0, le=1000)] = 100


class CaptioningTask(Task):
    """task=captioning.

    The shape of the images is a fact of the training data. A run folder keeps it in images.json.
    """

    Config, groups = CaptioningTaskConfig, {"decoding": Decoding}
    interface, schema, unit = "captioning", CAPTIONS, "images"
    primary = "CIDEr-D"
    scoring, monitoring = ("decoding",), ("task.scored_images",)

    def __init__(self, cfg: ResolvedConfig):
        super().__init__(cfg)
        self._shape: ImageShape | None = None

    def images(self, split: str) -> Images:
        """The images of a split."""
        source: Any = self.source()  # a CaptionSource, or one like it
        return source.images(split, self.cache())

    def shape(self) -> ImageShape:
        """The shape of the images on which the model was trained, or is going to be."""
        if self._shape is None:
            self._shape = self.images("train").shape
        return self._shape

    def save(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(asdict(self.shape())) + "\n", encoding="utf-8")

    def load(self, folder: Path) -> None:
        path = folder / FILE
        try:
            self._shape = ImageShape(**read_json(path))
        except TypeError as error:
            raise RunError(f"{path}: expected an object with side, width and regions") from error
        except (ValueError, OSError, RecursionError) as error:
            raise RunError(f"{path}: {error}") from error

    def data_fingerprints(self, splits: dict[str, Split]) -> dict[str, str]:
        """Fingerprints of the captions and of the shape of the images."""
        captions = super().data_fingerprints(splits)
        return {name: digest([of_split, asdict(self.shape())]) for name, of_split in captions.items()}

    def featurizer(self) -> CaptionFeaturizer:
        return CaptionFeaturizer(self.cfg.model.max_target)

    def model(self, tokenizer: Tokenizer) -> torch.nn.Module:
        return self.build_model(tokenizer, **asdict(self.shape()))

    def module(self, model: torch.nn.Module, tokenizer: Tokenizer, validation: Split) -> CaptioningModule:
        return CaptioningModule(
            model,
            tokenizer,
            validation.texts,
            label_smoothing=self.config.label_smoothing,
            scored_images=self.config.scored_images,
            max_length=self.decoding().max_length,
        )

    def collator(self, split: Split) -> CaptionCollator:
        images, tokenizer = self.images(split.name), split.tokenizer
        if (images.shape.side, images.shape.width) != (self.shape().side, self.shape().width):
            own, trained = asdict(images.shape), asdict(self.shape())
            raise DataError(f"data: the images have another shape ({own}) than those of the model ({trained})")
        return CaptionCollator(split.rows, split.texts, images, tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)

    def input_hashes(self, split: Split) -> list[str]:
        images = self.images(split.name)
        return [f"{hash_of(row)}-{hash_of_image(*images.read([row['id']]).values())}" for row in split.texts]

    def row_hashes(self, split: Split) -> list[str]:
        """Hashes of the images."""
        return [hashed.rpartition("-")[2] for hashed in self.input_hashes(split)]

    def row_groups(self, split: Split) -> list[object]:
        return list(split.texts["id"])

    def decoding(self) -> Decoding:
        """The decoding options of the final captions."""
        return self.group("decoding")

    def problems(self, is_valid: Callable[..., bool]) -> Iterator[str]:
        return length_problems(self.decoding(), self.cfg.model, is_valid)

    def generate(self, model: Any, tokenizer: Tokenizer, texts: list[str]) -> list[str]:
        """One caption for each image. texts: paths of image files, or ids of images of the data."""
        splits = [name for name in ("validation", "test", "train") if name in self.source().splits]
        images = NamedImages(self.shape(), splits, self.images)
        images.check(texts)
        return write_captions(model, tokenizer, images, texts, self.decoding(), self.cfg.data.batch_tokens)

    def attended_example(self, model: Any, split: Split, row: int) -> tuple[tuple, Tokens]:
        """The model looks at an image and writes a caption. Each query is named by the word that it predicts; those of
        self-attention by the word before."""
        device = next(model.parameters()).device
        batch = {name: tensor.to(device) for name, tensor in self.collator(split)[MicroBatch([row], 1)].items()}
        tokenizer, image, present = split.tokenizer, batch["image"], batch.get("present")
        [written] = write(model, tokenizer, image, present, self.decoding())
        words = [tokenizer.token(number) for number in (tokenizer.bos_id, *written, tokenizer.eos_id)]
        before, after = words[:-1], words[1:]
        cells = model.eye.cells()

        def tokens(layer: str) -> tuple[list[str], list[str]]:
            return (after, cells) if layer.endswith("cross") else (before, before)

        return (image, present, torch.tensor([[tokenizer.bos_id, *written]])), tokens

    def score(self, module: CaptioningModule, split: Split) -> Results:
        """Loss, and the scores of beam-searched captions of the whole split.

        The baseline is the most frequent caption of the split, given to all images.
        """
        module.scored_images = 0  # greedy captions are for monitoring only
        loss = self.evaluate(module, split)["loss"]
        names, gold = list(split.texts["id"]), references(split.texts)
        started = time.perf_counter()
        captions = write_captions(
            module.model,
            split.tokenizer,
            self.images(split.name),
            names,
            self.decoding(),
            self.cfg.data.batch_tokens,
            lambda items: tracked(items, f"{split.name} captions"),
        )
        seconds = time.perf_counter() - started
        metric = CaptionMetric(gold)
        scores, sums = metric.each(captions), metric.sums(captions)
        common = Counter(text for texts in gold for text in texts).most_common(1)[0][0]
        return Results(
            split.name,
            self.unit,
            len(names),
            {**overall(scores, sums), "loss": loss},
            baselines={"the most frequent caption": metric([common] * len(gold))},
            note=metric.describe(),
            settings=vars(self.decoding()),
            files={".txt": "\n".join(captions) + "\n"},
            predictions=Predictions(
                names,
                gold,
                captions,
                scores,
                module.examples["loss_sum"],
                module.examples["n_tokens"],
                statistics=sums,
                corpus_metrics=CORPUS_METRICS,
            ),
            samples=list(map(sample, names, gold, captions)),
            extra={
                "undefined": dict.fromkeys(overall(scores, sums), metric.wordless()),
                "captions_per_second": round(len(names) / seconds, 1),
                "seconds": round(seconds, 1),
            },
        )
