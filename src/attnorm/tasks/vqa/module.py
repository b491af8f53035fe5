"""Visual question answering: predicts the answer that most annotators gave, from an image in several views."""

import json
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnorm.attention.transfer import on_cpu
from attnorm.data.featurizer import Table
from attnorm.tasks.module import Loss, TaskModule
from attnorm.tasks.vqa.answers import tally

SHOWN = 5  # samples


class VqaModule(TaskModule):
    """Binary cross-entropy with soft targets, summed over the answers ("Bottom-Up and Top-Down Attention", Sec. 3.3).

    The accuracy is the target of the answer with the highest score.

    texts:   the validation questions, with the columns id, image, question and answers.
    answers: the answer list.
    """

    monitor, mode = "val/accuracy", "max"
    counters = ("loss", "questions", "credit")

    def __init__(self, model: Any, tokenizer: Any, texts: Table, answers: list[str]):
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

    def format_line(self, metrics: dict[str, float]) -> str:
        return f"accuracy {metrics['accuracy']:.2f}"


def views_of(
    batch: dict[str, Tensor], dtype: torch.dtype = torch.float32
) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """The views in a batch, each with features (B, M, D), present (B, M), and geometry (B, M, 4) or None.

    Features and geometry are converted to `dtype`, because they are loaded as float32 regardless of the model's
    precision.
    """

    def geometry(n: int) -> Tensor | None:
        return batch[f"geometry{n}"].to(dtype) if f"geometry{n}" in batch else None

    numbers = range(sum(name.startswith("view") for name in batch))
    return [(batch[f"view{n}"].to(dtype), batch[f"present{n}"], geometry(n)) for n in numbers]
