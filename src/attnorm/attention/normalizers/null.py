"""Attention that does not look at the scores: the null arms of a comparison."""

from typing import Any

from torch import Tensor

from attnorm.attention.masking import Mask
from attnorm.attention.normalizers.base import Given, Normalizer, upcast
from attnorm.attention.normalizers.softmax import Softmax


class UniformAttention(Normalizer):
    """w_ij = u_j / sum_j' u_j' over the allowed keys: the prior, or the mean of the values if there is none.

    This is softmax attention with all scores 0. Queries and keys keep a gradient, which is 0, so that all parameters of
    a layer take part in each update, as training on several devices requires.
    """

    key_shift_invariant = True
    least_mass = 1.0
    proportional_to_prior = True

    def __init__(self) -> None:
        super().__init__()
        self.softmax = Softmax()

    def forward(self, scores: Tensor, mask: Tensor | Mask | None = None, **given: Any) -> Tensor:
        flat = 0 * upcast(scores).nan_to_num(0.0, 0.0, 0.0)
        return self.softmax(flat, mask, **given).to(scores.dtype)

    def fast_attend(self, q: Tensor, k: Tensor, v: Tensor, given: Given) -> Tensor:
        return self.softmax.fast_attend(0 * q, k, v, given)


class NoAttention(UniformAttention):
    """w_ij = 0: the layer contributes nothing, not even the bias of its output projection (`MultiHeadAttention`)."""

    key_shift_invariant = True
    least_mass = 0.0
    total = 0.0

    def forward(self, scores: Tensor, mask: Tensor | Mask | None = None, **given: Any) -> Tensor:
        return 0 * super().forward(scores, mask, **given)

    def fast_attend(self, q: Tensor, k: Tensor, v: Tensor, given: Given) -> Tensor:
        return 0 * super().fast_attend(q, k, v, given)
