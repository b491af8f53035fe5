"""needle: eight queries look for their keys among more and more others."""

import torch
from torch import Generator, Tensor

from attnorm.probes.base import Batch, Probe, asked, permutations, rows_at, unit
from attnorm.probes.solvers import assignment


class Needle(Probe):
    """Keys are unit vectors in R^8, and eight of them are wanted, by one query each. It is trained with up to 64 keys
    and tested with up to 1,024: weights that are spread over all keys are lost."""

    size = 64
    train_sizes = (8, 16, 32, 64)
    test_sizes = (8, 64, 256, 1024)
    updates = 1000
    prediction = "dnas falls as 8 / M; softmax and hnas fall little; ssmax does not fall; sigmoid falls at 1,024"
    source = "needle in a haystack; scalable softmax (arXiv 2501.19399)"

    def __init__(self, noise: float = 0.15, width: int = 8):
        self.noise, self.width = noise, width

    def batch(self, count: int, size: int, generator: Generator) -> Batch:
        keys = unit(torch.randn(count, size, self.width, generator=generator))
        wanted = permutations(count, size, generator)[:, :8]
        noise = torch.randn(*wanted.shape, self.width, generator=generator)
        return asked(rows_at(keys, wanted) + self.noise * noise, keys, wanted, generator)

    def ceiling(self, batch: Batch) -> Tensor:
        return assignment(batch)
