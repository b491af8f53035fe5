"""Classification of a text, or of a pair of texts ("BERT", Sec. 4.1)."""

import torch.nn.functional as F
from torch import Tensor

from attnorm.models.heads import Classifier
from attnorm.optim import Optimization
from attnorm.tasks.module import Task

SHOWN = 5  # samples


class ClassifyTask(Task):
    """Cross-entropy over labels; accuracy.

    texts: of the validation split, with the columns text, second and label; labels: their names, by number.
    """

    monitor, better = "val/accuracy", "max"
    counted = ("loss", "rows", "right")

    def __init__(self, model: Classifier, tokenizer, optim: Optimization, texts, labels: list[str]):
        super().__init__(model, tokenizer, optim)
        self.texts, self.labels = texts, labels

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Scores (B, labels)."""
        return self.model(batch["ids"], batch["types"]).float()

    def loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
        return F.cross_entropy(self(batch), batch["labels"], reduction="sum"), len(batch["labels"])

    def tokens(self, batch: dict[str, Tensor]) -> Tensor:
        return (batch["ids"] != self.tokenizer.pad_id).sum()

    def judge(self, batch: dict[str, Tensor]) -> dict[str, float]:
        scores = self(batch)
        guesses = scores.argmax(-1)
        self.found += zip(batch["rows"].tolist(), guesses.tolist(), strict=True)
        loss = F.cross_entropy(scores, batch["labels"], reduction="sum").item()
        return {"loss": loss, "rows": len(guesses), "right": (guesses == batch["labels"]).sum().item()}

    def predictions(self) -> dict[int, str]:
        """The label that was given to each row that was judged, in the order of the rows."""
        return {row: self.labels[number] for row, number in sorted(self.found)}

    def results(self) -> dict[str, float]:
        """loss (nats per row), and accuracy in percent."""
        for row, label in list(self.predictions().items())[:SHOWN]:
            texts = {name: text for name, text in self.texts[row].items() if text}
            self.samples.append({**texts, "predicted": label})
        accuracy = 100.0 * self.totals["right"] / self.totals["rows"]
        return {"loss": self.totals["loss"] / self.totals["rows"], "accuracy": accuracy}

    def line(self, metrics: dict[str, float]) -> str:
        return f"accuracy {metrics['accuracy']:.1f}"
