"""Softpick, "Softpick: No Attention Sink, No Massive Activations with Rectified Softmax" (arXiv 2504.20966)."""

import torch
from torch import Tensor

from attnorm.attention.normalizers.base import AT_MOST_ONE, Given, Normalizer, add_log_prior
from attnorm.attention.option_checks import above_zero


class Softpick(Normalizer):
    """w_ij = relu(exp(s_ij) - 1) / (sum_k |exp(s_ik) - 1| + eps), with s = scores + log u, over the allowed keys.

    A key with a negative score has weight 0, but remains in the denominator. A key with u_j = 0 counts as masked and
    does not remain there, although one whose u_j is next to 0 adds nearly 1 to it. A query whose scores are all at most
    0 is dead: its weights are 0, and so are their gradients.

    eps: keeps a row of zeros from being 0 / 0.
    """

    total = AT_MOST_ONE
    prior_scale_invariant = False

    def __init__(self, eps: float = 1e-8):
        super().__init__()
        self.eps = above_zero("eps", eps)

    def weights(self, s: Tensor, given: Given) -> Tensor:
        s = add_log_prior(s, given.log_prior)
        # both terms are divided by exp(top), so that nothing overflows: exp(-top) would if top were far below 0
        top = s.detach().amax(-1, keepdim=True).clamp(min=0.0)
        difference = (s - top).expm1() - (-top).expm1()  # exact to the last digits for small scores, too
        difference = difference.masked_fill(s == -torch.inf, 0.0)  # a masked key would count |exp(-inf) - 1| = 1
        return difference.relu() / (difference.abs().sum(-1, keepdim=True) + self.eps * (-top).exp())
