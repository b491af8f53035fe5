"""Classification of a text, or of a pair of texts ("BERT", Sec. 4.1)."""

from torch import Tensor

from attnorm.tasks.labels import LabelModule


class ClassificationModule(LabelModule):
    """Cross-entropy over the labels; accuracy.

    texts: the validation split, with the columns text, second and label. labels: the names of the labels, by number.
    """

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Scores (B, labels)."""
        return self.model(batch["ids"], batch["types"]).float()

    def tokens(self, batch: dict[str, Tensor]) -> Tensor:
        return (batch["ids"] != self.tokenizer.pad_id).sum()
