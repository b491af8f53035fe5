"""slots: four slots have to share out the points of four clusters of very unequal sizes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from attnorm.probes.arm import Arm
from attnorm.probes.attention import Attention
from attnorm.probes.base import Probe, permutations, rows_at
from attnorm.probes.model import MLP, WIDTH, Linear, normal

SLOTS, STEPS = 4, 3
SHARES = (0.6, 0.25, 0.09, 0.06)
SPREAD = 0.1  # the standard deviation of a cluster; centers are uniform in the unit square
SCALE = 4  # points are this many times as far apart, around 0


class Points(NamedTuple):
    """points (B, M, 2), the cluster of each, int (B, M), and random starts of the slots (B, SLOTS, WIDTH)."""

    points: Tensor
    targets: Tensor
    starts: Tensor


class SlotModel(nn.Module):
    """Slots attend to points in STEPS steps with shared parameters. Each slot ends as a normal distribution.

    The outputs are log pi_k N(x; mean_k, deviation_k), (E, B, M, SLOTS).
    distinct: each slot starts from learned numbers of its own. Otherwise the starts are random, and slots exchangeable.
    """

    def __init__(self, arm: Arm, seeds: Sequence[int], distinct: bool):
        super().__init__()
        self.k, self.v = MLP(seeds, "key", 2), Linear(seeds, "value", 2, WIDTH)
        self.q, self.update = MLP(seeds, "query", WIDTH), MLP(seeds, "update", 2 * WIDTH)
        self.readout, self.attention = MLP(seeds, "readout", WIDTH, outputs=4), Attention(arm, seeds, WIDTH)
        self.own = nn.Parameter(normal(seeds, "starts", 1, SLOTS, WIDTH)) if distinct else None

    def forward(self, batch: Points) -> Tensor:
        slots = self.slots(batch)[0]
        mean, log_deviation, logit = self.readout(slots)[0].split([2, 1, 1], -1)
        squares = (batch.points.unsqueeze(-2) - mean.unsqueeze(-3)).square().sum(-1)  # (E, B, M, SLOTS)
        log_deviation = log_deviation.clamp(-4.0, 2.0).transpose(-1, -2)
        log_density = -squares / 2 * (-2 * log_deviation).exp() - 2 * log_deviation - math.log(2 * math.pi)
        return log_density + logit.transpose(-1, -2).log_softmax(-1)

    def weights(self, batch: Points) -> Tensor:
        """The attention weights of the last step, (E, B, SLOTS, M)."""
        return self.slots(batch)[1]

    def slots(self, batch: Points) -> tuple[Tensor, Tensor]:
        """The slots after the last step, (E, B, SLOTS, WIDTH), and its weights."""
        (k, key_states), v = self.k(batch.points), self.v(batch.points)
        slots = batch.starts if self.own is None else self.own.expand_as(batch.starts)
        for _ in range(STEPS):
            q, query_states = self.q(F.layer_norm(slots, slots.shape[-1:]))
            weights = self.attention.weights(q, k, query_states, key_states)
            context = self.attention.average(weights, v)
            slots = slots + self.update(torch.cat([F.layer_norm(slots, slots.shape[-1:]), context], -1))[0]
        return slots, weights


class Slots(Probe):
    """Points of four clusters with 60, 25, 9 and 6 % of the points; the loss is the likelihood of a mixture of the
    slots. With exchangeable slots the score is the share of smallest clusters that are found: some slot takes a set
    of points whose intersection with the cluster is more than half of their union. With distinct slots it is the
    adjusted Rand index of the points and their slots.
    """

    doses: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "exchangeable": {"distinct": False},
        "distinct": {"distinct": True},
    }
    size = 64
    test_sizes = (64, 128)
    updates, examples = 1000, 32
    chance = None
    prediction = "exchangeable slots: dnas and hnas find more of the smallest clusters; distinct slots: no difference"
    source = "slot attention (arXiv 2006.15055) without its competition of slots, which is a column step"

    def __init__(self, distinct: bool = False):
        self.distinct = distinct
        self.metric = "adjusted Rand index" if distinct else "smallest clusters found"

    def batch(self, count: int, size: int, generator: Generator) -> Points:
        centers = torch.rand(count, SLOTS, 2, generator=generator)
        sizes = [max(round(share * size), 1) for share in SHARES[1:]]
        cluster = torch.repeat_interleave(torch.arange(SLOTS), torch.tensor([size - sum(sizes), *sizes]))
        clusters = cluster[permutations(count, size, generator)]  # the position of a point says nothing about it
        points = rows_at(centers, clusters) + SPREAD * torch.randn(count, size, 2, generator=generator)
        starts = torch.randn(count, SLOTS, WIDTH, generator=generator)
        return Points(SCALE * points - 2, clusters, starts)

    def model(self, arm: Arm, seeds: Sequence[int]) -> SlotModel:
        return SlotModel(arm, seeds, self.distinct)

    def loss(self, outputs: Tensor, batch: Points) -> Tensor:
        return -outputs.logsumexp(-1).flatten(1).mean(1)

    def score(self, outputs: Tensor, batch: Points) -> Tensor:
        predicted = F.one_hot(outputs.argmax(-1), SLOTS).double()  # (E, B, M, SLOTS)
        true = F.one_hot(batch.targets, SLOTS).double()
        table = true.transpose(-1, -2) @ predicted  # (E, B, clusters, SLOTS)
        if self.distinct:
            return adjusted_rand_index(table).float()
        smallest = table[..., -1, :]  # the points of the smallest cluster in each slot
        union = true[..., -1].sum(-1, keepdim=True) + predicted.sum(-2) - smallest
        return (smallest > union / 2).any(-1).float()

    def ceiling(self, batch: Points) -> Tensor:
        """The most likely cluster of each point if the size and the mean of every cluster are known."""
        true = F.one_hot(batch.targets, SLOTS).float()
        sizes = true.sum(1)
        means = true.transpose(-1, -2) @ batch.points / sizes.unsqueeze(-1)
        fit = sizes.log().unsqueeze(-2) - torch.cdist(batch.points, means).square() / (2 * (SCALE * SPREAD) ** 2)
        return self.score(fit.unsqueeze(0), batch._replace(targets=batch.targets.unsqueeze(0)))[0]


def adjusted_rand_index(table: Tensor) -> Tensor:
    """The agreement of two partitions from their contingency table (..., R, C), 0 by chance and 1 if they are equal.

    Source: Hubert and Arabie, "Comparing partitions" (1985).
    """

    def pairs(n: Tensor) -> Tensor:
        return n * (n - 1) / 2

    both, rows, columns = pairs(table).sum((-2, -1)), pairs(table.sum(-1)).sum(-1), pairs(table.sum(-2)).sum(-1)
    expected = rows * columns / pairs(table.sum((-2, -1)))
    most = (rows + columns) / 2
    return torch.where(most == expected, 1.0, (both - expected) / (most - expected))
