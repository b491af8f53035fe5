"""Classification of documents."""

from torch import Tensor

from attnorm.tasks.labels import LabelModule


class DocumentModule(LabelModule):
    """Cross-entropy over the labels of documents; accuracy."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Scores (B, labels)."""
        return self.model(batch["ids"], batch["sentences"]).float()

    def tokens(self, batch: dict[str, Tensor]) -> Tensor:
        return (batch["ids"] != self.tokenizer.pad_id).sum()
