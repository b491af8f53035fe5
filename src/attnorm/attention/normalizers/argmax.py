"""Hard attention for evaluation: each query attends to its best key only ("Neural Attention Mechanisms")."""

import torch
from torch import Tensor

from attnorm.attention.normalizers.shared.row_map import RowMap


class Argmax(RowMap):
    """w_ij = 1 for the key with the largest s_ij = scores + log u, and 0 for all other keys.

    In a tie, the first key is chosen. The function has no gradient and is meant for evaluation only: `forward` raises
    RuntimeError in training mode.
    """

    differentiable = False

    def row_weights(self, scores: Tensor) -> Tensor:
        if self.training:
            raise RuntimeError(
                "argmax has no gradient and is for evaluation only: call .eval(). To train, use softmax or a sparse "
                "map with a gradient (entmax, sparsemax)"
            )
        return torch.zeros_like(scores).scatter(-1, scores.argmax(-1, keepdim=True), 1.0)

    def regularizer(self, p: Tensor, allowed: Tensor) -> Tensor:
        """0: the value is the largest score."""
        return p.new_zeros(p.shape[:-1])
