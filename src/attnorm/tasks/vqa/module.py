"""Visual question answering: the answer of a list that most annotators gave, from an image in several views."""

import json
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnorm.optim import Optimization
from attnorm.tasks.module import Task
from attnorm.tasks.vqa.answers import tally

SHOWN = 5  # samples


class VqaTask(Task):
    """Binary cross-entropy with soft targets, summed over the answers of the list ("Bottom-Up and Top-Down Attention",
    Sec. 3.3); accuracy: the target of the answer with the highest score.

    texts: of the validation questions, with the columns id, image, question and answers; answers: the list.
    """

    monitor, better = "val/accuracy", "max"
    counted = ("loss", "questions", "credit")

    def __init__(self, model, tokenizer: Any, optim: Optimization, texts, answers: list[str]):
        super().__init__(model, tokenizer, optim)
        self.texts, self.answers = texts, answers

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Scores (B, answers)."""
        return self.model(batch["ids"], views_of(batch, next(self.model.parameters()).dtype)).float()

    def loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
        return self._loss(self(batch), batch), len(batch["rows"])

    def _loss(self, scores: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return F.binary_cross_entropy_with_logits(scores, batch["targets"], reduction="sum")

    def tokens(self, batch: dict[str, Tensor]) -> Tensor:
        return (batch["ids"] != self.tokenizer.pad_id).sum()

    def judge(self, batch: dict[str, Tensor]) -> dict[str, float]:
        scores = self(batch)
        guesses = scores.argmax(-1)
        credit = batch["targets"].gather(1, guesses[:, None]).float().sum().item()
        self.found += zip(batch["rows"].tolist(), guesses.tolist(), strict=True)
        return {"loss": self._loss(scores, batch).item(), "questions": len(guesses), "credit": credit}

    def predictions(self) -> dict[str, str]:
        """The answer to each question that was judged, by its id."""
        ids = self.texts["id"]
        return {ids[row]: self.answers[number] for row, number in sorted(self.found)}

    def results(self) -> dict[str, float]:
        """loss (nats per question), and accuracy in percent."""
        for row, number in sorted(self.found)[:SHOWN]:
            text = self.texts[row]
            annotators = tally(json.loads(text["answers"]))
            shown = {"image": text["image"], "question": text["question"], "annotators": annotators}
            self.samples.append({**shown, "given": self.answers[number]})
        accuracy = 100.0 * self.totals["credit"] / self.totals["questions"]
        return {"loss": self.totals["loss"] / self.totals["questions"], "accuracy": accuracy}

    def line(self, metrics: dict[str, float]) -> str:
        return f"accuracy {metrics['accuracy']:.2f}"


def views_of(
    batch: dict[str, Tensor], dtype: torch.dtype = torch.float32
) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """The views in a batch: features (B, M, D), present (B, M), geometry (B, M, 4) or None of each; numbers in `dtype`,
    for they are read in float32 whatever the precision of the model."""

    def real(name: str) -> Tensor | None:
        return batch[name].to(dtype) if name in batch else None

    numbers = range(sum(name.startswith("view") for name in batch))
    return [(real(f"view{n}"), batch[f"present{n}"], real(f"geometry{n}")) for n in numbers]
