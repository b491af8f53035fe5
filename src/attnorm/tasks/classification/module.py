"""Classification of a text, or of a pair of texts ("BERT", Sec. 4.1)."""

import torch.nn.functional as F
from torch import Tensor

from attnorm.data.featurizer import Table
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.models.heads import Classifier
from attnorm.tasks.module import Loss, TaskModule

SHOWN = 5  # samples


class ClassificationModule(TaskModule):
    """Cross-entropy over the labels; accuracy.

    texts: the validation split, with the columns text, second and label. labels: the names of the labels, by number.
    """

    monitor, mode = "val/accuracy", "max"
    counters = ("loss", "rows", "correct")

    def __init__(self, model: Classifier, tokenizer: Tokenizer, texts: Table, labels: list[str]):
        super().__init__(model, tokenizer)
        self.texts, self.labels = texts, labels

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Scores (B, labels)."""
        return self.model(batch["ids"], batch["types"]).float()

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        return Loss(F.cross_entropy(self(batch), batch["labels"], reduction="sum"), len(batch["labels"]))

    def tokens(self, batch: dict[str, Tensor]) -> Tensor:
        return (batch["ids"] != self.tokenizer.pad_id).sum()

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        scores, labels = self(batch), batch["labels"]
        guesses = scores.argmax(-1)
        self.outputs += zip(batch["rows"].tolist(), guesses.tolist(), strict=True)
        loss = F.cross_entropy(scores, labels, reduction="sum").item()
        self.add(loss=loss, rows=len(guesses), correct=(guesses == labels).sum().item())
        if self.keep_examples:
            self.record(batch["rows"], loss_sum=F.cross_entropy(scores, labels, reduction="none"))

    def predictions(self) -> dict[int, str]:
        """The predicted label of each evaluated row, in the order of the rows."""
        return {row: self.labels[number] for row, number in sorted(self.outputs)}

    def metrics(self) -> dict[str, float]:
        """loss (nats per row), and accuracy in percent."""
        for row, label in list(self.predictions().items())[:SHOWN]:
            texts = {name: text for name, text in self.texts[row].items() if text}
            self.samples.append({**texts, "predicted": label})
        accuracy = 100.0 * self.sums["correct"] / self.sums["rows"]
        return {"loss": self.sums["loss"] / self.sums["rows"], "accuracy": accuracy}

    def format_line(self, metrics: dict[str, float]) -> str:
        return f"accuracy {metrics['accuracy']:.1f}"
