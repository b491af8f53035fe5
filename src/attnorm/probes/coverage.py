"""coverage: four queries have to notice every kind of token, including rare ones."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from attnorm.probes.arm import Arm
from attnorm.probes.base import Probe, all_right, permutations
from attnorm.probes.model import OneStep

KINDS, FREQUENT, RARE, QUERIES = 64, 4, 2, 4
SHARES = (0.5, 0.25, 0.15, 0.1)


class Tokens(NamedTuple):
    """queries: the number of a learned query, one-hot (B, QUERIES, QUERIES). keys, values: the kind of each token,
    one-hot (B, M, KINDS). targets: the kinds that are present, (B, KINDS). rare: those that occur once, (B, RARE)."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    targets: Tensor
    rare: Tensor


class PooledStep(OneStep):
    """The mean over the queries is read out."""

    def forward(self, batch: Tokens) -> Tensor:
        context = self.attention(*self.project(batch))
        return self.readout(F.layer_norm(context.mean(2), context.shape[-1:]))


class Coverage(Probe):
    """24 tokens of six kinds out of 64: four kinds have the shares .5, .25, .15 and .1, and two occur once. Four
    learned queries look at them, and their mean has to tell which kinds are present. The score is the share of the two
    rare kinds among the six that the model thinks most likely.

    The column step weighs keys, not kinds: ten copies get ten times the mass, and no key can be preferred.
    """

    metric = "rare kinds found"
    size = 24
    test_sizes = (24, 48, 96)
    updates = 1500
    chance = (FREQUENT + RARE) / KINDS
    solver = staticmethod(all_right)
    prediction = "dnas below softmax, hnas above it; sparsemax above softmax, the more so with more tokens"
    source = "set cover by attention; coverage in summarization (arXiv 1704.04368)"

    def batch(self, count: int, size: int, generator: Generator) -> Tokens:
        kinds = permutations(count, KINDS, generator)[:, : FREQUENT + RARE]
        drawn = torch.rand(count, size - RARE - FREQUENT, generator=generator)
        slots = torch.bucketize(drawn, torch.tensor(SHARES).cumsum(0)[:-1])
        certain = torch.arange(FREQUENT + RARE).expand(count, -1)  # all six are present
        order = permutations(count, size, generator)  # the position of a token says nothing about its kind
        tokens = kinds.gather(1, torch.cat([slots, certain], 1).gather(1, order))
        one_hot = F.one_hot(tokens, KINDS).float()
        present = one_hot.amax(1)
        queries = torch.eye(QUERIES).expand(count, -1, -1)
        return Tokens(queries, one_hot, one_hot, present, kinds[:, FREQUENT:])

    def model(self, arm: Arm, seeds: Sequence[int]) -> PooledStep:
        return PooledStep(arm, seeds, QUERIES, KINDS, KINDS, outputs=KINDS)

    def loss(self, outputs: Tensor, batch: Tokens) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, batch.targets, reduction="none").sum(-1).mean(1)

    def score(self, outputs: Tensor, batch: Tokens) -> Tensor:
        likely = outputs.topk(FREQUENT + RARE, dim=-1).indices
        return (likely.unsqueeze(-1) == batch.rare.unsqueeze(-2)).any(-2).float().mean(-1)
