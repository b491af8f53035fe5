"""demand, share and skew: how evenly the queries want the keys."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from attnorm.probes.base import Batch, Probe, asked, assignment, nearest_key, permutations, rows_at, unit


@dataclass
class Demand(Probe):
    """16 keys, which are unit vectors in R^6, and fewer queries: each wants another key, and is that key plus noise.

    The column step gives every key the same say, wanted or not. The fewer keys are wanted, the more weight it moves to
    keys that nobody wants: with K of M keys wanted, their mean weight is at most about K/M.

    queries: the number of queries for 16 keys; it grows with the number of keys.
    """

    doses: ClassVar[Mapping[str, Mapping[str, Any]]] = {str(n): {"queries": n} for n in (16, 12, 8, 4)}
    axis = "queries for 16 keys"
    test_sizes = (16, 32)
    updates = 600
    solver = staticmethod(assignment)
    prediction = "dnas above softmax with 16 queries, about equal with 12, and below with 8 and 4; hnas never below"
    source = "Lemma 1 of Doubly-Normalized Attention: no key is explained away"

    queries: int = 4
    noise: float = 0.25
    width: int = 6

    def batch(self, count: int, size: int, generator: Generator) -> Batch:
        keys = unit(torch.randn(count, size, self.width, generator=generator))
        wanted = self.wanted(count, size, generator)
        noise = torch.randn(*wanted.shape, self.width, generator=generator)
        return asked(rows_at(keys, wanted) + self.noise * noise, keys, wanted, generator)

    def wanted(self, count: int, size: int, generator: Generator) -> Tensor:
        """The key that each query wants, int (count, N)."""
        return permutations(count, size, generator)[:, : self.queries * size // 16]


class Share(Demand):
    """As many queries as keys, of which only `kept` of 16 are wanted: query i wants key p(i mod K)."""

    doses: ClassVar[Mapping[str, Mapping[str, Any]]] = {str(n): {"kept": n} for n in (8, 4, 1)}
    axis = "wanted keys of 16"
    solver = staticmethod(
        nearest_key
    )  # other queries often want the same key, and a model that uses them can do better
    prediction = "dnas below softmax, and the more so the fewer keys are wanted; hnas and dnas_slack not below"

    def __init__(self, kept: int = 4, noise: float = 0.25, width: int = 6):
        super().__init__(16, noise, width)
        self.kept = kept

    def wanted(self, count: int, size: int, generator: Generator) -> Tensor:
        among = max(self.kept * size // 16, 1)
        return permutations(count, size, generator)[:, torch.arange(size) % among]


class Skew(Demand):
    """As many queries as keys: each wants the same key with probability `hot`, and otherwise any of the others."""

    doses: ClassVar[Mapping[str, Mapping[str, Any]]] = {"0.8": {"hot": 0.8}}
    axis = "probability of the popular key"
    solver = staticmethod(
        nearest_key
    )  # other queries often want the same key, and a model that uses them can do better
    prediction = "dnas and sinkhorn far below softmax; hnas and dnas_slack equal to it"

    def __init__(self, hot: float = 0.8, noise: float = 0.25, width: int = 6):
        super().__init__(16, noise, width)
        self.hot = hot

    def wanted(self, count: int, size: int, generator: Generator) -> Tensor:
        other = torch.randint(1, size, (count, size), generator=generator)
        popular = permutations(count, size, generator)[:, :1]
        return (popular + other.masked_fill(torch.rand(count, size, generator=generator) < self.hot, 0)) % size
