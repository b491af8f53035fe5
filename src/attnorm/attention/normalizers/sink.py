"""Softmax with a learned attention sink, and the fixed sinks of off-by-one softmax and softmax-n."""

import math

import torch
from torch import Tensor

from attnorm.attention.linear.logsumexp import attention_and_logsumexp
from attnorm.attention.normalizers.base import AT_MOST_ONE, Given, add_log_prior
from attnorm.attention.normalizers.shared.head_number import HeadNumber
from attnorm.attention.normalizers.shared.key_bias import KeyBiased
from attnorm.attention.option_checks import above_zero


class Sink(KeyBiased):
    """w_ij = u_j exp(s_ij) / (exp(b) + sum_j' u_j' exp(s_ij')): a virtual key of score b takes weight and has no value.

    It is that of gpt-oss and Granite (arXiv 2508.10925), and the same as softmax times sigmoid(logsumexp_j (s_ij +
    log u_j) - b). Both parts are in float32 or wider. The scale of u in a row matters, because b is compared with it.

    start: the initial value of b, which each of the `heads` heads learns.
    fixed: a value of b that is not trained.
    """

    total = AT_MOST_ONE
    prior_scale_invariant = False
    finite_scores = True
    proportional_to_prior = True

    def __init__(self, start: float = 0.0, fixed: float | None = None, heads: int | None = None):
        super().__init__()
        self.sink = HeadNumber("sink", start, fixed, heads)

    def weights(self, s: Tensor, given: Given) -> Tensor:
        s = add_log_prior(s, given.row_prior)
        b = self.sink().to(s.dtype).expand(*s.shape[:-1], 1)
        return torch.cat([b, s], -1).softmax(-1)[..., 1:]

    def average(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, causal: bool = False
    ) -> Tensor:
        """Softmax attention times sigmoid(logsumexp - b)."""
        out, logsumexp = attention_and_logsumexp(q, k, v, bias, scale, causal)
        share = (logsumexp - self.sink().squeeze(-1)).sigmoid().unsqueeze(-1)  # (B, H, N, 1), float32 or wider
        return (out * share).to(out.dtype)


class OffByOne(Sink):
    """w_ij = u_j exp(s_ij) / (n + sum_j' u_j' exp(s_ij')): `Sink` with b = log n for all heads.

    n: 1 is the off-by-one softmax; others are softmax-n.
    """

    def __init__(self, n: float = 1.0):
        super().__init__(fixed=math.log(above_zero("n", n)))
