"""trigger: attend to everything, or to nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from attnorm.probes.arm import Arm
from attnorm.probes.base import Batch, Probe, all_right
from attnorm.probes.model import OneStep

WIDTH, SHARE = 8, 0.3


@dataclass
class Trigger(Probe):
    """16 vectors in R^8, standard normal, and one query, a bit that is set with probability .3. The answer is the mean
    of the vectors if it is set, and 0 otherwise. The model has attention only: no LayerNorm, and no biases.

    Weights that sum to 1 can only give the mean or another average. With `bos`, there is one more key, without a value.
    """

    metric = "R2"
    doses: ClassVar[Mapping[str, Mapping[str, Any]]] = {"no BOS": {"bos": False}, "BOS": {"bos": True}}
    test_sizes = (16, 64)
    updates = 1000
    chance = 0.0
    solver = staticmethod(all_right)
    prediction = "without BOS: sink, sigmoid and softpick above softmax, dnas equal to it; with BOS no difference"
    source = "attention sinks (arXiv 2410.10781); softmax is not enough (arXiv 2603.11487)"

    bos: bool = False

    def batch(self, count: int, size: int, generator: Generator) -> Batch:
        vectors = torch.randn(count, size, WIDTH, generator=generator)
        trigger = (torch.rand(count, 1, 1, generator=generator) < SHARE).float()
        targets = trigger * vectors.mean(1, keepdim=True)
        if self.bos:
            vectors = torch.cat([torch.zeros(count, 1, WIDTH), vectors], 1)
        is_bos = torch.zeros(count, vectors.shape[1], 1)
        is_bos[:, 0] = float(self.bos)
        return Batch(2 * trigger - 1, torch.cat([vectors, is_bos], -1), vectors, targets)

    def model(self, arm: Arm, seeds: Sequence[int]) -> OneStep:
        return OneStep(arm, seeds, 1, WIDTH + 1, WIDTH, outputs=WIDTH, normalize=False)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return (outputs - batch.targets).square().flatten(1).mean(1)

    def score(self, outputs: Tensor, batch: Batch) -> Tensor:
        """1 - squared error / variance of the answers: its mean over examples is R2."""
        size = batch.values.shape[-2] - self.bos
        return 1 - (outputs - batch.targets).square().flatten(2).sum(-1) / (SHARE * WIDTH / size)
