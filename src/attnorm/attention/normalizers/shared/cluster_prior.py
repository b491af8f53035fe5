"""Trained cluster priors over the queries, the beta_i of "Doubly-Normalized Attention", Eq. 5-6."""

import torch
from torch import Tensor, nn

from attnorm.attention.option_checks import whole
from attnorm.errors import ConfigError, Problem


class ClusterPrior(nn.Module):
    """log b_i: one trained number per head and query position, initially 0.

    The prior of cluster i is beta_i ~ b_i exp(|q_i|^2 / 2); with b_i = 1 it is that of the paper. queries: the number
    of query positions. More queries raise ConfigError. normalizer: the name of the normalizer, for its message.
    """

    def __init__(self, queries: int | None, heads: int | None, normalizer: str):
        super().__init__()
        self.key = f"attention.options.{normalizer}.queries"
        for name, value in (("queries", queries), ("heads", heads)):
            if value is None:
                raise ValueError(f"beta='learned': needs {name}=<number of {name}>")
            whole(name, value, 1)
        self.log_b = nn.Parameter(torch.zeros(heads or 0, queries or 0))

    def forward(self, n_queries: int) -> Tensor:
        """Returns log b, (1, H, N, 1)."""
        positions = self.log_b.shape[1]
        if n_queries > positions:
            message = f"got {n_queries} queries; must be the largest number of queries of an example, or more"
            raise ConfigError([Problem(self.key, message, positions)])
        # a copy, because a view of a parameter requires a gradient even under no_grad, where hooks do not expect it
        return self.log_b[None, :, :n_queries, None].clone()
