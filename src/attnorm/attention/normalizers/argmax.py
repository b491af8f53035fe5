"""Hard attention at evaluation: all weight on the best key, "Neural Attention Mechanisms"."""

import torch
from torch import Tensor

from attnorm.attention.normalizers._row_map import RowMap


class Argmax(RowMap):
    """w_ij = 1 for the key with the largest s_ij = scores + log u (the first of equals), 0 for the others.

    It has no gradient, so it is for evaluation only: `forward` raises RuntimeError in training mode.
    """

    differentiable = False

    def row_weights(self, scores: Tensor) -> Tensor:
        if self.training:
            raise RuntimeError(
                "argmax has no gradient and is for evaluation: call .eval(); to train, use softmax or a sparse map "
                "that has a gradient (entmax, sparsemax)"
            )
        return torch.zeros_like(scores).scatter(-1, scores.argmax(-1, keepdim=True), 1.0)
