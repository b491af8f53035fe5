"""Image captioning: images with several captions each, models that write captions, and CIDEr-D, BLEU-4 and ROUGE-L."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from attnorm.data.caption_rows import CAPTIONS
from attnorm.data.image_features import check_together
from attnorm.data.images import Images, ImageShape, read_image
from attnorm.data.preprocess import Split
from attnorm.data.readers.text import digest, read_json
from attnorm.data.sampler import MicroBatch
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import DataError, RunError
from attnorm.models.interfaces import CaptioningModel
from attnorm.schema import Share
from attnorm.tasks.bleu import sacrebleu
from attnorm.tasks.captioning.metric import CORPUS_METRICS, CaptionMetric, overall
from attnorm.tasks.captioning.module import CaptionCollator, CaptionFeaturizer, CaptioningModule, references, write
from attnorm.tasks.ranks import Ranks
from attnorm.tasks.results import hash_of, hash_of_image
from attnorm.tasks.seq2seq import TextScores, WritingTask
from attnorm.tasks.task import TaskConfig, Tokens

FILE = "images.json"


@dataclass(frozen=True, kw_only=True)
class CaptioningTaskConfig(TaskConfig):
    """The keys of `task`, as in conf/task/captioning.yaml."""

    label_smoothing: Share = 0.0
    scored_images: Annotated[int, Field(ge=0, le=1000)] = 100


class CaptioningTask(WritingTask[CaptioningModel, CaptioningModule]):
    """task=captioning.

    The shape of the images is a fact of the training data. A run folder keeps it in images.json.
    """

    Config, interface, schema, unit = CaptioningTaskConfig, "captioning", CAPTIONS, "images"
    grouping = "id"
    names, reads_texts = ("images", "captions"), False
    primary, monitoring = "CIDEr-D", ("task.scored_images",)
    sampled = ("CIDEr-D", "BLEU-4", "rougeL")

    def images(self, split: str) -> Images:
        """The images of a split."""
        source: Any = self.source()  # a CaptionSource, or one like it
        return source.images(split, self.cache())

    @cached_property
    def shape(self) -> ImageShape:
        """The shape of the images on which the model was trained, or is going to be."""
        return self.images("train").shape

    def save(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(asdict(self.shape)) + "\n", encoding="utf-8")

    def load(self, folder: Path) -> None:
        path = folder / FILE
        try:
            self.shape = ImageShape(**read_json(path))
        except TypeError as error:
            raise RunError(f"{path}: expected an object with side, width and regions") from error
        except (ValueError, OSError, RecursionError) as error:
            raise RunError(f"{path}: {error}") from error

    def data_fingerprints(self, splits: dict[str, Split]) -> dict[str, str]:
        """Fingerprints of the captions and of the shape of the images."""
        captions = super().data_fingerprints(splits)
        return {name: digest([of_split, asdict(self.shape)]) for name, of_split in captions.items()}

    def featurizer(self) -> CaptionFeaturizer:
        return CaptionFeaturizer(self.cfg.model.max_target)

    def model(self, tokenizer: Tokenizer) -> torch.nn.Module:
        return self.build_model(tokenizer, **asdict(self.shape))

    def module(self, model: CaptioningModel, tokenizer: Tokenizer, validation: Split) -> CaptioningModule:
        sacrebleu()  # if it is missing, the user should learn it before the training
        options = self.module_options(self.config.scored_images)
        return CaptioningModule(model, tokenizer, validation.texts, CaptionMetric, **options)

    def collator(self, split: Split) -> CaptionCollator:
        images, tokenizer = self.images(split.name), split.tokenizer
        if (images.shape.side, images.shape.width) != (self.shape.side, self.shape.width):
            found, trained = asdict(images.shape), asdict(self.shape)
            raise DataError(f"data: the images have another shape ({found}) than those of the model ({trained})")
        return CaptionCollator(split.rows, split.texts, images, tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)

    def splits(self, *arguments: Any, **options: Any) -> dict[str, Split]:
        """As `Task.splits`. Raises DataError that names the missing images of all of them."""
        splits = super().splits(*arguments, **options)
        check_together({name: partial(self.collator, split) for name, split in splits.items()})
        return splits

    def input_hashes(self, split: Split) -> list[str]:
        images = self.images(split.name)
        return [f"{hash_of(row)}-{hash_of_image(*images.read([row['id']]).values())}" for row in split.texts]

    def row_hashes(self, split: Split) -> list[str]:
        """Hashes of the images."""
        return [hashed.rpartition("-")[2] for hashed in self.input_hashes(split)]

    def rows_of(self, split: Split) -> tuple[list[str], list]:
        return list(split.texts["id"]), references(split.texts)

    def generate(self, model: CaptioningModel, tokenizer: Tokenizer, texts: list[str]) -> list[str]:
        """One caption for each image. texts: paths of image files, or ids of images of the data."""
        splits = [name for name in ("validation", "test", "train") if name in self.source().splits]
        images = NamedImages(self.shape, splits, self.images)
        images.check(texts)
        return self.write(model, tokenizer, images, texts)

    def attended_example(self, model: CaptioningModel, split: Split, row: int) -> tuple[tuple, Tokens]:
        """The model looks at an image and writes a caption. Each query is named by the word that it predicts; those of
        self-attention by the word before."""
        device = next(model.parameters()).device
        batch = {name: tensor.to(device) for name, tensor in self.collator(split)[MicroBatch([row], 1)].items()}
        tokenizer, image, present = split.tokenizer, batch["image"], batch.get("present")
        [written] = write(model, tokenizer, image, present, self.cfg.groups["decoding"])
        words = [tokenizer.token(number) for number in (tokenizer.bos_id, *written, tokenizer.eos_id)]
        before, after = words[:-1], words[1:]
        cells = model.eye.cells()

        def tokens(layer: str) -> tuple[list[str], list[str]]:
            return (after, cells) if layer.endswith("cross") else (before, before)

        return (image, present, torch.tensor([[tokenizer.bos_id, *written]])), tokens

    def write_split(self, model: CaptioningModel, split: Split, progress: Callable) -> list[str]:
        return self.write(model, split.tokenizer, self.images(split.name), list(split.texts["id"]), progress)

    def write(
        self,
        model: CaptioningModel,
        tokenizer: Tokenizer,
        images: Images,
        names: Sequence[str],
        progress: Callable[[list], Iterable] = iter,
    ) -> list[str]:
        """One caption for each of these images, in their order. `progress` wraps the list of batches.

        Images are decoded in batches of about `data.batch_tokens` tokens over all beams. If several processes train
        together, each of them writes its share, and all have the captions.
        """
        device, decoding = next(model.parameters()).device, self.cfg.groups["decoding"]
        size = max(1, self.cfg.data.batch_tokens // (decoding.beam_size * (decoding.max_length + 1)))
        batches = [range(start, min(start + size, len(names))) for start in range(0, len(names), size)]
        captions: dict[int, str] = {}
        ranks = Ranks.present()
        for rows in progress([rows for _, rows in ranks.share(batches)]):
            batch = {name: tensor.to(device) for name, tensor in images.read([names[row] for row in rows]).items()}
            written = write(model, tokenizer, batch["image"], batch.get("present"), decoding)
            captions |= {row: tokenizer.decode(ids) for row, ids in zip(rows, written, strict=True)}
        return ranks.gather_items(captions)

    def text_scores(self, module: CaptioningModule, split: Split, texts: list[str]) -> TextScores:
        """The scores of captions. The baseline is the most frequent caption of the split, given to all images."""
        gold = references(split.texts)
        metric, common = CaptionMetric(gold), Counter(chain.from_iterable(gold)).most_common(1)[0][0]
        examples, sums = metric.each(texts), metric.sums(texts)
        scores = overall(examples, sums)
        baselines = {"the most frequent caption": metric([common] * len(gold))}
        undefined = {"undefined": dict.fromkeys(scores, metric.wordless())}
        return TextScores(scores, examples, baselines, metric.describe(), sums, CORPUS_METRICS, undefined)


class NamedImages(Images):
    """Images of which each is an image file or one of the images of some splits.

    shape:  the shape that the model expects. splits: the names of the splits in which ids are looked up, in order.
    open_split: returns the images of a split. It is called for the first id that no earlier split has.
    """

    def __init__(self, shape: ImageShape, splits: Iterable[str], open_split: Callable[[str], Images]):
        self.shape, self.splits, self.open_split = shape, list(splits), cache(open_split)

    def check(self, images: Iterable[str]) -> None:
        for image in images:
            self._one(image)

    def read(self, images: Sequence[str]) -> dict[str, Tensor]:
        each = [self._one(image) for image in images]
        return {name: torch.cat([tensors[name] for tensors in each]) for name in each[0]}

    def _one(self, image: str) -> dict[str, Tensor]:
        if self.shape.side and Path(image).is_file():
            pixels = read_image(Path(image), self.shape.side)
            return {"image": torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None]}
        unread = ""
        for split in self.splits:
            try:
                images = self.open_split(split)
            except (DataError, OSError) as error:
                unread += f"; {split} cannot be read: {error}"
                continue
            try:
                images.check([image])
            except DataError:
                continue
            return images.read([image])
        file = "neither an image file nor" if self.shape.side else "not"
        splits = ", ".join(self.splits)
        raise DataError(f"{image}: {file} the id of an image of the data (looked up in {splits}{unread})")
