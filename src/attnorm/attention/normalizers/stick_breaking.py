"""Stick-breaking attention, "Scaling Stick-Breaking Attention" (arXiv 2410.17980)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnorm.attention.normalizers.base import AT_MOST_ONE, Given, Normalizer, add_log_prior
from attnorm.attention.normalizers.shared.per_position import sum_over_later_keys
from attnorm.attention.option_checks import one_of

REMAINDERS = ("residual", "value")


class StickBreaking(Normalizer):
    """w_ij = sigmoid(s_ij) prod_{j < k < i} (1 - sigmoid(s_ik)) for j < i, with s = scores + log u.

    From the latest key to the first one, each key takes its share of what the later ones have left. A query does not
    attend to its own position, which is the last key that it may see: at a causal site, also with padding, in packed
    texts, and in a cached step. The first query of a text therefore has the weights 0.

    remainder: where the weight 1 - sum_j w_ij goes that the first key leaves. "residual": to no value, so that the
               residual connection keeps the state. "value": to a learned value of each head, initially 0.
    heads, width: the number and the width of the heads, for remainder="value".
    """

    needs_causal = True
    key_equivariant = False
    total = AT_MOST_ONE
    prior_scale_invariant = False

    def __init__(self, remainder: str = "residual", heads: int | None = None, width: int | None = None):
        super().__init__()
        self.value: nn.Parameter | None = None
        if one_of("remainder", remainder, REMAINDERS) == "value":
            if heads is None or width is None:
                raise ValueError("remainder='value': needs heads=<number of heads> and width=<width of a head>")
            self.value = nn.Parameter(torch.zeros(heads, width))

    def remainder_value(self) -> Tensor | None:
        return self.value

    def weights(self, s: Tensor, given: Given) -> Tensor:
        seen = s != -torch.inf
        earlier = seen & (sum_over_later_keys(seen.int()) > 0)
        s = add_log_prior(s, given.log_prior)
        earlier = earlier & (s != -torch.inf)
        s = s.masked_fill(~earlier, 0.0)
        left = F.logsigmoid(-s).masked_fill(~earlier, 0.0)
        return (F.logsigmoid(s) + sum_over_later_keys(left)).exp().masked_fill(~earlier, 0.0)
