"""histogram: how often does the own token occur?"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from attnorm.probes.arm import Arm
from attnorm.probes.base import Batch, Probe, all_right
from attnorm.probes.model import MLP, WIDTH, Linear, OneStep

KINDS, LENGTH = 32, 10


class Counter(nn.Module):
    """Self-attention, followed by an MLP on the token and what it has attended to."""

    def __init__(self, arm: Arm, seeds: Sequence[int]):
        super().__init__()
        self.step = OneStep(arm, seeds, KINDS, KINDS, KINDS, outputs=WIDTH)
        self.token, self.count = Linear(seeds, "token", KINDS, WIDTH), MLP(seeds, "count", WIDTH, outputs=LENGTH)

    def forward(self, batch: Batch) -> Tensor:
        outputs: Tensor = self.count(F.relu(self.token(batch.queries) + self.step(batch)))[0]
        return outputs

    def weights(self, batch: Batch) -> Tensor:
        return self.step.weights(batch)


class Histogram(Probe):
    """Ten tokens of 32 kinds; for each of them, how many tokens are of its kind. (Self-attention; two tokens in three
    are drawn from three kinds, so that counts vary.)"""

    site = "bidirectional"
    size = LENGTH
    test_sizes = (LENGTH,)
    updates = 2000
    chance = None
    solver = staticmethod(all_right)
    prediction = "no difference"
    source = "counting in small Transformers (arXiv 2407.11542)"

    def batch(self, count: int, size: int, generator: Generator) -> Batch:
        few = torch.randint(KINDS, (count, 3), generator=generator)
        frequent = few.gather(1, torch.randint(3, (count, size), generator=generator))
        any_kind = torch.randint(KINDS, (count, size), generator=generator)
        tokens = torch.where(torch.rand(count, size, generator=generator) < 2 / 3, frequent, any_kind)
        one_hot = F.one_hot(tokens, KINDS).float()
        counts = (tokens[:, :, None] == tokens[:, None, :]).sum(-1)
        return Batch(one_hot, one_hot, one_hot, counts - 1)

    def model(self, arm: Arm, seeds: Sequence[int]) -> Counter:
        return Counter(arm, seeds)
