"""Forgetting attention (FoX), "Forgetting Transformer: Softmax Attention with a Forget Gate" (arXiv 2503.02130)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attnorm.attention.masking import Mask
from attnorm.attention.normalizers.base import Given, Normalizer, add_log_prior, softmax_over_keys
from attnorm.attention.normalizers.shared.key_bias import memory_linear
from attnorm.attention.normalizers.shared.per_position import PerPosition, sum_over_later_keys
from attnorm.attention.normalizers.softmax import Softmax


class Forgetting(Normalizer):
    """w_ij = softmax over j of s_ij + sum_{j < l <= i} log f_l + log u_j, with f_l = sigmoid(w_h' x_l + b_h).

    f_l is the forget gate of position l and head h, and x_l its hidden state. The sum is over the keys after j that
    query i may see. At a causal site these are the keys up to i. Padding and other segments are not counted.

    heads, state_width: the number of heads and the width of the states.
    """

    needs_states = "keys"
    key_equivariant = False
    proportional_to_prior = True

    def __init__(self, heads: int, state_width: int):
        super().__init__()
        self.gate = PerPosition(heads, state_width, 1)
        self.softmax = Softmax()

    def features(self, states: Tensor) -> Tensor:
        """log f, (B, H, M, 1)."""
        return F.logsigmoid(self.gate(states))

    def weights(self, s: Tensor, given: Given) -> Tensor:
        assert given.features is not None, "forgetting attention needs the features of the keys"
        gates = torch.where(s == -torch.inf, 0.0, given.features.mT.to(s.dtype))  # (B, H, N, M)
        return softmax_over_keys(add_log_prior(s + sum_over_later_keys(gates), given.log_prior))

    def fast_attend(self, q: Tensor, k: Tensor, v: Tensor, given: Given) -> Tensor | None:
        """Softmax attention with the bias sum_{l > j} log f_l per key. It differs by a number per query only."""
        assert given.features is not None, "forgetting attention needs the features of the keys"
        if not memory_linear(q, k, given):
            return None
        gates, segments = given.features.mT.double(), None  # (B, H, 1, M); sums are large, and only differences matter
        if isinstance(given.mask, Mask):
            if given.mask.keys is not None:
                gates = gates.masked_fill(~given.mask.keys[:, None, None, :], 0.0)
            if given.mask.segments is not None:
                segments = given.mask.segments[:, None, None, :]
        bias = add_log_prior(sum_over_later_keys(gates, segments), given.log_prior)
        return self.softmax.attend(q, k, v, given.mask, log_prior=bias, scale=given.scale)
