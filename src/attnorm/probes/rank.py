"""rank: how fast do layers of attention without training make all positions equal?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from attnorm.attention.measures import distance_to_rank_one
from attnorm.probes.arm import Arm
from attnorm.probes.attention import Attention
from attnorm.probes.base import Probe, all_right
from attnorm.probes.model import WIDTH, normal

SHARPNESS = 2.0  # the standard deviation of the scores


class States(NamedTuple):
    """states: (B, M, WIDTH)."""

    states: Tensor


class Layers(nn.Module):
    """Layers of self-attention alone, with random matrices: no residual connections and no MLPs."""

    def __init__(self, arm: Arm, seeds: Sequence[int], depth: int):
        super().__init__()
        self.attentions = nn.ModuleList(Attention(arm, seeds, WIDTH) for _ in range(depth))

        def matrices(name: str, scale: float) -> nn.ParameterList:
            return nn.ParameterList(
                nn.Parameter(normal(seeds, f"{name}.{layer}", WIDTH, WIDTH, scale=scale * WIDTH**-0.5))
                for layer in range(depth)
            )

        self.q, self.k, self.v = matrices("q", SHARPNESS), matrices("k", 1.0), matrices("v", 1.0)

    def forward(self, batch: States) -> Tensor:
        """The states after the last layer, (E, B, M, WIDTH)."""
        states = batch.states
        for attention, q, k, v in zip(self.attentions, self.q, self.k, self.v, strict=True):
            x = F.layer_norm(states, states.shape[-1:])
            q, k, v = (x.flatten(1, 2) @ matrix for matrix in (q, k, v))
            q, k, v = (tensor.unflatten(1, x.shape[1:3]) for tensor in (q, k, v))
            states = attention(q, k, v, x, x)
        return states


@dataclass
class Rank(Probe):
    """States of 16 positions, standard normal in R^32, pass through layers of attention with random weights. The score
    is their relative distance to a matrix with equal rows, ||X - 1 x'|| / ||X||. Nothing is trained."""

    site = "bidirectional"
    metric = "distance to rank one"
    doses: ClassVar[Mapping[str, Mapping[str, Any]]] = {f"depth {n}": {"depth": n} for n in (1, 2, 4)}
    test_sizes = (16, 64)
    updates = 0
    chance = 0.0
    solver = staticmethod(all_right)
    prediction = "dnas and sinkhorn keep a larger distance than softmax at every depth; sharper maps keep the largest"
    source = "rank collapse (arXiv 2103.03404)"

    depth: int = 4

    def batch(self, count: int, size: int, generator: Generator) -> States:
        return States(torch.randn(count, size, WIDTH, generator=generator))

    def model(self, arm: Arm, seeds: Sequence[int]) -> Layers:
        return Layers(arm, seeds, self.depth)

    def score(self, outputs: Tensor, batch: States) -> Tensor:
        return distance_to_rank_one(outputs).nan_to_num(0.0)
