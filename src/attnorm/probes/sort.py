"""sort: the r-th query asks for the r-th smallest number."""

import torch
from torch import Generator, Tensor

from attnorm.probes.base import Batch, Probe, asked


class Sort(Probe):
    """Keys are numbers, uniform in (0, 1), and query r = 0, ..., M - 1 is r / (M - 1).

    The rank of a key depends on the other keys, which one step of softmax cannot see: it can only guess a number from
    its usual rank. The best one-to-one assignment of queries to keys sorts.
    """

    test_sizes = (8, 16, 32)
    prediction = "dnas, hnas and sinkhorn above softmax"
    source = "Sinkhorn sorting (arXiv 1905.11885)"

    def batch(self, count: int, size: int, generator: Generator) -> Batch:
        numbers = torch.rand(count, size, generator=generator)
        queries = torch.linspace(0, 1, size).expand(count, -1).unsqueeze(-1)
        return asked(queries, numbers.unsqueeze(-1), numbers.argsort(-1), generator)

    def ceiling(self, batch: Batch) -> Tensor:
        return torch.ones(len(batch.targets))
