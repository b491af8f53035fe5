"""Sigmoid attention, "Theory, Analysis, and Best Practices for Sigmoid Self-Attention" (arXiv 2409.04431)."""

from torch import Tensor

from attnorm.attention.normalizers.base import Given, Normalizer, add_log_prior
from attnorm.attention.normalizers.shared.head_number import HeadNumber
from attnorm.attention.option_checks import finite_number
from attnorm.attention.visible import visible_keys


class Sigmoid(Normalizer):
    """w_ij = sigmoid(s_ij + log u_j + b): no sum over the keys.

    With b = -log n_i, where n_i is the number of keys that query i may see, a row of zero scores sums to n / (n + 1),
    as that of `off_by_one`. n_i is counted from the mask, so that padding, the future and other segments do not change
    it.

    bias:  b. None means -log n_i; a number is the same for all queries.
    learn: whether each of the `heads` heads adds a learned number to b, initially 0.
    """

    total = (0.0, float("inf"))
    prior_scale_invariant = False

    def __init__(self, bias: float | None = None, learn: bool = False, heads: int | None = None):
        super().__init__()
        if bias is not None and not finite_number(bias):
            raise ValueError(f"bias={bias!r}: allowed: null (-log n), finite numbers")
        if not isinstance(learn, bool):
            raise ValueError(f"learn={learn!r}: allowed: true, false")
        self.bias = bias
        self.learned = HeadNumber("sigmoid_bias", 0.0, None, heads) if learn else None

    def weights(self, s: Tensor, given: Given) -> Tensor:
        s = s - visible_keys(given.mask, s).log() if self.bias is None else s + self.bias
        s = s if self.learned is None else s + self.learned().to(s.dtype)
        return add_log_prior(s, given.log_prior).sigmoid()
