"""Classification of images."""

import torch
from torch import Tensor

from attnorm.tasks.labels import LabelModule


class ImageModule(LabelModule):
    """Cross-entropy over the labels of images; accuracy. cells: the number of patches of an image."""

    cells: int

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Scores (B, labels)."""
        return self.model(batch["pixels"].to(next(self.model.parameters()).dtype)).float()

    def tokens(self, batch: dict[str, Tensor]) -> Tensor:
        return torch.tensor(self.cells * len(batch["rows"]))
