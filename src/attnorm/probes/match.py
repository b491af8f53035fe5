"""match: queries are noisy copies of the keys, in another order."""

import torch
from torch import Generator, Tensor

from attnorm.probes.base import Batch, Probe, asked, permutations, rows_at
from attnorm.probes.solvers import assignment


class Match(Probe):
    """Keys are standard normal in R^4; queries are the keys in another order plus `noise` times a standard normal.

    Every key is wanted once, so a key that one query is sure of helps the others.
    """

    test_sizes = (8, 16, 32)
    updates = 600
    prediction = "dnas, hnas, sinkhorn and dnas_slack above softmax"
    source = "linear assignment; softmax over queries in SuperGlue (arXiv 1911.11763)"

    def __init__(self, noise: float = 0.35, width: int = 4):
        self.noise, self.width = noise, width

    def batch(self, count: int, size: int, generator: Generator) -> Batch:
        keys = torch.randn(count, size, self.width, generator=generator)
        wanted = permutations(count, size, generator)
        queries = rows_at(keys, wanted) + self.noise * torch.randn(keys.shape, generator=generator)
        return asked(queries, keys, wanted, generator)

    def ceiling(self, batch: Batch) -> Tensor:
        return assignment(batch)
