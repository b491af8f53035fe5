"""Trained cluster priors over the queries, the beta_i of "Doubly-Normalized Attention", Eq. 5-6."""

import torch
from torch import Tensor, nn

from attnorm.attention.option_checks import whole


class ClusterPrior(nn.Module):
    """log b_i: one trained number per head and query position, initially 0.

    The prior of cluster i is beta_i ~ b_i exp(|q_i|^2 / 2); with b_i = 1 it is that of the paper. queries: the number
    of query positions. More queries raise ValueError.
    """

    def __init__(self, queries: int | None, heads: int | None):
        super().__init__()
        for name, value in (("queries", queries), ("heads", heads)):
            if value is None:
                raise ValueError(f"beta='learned': needs {name}=<number of {name}>")
            whole(name, value, 1)
        self.log_b = nn.Parameter(torch.zeros(heads or 0, queries or 0))

    def forward(self, n_queries: int) -> Tensor:
        """Returns log b, (1, H, N, 1)."""
        if n_queries > self.log_b.shape[1]:
            raise ValueError(f"queries={self.log_b.shape[1]}: got {n_queries} queries")
        # a copy, because a view of a parameter requires a gradient even under no_grad, where hooks do not expect it
        return self.log_b[None, :, :n_queries, None].clone()
