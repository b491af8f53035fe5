"""Scalable softmax (SSMax), "Scalable-Softmax Is Superior for Attention" (arXiv 2501.19399)."""

import torch
from torch import Tensor

from attnorm.attention.normalizers.base import Given, Normalizer, add_log_prior, softmax_over_keys, upcast
from attnorm.attention.normalizers.shared.head_number import HeadNumber
from attnorm.attention.normalizers.softmax import Softmax
from attnorm.attention.visible import visible_keys


class SSMax(Normalizer):
    """w_ij = softmax over j of (a_h log n_i + b_h) s_ij + log u_j, where n_i is the number of keys that i may see.

    Softmax flattens as n grows. Scores that are multiplied by log n keep the weight of the largest one. n_i is counted
    from the mask, so that padding, the future and other segments do not change it.

    start:    the initial value of a, which each of the `heads` heads learns. The default is about 1 / mean log n for n
              up to 1,024, at which the scores have about their usual scale.
    fixed:    a value of a that is not trained.
    plus_one: log(n_i + 1) in place of log n_i, with which the first query of a causal site still looks at its score.
    bias:     whether each head learns b, initially 0. Otherwise it is 0.
    """

    proportional_to_prior = True

    def __init__(
        self,
        start: float = 0.168,
        fixed: float | None = None,
        plus_one: bool = False,
        bias: bool = False,
        heads: int | None = None,
    ):
        super().__init__()
        for option, value in {"plus_one": plus_one, "bias": bias}.items():
            if not isinstance(value, bool):
                raise ValueError(f"{option}={value!r}: allowed: true, false")
        self.plus_one = plus_one
        self.slope = HeadNumber("ssmax_slope", start, fixed, heads)
        self.bias = HeadNumber("ssmax_bias", 0.0, None, heads) if bias else None
        self.softmax = Softmax()

    def factor(self, scores: Tensor, given: Given) -> Tensor:
        """a_h log n_i + b_h, broadcastable to (B, H, N, 1). scores: as in `visible_keys`."""
        n = visible_keys(given.mask, scores)
        factor = self.slope().to(n.dtype) * (n + self.plus_one).log()
        return factor if self.bias is None else factor + self.bias().to(n.dtype)

    def weights(self, s: Tensor, given: Given) -> Tensor:
        masked = s == -torch.inf  # a factor of 0 must not meet it
        tempered = (self.factor(s, given) * s.masked_fill(masked, 0.0)).masked_fill(masked, -torch.inf)
        return softmax_over_keys(add_log_prior(tempered, given.log_prior))

    def fast_attend(self, q: Tensor, k: Tensor, v: Tensor, given: Given) -> Tensor:
        """Softmax attention of the queries times their factors."""
        scores = upcast(q.new_empty(())).expand(*q.shape[:-1], k.shape[-2])
        return self.softmax.fast_attend((self.factor(scores, given) * q).to(q.dtype), k, v, given)
