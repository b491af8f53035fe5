"""Questions on images as rows and batches, and the prediction of the answer that most annotators gave."""

import json

import torch
import torch.nn.functional as F
from torch import Tensor

from attnorm.attention.transfer import on_cpu
from attnorm.data.featurizer import Encoded, Featurizer, Table, cut, pad
from attnorm.data.image_features import ImageFeatures
from attnorm.data.sampler import MicroBatch
from attnorm.data.sources.base import VISUAL
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.models.interfaces import LabelModel
from attnorm.tasks.module import Collator, Loss, TaskModule
from attnorm.tasks.vqa.answers import AnswerList, tally

SHOWN = 5  # samples


class VqaModule(TaskModule[LabelModel]):
    """Binary cross-entropy with soft targets, summed over the answers ("Bottom-Up and Top-Down Attention", Sec. 3.3).

    The accuracy is the target of the answer with the highest score.

    texts:   the validation questions, with the columns id, image, question and answers.
    answers: the answer list.
    """

    monitor, mode = "val/accuracy", "max"
    counters = ("loss", "questions", "credit")
    line = "accuracy {accuracy:.2f}"

    def __init__(self, model: LabelModel, tokenizer: Tokenizer, texts: Table, answers: list[str]):
        super().__init__(model, tokenizer)
        self.texts, self.answers = texts, answers

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Scores (B, answers)."""
        return self.model(batch["ids"], views_of(batch, next(self.model.parameters()).dtype)).float()

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        return Loss(self._loss(self(batch), batch), len(batch["rows"]))

    def _loss(self, scores: Tensor, batch: dict[str, Tensor], reduction: str = "sum") -> Tensor:
        return F.binary_cross_entropy_with_logits(scores, batch["targets"], reduction=reduction)

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        scores = self(batch)
        guesses = scores.argmax(-1)
        credit = batch["targets"].gather(1, guesses[:, None]).float().sum()
        rows, guesses, loss, credit = on_cpu(batch["rows"], guesses, self._loss(scores, batch), credit)
        self.outputs += zip(rows.tolist(), guesses.tolist(), strict=True)
        self.add(loss=loss.item(), questions=len(guesses), credit=credit.item())
        if self.keep_examples:
            self.record(batch["rows"], loss_sum=self._loss(scores, batch, "none").cpu().double().sum(1))

    def predictions(self) -> dict[str, str]:
        """The answer to each evaluated question, by its id."""
        ids = self.texts["id"]
        return {ids[row]: self.answers[number] for row, number in sorted(self.outputs)}

    def metrics(self) -> dict[str, float]:
        """loss (nats per question), and accuracy in percent."""
        for row, number in sorted(self.outputs)[:SHOWN]:
            text = self.texts[row]
            annotators = tally(json.loads(text["answers"]))
            shown = {"image": text["image"], "question": text["question"], "annotators": annotators}
            self.samples.append({**shown, "given": self.answers[number]})
        accuracy = 100.0 * self.sums["credit"] / self.sums["questions"]
        return {"loss": self.sums["loss"] / self.sums["questions"], "accuracy": accuracy}


def views_of(
    batch: dict[str, Tensor], dtype: torch.dtype = torch.float32
) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """The views in a batch, each with features (B, M, D), present (B, M), and geometry (B, M, 4) or None.

    Features and geometry are converted to `dtype`, because they are loaded as float32 regardless of the model's
    precision.
    """
    views = []
    for n in range(sum(name.startswith("view") for name in batch)):
        geometry = batch.get(f"geometry{n}")
        known = None if geometry is None else geometry.to(dtype)
        views.append((batch[f"view{n}"].to(dtype), batch[f"present{n}"], known))
    return views


TENTHS = 10  # accuracies are multiples of 1/10, so counts in tenths are whole numbers


class VqaFeaturizer(Featurizer):
    """One row per question: its tokens, the end token, and the answers with nonzero accuracy.

    Questions are truncated to `max_question` tokens, including the end token.
    """

    schema = VISUAL

    def __init__(self, max_question: int, answers: AnswerList):
        self.max_question, self.answers = max_question, answers

    def settings(self) -> list:
        return ["visual", 1, self.max_question, self.answers.texts]

    def columns(self) -> dict:
        """ids; answers, their numbers in the list; scores, the accuracies of these answers in (0, 1]."""
        import pyarrow as pa

        return {"ids": pa.list_(pa.int32()), "answers": pa.list_(pa.int32()), "scores": pa.list_(pa.float32())}

    def encode(self, texts: dict[str, list[str]], first: int, tokenizer: Tokenizer) -> Encoded:
        questions, truncated = cut(tokenizer.encode(texts["question"]), self.max_question - 1)
        annotated = [json.loads(cell) for cell in texts["answers"]]
        targets = [self.answers.targets(answers) for answers in annotated]
        table: dict[str, list] = {
            "ids": [[*ids, tokenizer.eos_id] for ids in questions],
            "answers": [numbers for numbers, _ in targets],
            "scores": [scores for _, scores in targets],
        }
        counts = {
            "truncated": truncated,
            "answered": sum(bool(answers) for answers in annotated),
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
            # batch by batch, as there may be hundreds of thousands of rows
            views.check(dict.fromkeys(name for batch in self.images.iter(10_000) for name in batch["image"]))

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
