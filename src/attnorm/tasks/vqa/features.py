"""Questions on images as rows of ids: the question, and the accuracy of each answer of a list."""

import json
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from attnorm.data import validation as checks
from attnorm.data.featurizer import Featurizer, Table, cut, pad
from attnorm.data.image_features import ImageFeatures
from attnorm.data.sampler import MicroBatch
from attnorm.data.sources.base import VISUAL
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import DataError
from attnorm.tasks.collator import Collator
from attnorm.tasks.vqa.answers import AnswerList

TENTHS = 10  # accuracies are multiples of 1/10, so counts in tenths are whole numbers


class VqaFeaturizer(Featurizer):
    """One row per question: its tokens, the end token, and the answers with nonzero accuracy.

    Questions are truncated to `max_question` tokens, including the end token.
    """

    schema = VISUAL

    def __init__(self, max_question: int, answers: AnswerList):
        if problems := checks.whole_number("model.max_question", max_question, least=2):
            raise DataError("\n".join(problems))
        self.max_question, self.answers = max_question, answers

    def settings(self) -> list:
        return ["visual", 1, self.max_question, self.answers.texts]

    def columns(self) -> dict:
        """ids; answers, their numbers in the list; scores, the accuracies of these answers in (0, 1]."""
        import pyarrow as pa

        return {"ids": pa.list_(pa.int32()), "answers": pa.list_(pa.int32()), "scores": pa.list_(pa.float32())}

    def encode(
        self, texts: dict[str, list[str]], first: int, tokenizer: Tokenizer
    ) -> tuple[Mapping[str, Sequence], dict[str, int]]:
        questions, truncated = cut(tokenizer.encode(texts["question"]), self.max_question - 1)
        given = [json.loads(cell) for cell in texts["answers"]]
        targets = [self.answers.targets(answers) for answers in given]
        table: dict[str, list] = {
            "ids": [[*ids, tokenizer.eos_id] for ids in questions],
            "answers": [numbers for numbers, _ in targets],
            "scores": [scores for _, scores in targets],
        }
        counts = {
            "truncated": truncated,
            "answered": sum(bool(answers) for answers in given),
            "known": sum(bool(numbers) for numbers, _ in targets),
            "best": sum(round(TENTHS * max(scores, default=0.0)) for _, scores in targets),
        }
        return table, counts

    def describe(self, counts: dict[str, int]) -> str:
        head = f"{counts['kept']:,} questions ({counts['empty']:,} empty skipped, {counts['truncated']:,} truncated"
        if not counts["answered"]:
            return f"{head}, without answers)"
        known, best = (counts[name] / counts["answered"] for name in ("known", "best"))
        return f"{head}; {known:.1%} have an answer in the list of {len(self.answers):,}, best {best / TENTHS:.1%})"


class VqaCollator(Collator):
    """Rows of `VqaFeaturizer` -> tensors, padded to the longest question of the batch.

    texts: the texts of the split, row by row.
    views: the views of their images, or None for the questions alone. Raises ValueError that names the images that the
           views do not contain.
    """

    def __init__(self, rows: Table, texts: Table, views: ImageFeatures | None, pad_id: int, n_answers: int):
        super().__init__(rows, pad_id)
        self.views, self.n_answers = views, n_answers
        self.images = texts.select_columns(["image"])
        if views is not None:
            views.check(_unique(self.images))

    def tensors(self, table: dict[str, list], part: MicroBatch) -> dict[str, Tensor]:
        """Returns the tensors, with one view{i}, present{i} and geometry{i} for each view i:

        ids:         int64 (B, T).
        targets:     float32 (B, n_answers), the accuracy of each answer.
        view{i}:     float32 (B, M, width), the features of the boxes.
        present{i}:  bool (B, M), False at padding.
        geometry{i}: float32 (B, M, 4), if the view has it.
        """
        targets = torch.zeros(len(part.rows), self.n_answers)
        for row, numbers, scores in zip(targets, table["answers"], table["scores"], strict=True):
            row[numbers] = torch.tensor(scores)
        batch = {"ids": pad(table["ids"], self.pad_id), "targets": targets}
        if self.views is not None:
            for number, (features, present, geometry) in enumerate(self.views.read(self.images[part.rows]["image"])):
                batch |= {f"view{number}": features, f"present{number}": present}
                if geometry is not None:
                    batch[f"geometry{number}"] = geometry
        return batch


def _unique(images: Table) -> Iterable[str]:
    """The distinct images of a table, in order. Reads batch by batch, as there may be hundreds of thousands of rows."""
    return dict.fromkeys(name for batch in images.iter(10_000) for name in batch["image"])
