"""Visual question answering: questions, views of images, a list of answers, and the official accuracy."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from attnorm.data.cache import cached
from attnorm.data.image_features import ImageFeatures, check_together
from attnorm.data.preprocess import Split
from attnorm.data.readers.text import digest, read_json
from attnorm.data.sampler import MicroBatch
from attnorm.data.sources.base import VISUAL
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import ConfigError, DataError, Problem, RunError
from attnorm.models.interfaces import LabelModel
from attnorm.schema import Count, Text
from attnorm.tasks.labels import classified
from attnorm.tasks.results import Predictions, Results, hash_of, hash_of_image
from attnorm.tasks.task import Task, TaskConfig, Tokens
from attnorm.tasks.vqa.answers import AnswerList, accuracy
from attnorm.tasks.vqa.metric import references, results, score
from attnorm.tasks.vqa.module import VqaCollator, VqaFeaturizer, VqaModule, views_of

FILE = "answers.json"


@dataclass(frozen=True, kw_only=True)
class VqaTaskConfig(TaskConfig):
    """The keys of `task`, as in conf/task/vqa.yaml."""

    answers: Text | None = None
    min_count: Count = 9


class VqaTask(Task[LabelModel, VqaModule]):
    """task=vqa.

    The answer list and the sizes of the views follow from the training data. A run folder has them in answers.json.
    """

    Config, interface, schema, unit, grouping = VqaTaskConfig, "vqa", VISUAL, "questions", "image"
    budget = (("model.max_question",), "the tokens of the longest possible question")

    @staticmethod
    def completed(cfg: dict) -> dict:
        """Without features, there is nothing to fuse, so model.fusion is set to none."""
        if "features" in cfg["data"] and not cfg["data"]["features"]:
            return {**cfg, "model": {**cfg["model"], "fusion": "none"}}
        return cfg

    def notes(self) -> str:
        alone = self.cfg.model.fusion == "none"
        views = "the question alone (model.fusion=none)" if alone else f"boxes per view: {self.sizes[1]}"
        idle = "" if self.cfg.sites else "; no site for a normalizer in this model"
        return f"{len(self.answers):,} answers; {views}{idle}"

    def data_fingerprints(self, splits: dict[str, Split]) -> dict[str, str]:
        """Fingerprints of the questions, the views of their images, and the answer list."""
        questions, views = super().data_fingerprints(splits), self.views("train")
        named = [] if views is None else [views.names, views.widths, views.boxes]
        return {name: digest([of_split, named, self.answers.texts]) for name, of_split in questions.items()}

    def save(self, folder: Path) -> None:
        widths, boxes = self.sizes
        kept = {"answers": self.answers.texts, "widths": widths, "boxes": boxes}
        (folder / FILE).write_text(json.dumps(kept, ensure_ascii=False) + "\n", encoding="utf-8")

    def load(self, folder: Path) -> None:
        path = folder / FILE
        try:
            kept = read_json(path)
            self.answers, self.sizes = AnswerList(kept["answers"], str(path)), (kept["widths"], kept["boxes"])
            sizes = [size for of_views in self.sizes for size in of_views]
            if len(self.sizes[0]) != len(self.sizes[1]) or not all(type(size) is int and size > 0 for size in sizes):
                raise DataError(f"{path}: expected as many widths as boxes, positive whole numbers")
        except (KeyError, TypeError) as error:
            raise RunError(f"{path}: expected an object with answers, widths and boxes") from error
        except (ValueError, OSError, RecursionError) as error:
            raise RunError(str(error)) from error

    @cached_property
    def answers(self) -> AnswerList:
        """The answers in the file task.answers, or the frequent answers of the training split.

        The latter are the answers that most annotators gave to at least task.min_count questions. Raises ValueError,
        naming the key, if no answer is that frequent.
        """
        path = self.config.answers
        try:
            return AnswerList.read(path or self._frequent_answers())
        except ValueError as error:
            raise DataError(f"task.answers: {error}" if path else str(error)) from error

    def _frequent_answers(self) -> Path:
        """The cached file with the frequent answers of the training split."""
        source, limit, least = self.source(), self.cfg.data.max_train, self.config.min_count

        def fill(folder: Path) -> None:
            annotated = (json.loads(answers) for *_, answers, _ in islice(source.rows("train"), limit))
            AnswerList.from_answers(annotated, least).write(folder / FILE)

        name = f"answers-{digest([source.fingerprint('train'), limit, least])}"
        return cached(self.cache() / name, fill) / FILE

    def splits(self, *arguments: Any, **options: Any) -> dict[str, Split]:
        """As `Task.splits`. Raises DataError that names the missing images of all of them."""
        splits = super().splits(*arguments, **options)
        check_together({name: partial(self.collator, split) for name, split in splits.items()})
        return splits

    def input_hashes(self, split: Split) -> list[str]:
        """Hashes of the questions and, if the model sees images, of the primary view of each image."""
        views = self.views(split.name)
        if views is None:
            return super().input_hashes(split)
        primary, images = views.first(1), sorted(set(split.texts["image"]))
        read = ([part for part in primary.read([image])[0] if part is not None] for image in images)
        hashes = dict(zip(images, (hash_of_image(*parts) for parts in read), strict=True))
        return [f"{hash_of(row)}-{hashes[row['image']]}" for row in split.texts]

    def row_hashes(self, split: Split) -> list[str]:
        """Not known: names of images repeat between splits, and the views of a whole training split are large."""
        return []

    def views(self, split: str) -> ImageFeatures | None:
        """The views of a split's images that the model uses. None if it uses the question alone."""
        fusion = self.cfg.model.fusion
        if fusion == "none":
            return None
        source: Any = self.source()  # a VisualSource, or one like it
        views = source.views(split, self.cache())
        return views.first(1) if fusion == "single" else views

    @cached_property
    def sizes(self) -> tuple[list[int], list[int]]:
        """The feature widths and the maximum numbers of boxes of the used views.

        Raises ConfigError if the model uses box geometry and a view does not have it.
        """
        views = self.views("train")
        if views is not None and self.cfg.model.geometry and not all(views.geometry):
            name = views.names[views.geometry.index(False)]
            message = f"{name} has no box positions; use model.geometry=false"
            raise ConfigError([Problem("model.geometry", message, True)])
        return ([], []) if views is None else (list(views.widths), list(views.boxes))

    def featurizer(self) -> VqaFeaturizer:
        return VqaFeaturizer(self.cfg.model.max_question, self.answers)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        views = self.cfg.source.options.get("features")
        if views and not isinstance(views, str):
            if self.cfg.model.fusion == "attention" and len(views) < 2:
                message = "requires at least 2 views, but data.features has 1; use model.fusion=single"
                yield Problem("model.fusion", message, "attention")
                return
            try:
                _ = self.sizes
            except ConfigError as error:
                yield from error.problems
            except DataError as error:
                yield Problem("data.features", str(error))

    def ignored_keys(self) -> dict[str, str]:
        model, transformer = self.cfg.model, "model.question=transformer or model=mcan_small"
        keys: dict[str, str] = {}
        if "encoder" not in self.cfg.sites:
            names = ("layers", "n_heads", "ffn_dim", "norm_first", "residual")
            keys |= {f"model.{name}": transformer for name in names}
        if model.fusion != "attention":
            keys |= dict.fromkeys(("model.fusion_heads", "model.fusion_views"), "model.fusion=attention")
        if model.fusion == "none":
            keys["model.geometry"] = "model.fusion=single, concat or attention"
        return keys

    def model(self, tokenizer: Tokenizer) -> torch.nn.Module:
        widths, boxes = self.sizes
        return self.build_model(tokenizer, answers=len(self.answers), view_widths=widths, view_boxes=boxes)

    def module(self, model: LabelModel, tokenizer: Tokenizer, validation: Split) -> VqaModule:
        return VqaModule(model, tokenizer, validation.texts, self.answers.texts)

    def collator(self, split: Split) -> VqaCollator:
        views, tokenizer = self.views(split.name), split.tokenizer
        if views is not None and views.widths != self.sizes[0]:
            found = ", ".join(f"{name}: {width}" for name, width in zip(views.names, views.widths, strict=True))
            trained = ", ".join(map(str, self.sizes[0]))
            raise DataError(
                f"data: the views have other numbers of features per box ({found}) than the model ({trained})"
            )
        return VqaCollator(split.rows, split.texts, views, tokenizer.pad_id, len(self.answers))

    def generate(self, model: LabelModel, tokenizer: Tokenizer, texts: list[str]) -> list[str]:
        """As `classified`, with the five most probable answers. texts: the id of an image of the data and a question,
        with a tab between them."""
        if wrong := [text for text in texts if "\t" not in text]:
            raise DataError(f"{wrong[0]}: expected the id of an image and a question with a tab between them")
        images, questions = map(list, zip(*(text.split("\t", 1) for text in texts), strict=True))
        known = [split for split in ("validation", "test", "train") if split in self.source().splits]
        views = {split: self.views(split) for split in known}
        fitting = (split for split, of_split in views.items() if of_split is None or all(map(of_split.has, images)))
        rows = {"image": images, "question": questions, "answers": ["[]"] * len(texts)}
        answers, split = self.answers.texts, next(fitting, known[0])
        return classified(self, model, tokenizer, rows, labels=answers, independent=True, most=5, split_name=split)

    def attended_example(self, model: LabelModel, split: Split, row: int) -> tuple[tuple, Tokens]:
        """The model reads a question and the views of its image. Boxes are named by their view and number."""
        batch = self.collator(split)[MicroBatch([row], 1)]
        views = self.views(split.name)
        words = [split.tokenizer.token(number) for number in batch["ids"][0].tolist()]
        boxes = []  # of each view, padded to its maximum as in `Fusion.read`
        if views is not None:
            most = zip(views.names, self.sizes[1], strict=True)
            boxes = [[f"{name} {number}" for number in range(count)] for name, count in most]
        joined = self.cfg.model.fusion == "concat"
        fused = [box for view in (boxes if joined else boxes[:1]) for box in view]

        def tokens(layer: str) -> tuple[list[str], list[str]]:
            if layer.startswith("fusion"):
                return fused, [box for view in boxes[1:] for box in view]
            if layer.startswith("guided"):
                return fused, words if layer.endswith("cross") else fused
            return words, words

        return (batch["ids"], views_of(batch)), tokens

    def score(self, module: VqaModule, split: Split) -> Results:
        """The official accuracy, overall and by answer type, if the questions have annotations.

        The answers are written in the format of the official evaluation.
        """
        scores = super().score(module, split)
        predictions, gold = module.predictions(), references(split.texts)
        scores.files = {".results.json": results(predictions) + "\n"}
        annotated = any(reference.answers for reference in gold)
        if not annotated:
            scores.metrics, scores.note = {}, "the questions have no annotations: answers are written but not scored"
            scores.predictions = self.table(predictions, [None] * len(gold), [None] * len(gold), split)
            return scores
        official = score(predictions, gold)
        accuracies = [100.0 * accuracy(predictions[reference.id], reference.answers) for reference in gold]
        scores.predictions = self.table(predictions, accuracies, module.examples["loss_sum"], split)
        scores.metrics = {"accuracy": official["accuracy"], **official["answer_types"], "loss": scores.metrics["loss"]}
        common = AnswerList.from_answers((reference.answers for reference in gold), min_count=1).texts[0]
        always = score(dict.fromkeys(predictions, common), gold)
        scores.baselines = {f"always {common}": {"accuracy": always["accuracy"], **always["answer_types"]}}
        scores.note = "official VQA accuracy: leave-one-out over the annotators, answers normalized if they differ"
        return scores

    def table(
        self, answers: dict[str, str], accuracies: Sequence[float | None], losses: Sequence[float | None], split: Split
    ) -> Predictions:
        """One row per question. accuracies (percent) and losses (nats) are None for questions without annotations."""
        gold = references(split.texts)
        return Predictions(
            ids=[reference.id for reference in gold],
            groups=self.row_groups(split),
            inputs=list(split.texts["question"]),
            references=[list(reference.answers) for reference in gold],
            outputs=[answers[reference.id] for reference in gold],
            scores={"accuracy": accuracies},
            loss_sum=losses,
            n_tokens=[1] * len(gold),
            statistics={"answer_type": [reference.answer_type for reference in gold]},
        )
