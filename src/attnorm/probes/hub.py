"""hub: queries are noisy copies of the keys, all shifted to one side."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from attnorm.probes.base import Batch, Probe, asked, permutations, rows_at, unit
from attnorm.probes.solvers import assignment


class Hub(Probe):
    """Keys are unit vectors in R^6. A query is unit(its key + noise e + shift u): e is standard normal, and u is a unit
    vector that all queries of an example share.

    The keys near u become hubs: they are nearest to many queries. The column step takes a part of the shift away. This
    probe is made for it, as `skew` is made against it.
    """

    doses: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "0.9": {"shift": 0.9},
        "0.45": {"shift": 0.45},
        "0": {"shift": 0.0},
    }
    axis = "common shift of the queries"
    size = 8
    test_sizes = (8, 16)
    updates = 600
    prediction = "dnas and hnas above softmax, and the more so the larger the shift"
    source = "hubness and inverted softmax (arXiv 1702.03859)"

    def __init__(self, shift: float = 0.9, noise: float = 0.3, width: int = 6):
        self.shift, self.noise, self.width = shift, noise, width

    def batch(self, count: int, size: int, generator: Generator) -> Batch:
        keys = unit(torch.randn(count, size, self.width, generator=generator))
        wanted = permutations(count, size, generator)
        common = unit(torch.randn(count, 1, self.width, generator=generator))
        noise = torch.randn(keys.shape, generator=generator)
        queries = unit(rows_at(keys, wanted) + self.noise * noise + self.shift * common)
        return asked(queries, keys, wanted, generator)

    def ceiling(self, batch: Batch) -> Tensor:
        return assignment(batch)
