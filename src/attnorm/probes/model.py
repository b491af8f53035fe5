"""Models whose parameters have an axis for the members of an ensemble: one member per seed and learning rate.

Members do not see each other. The initial value of a parameter depends on the seed of its member and on its name only,
so all arms and all learning rates start from the same numbers.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from attnorm.attention.masking import Mask
from attnorm.probes.arm import Arm
from attnorm.probes.attention import Attention

WIDTH = 32


def generator(*names: object) -> Generator:
    """A generator whose numbers depend on the names only, in every process."""
    digest = hashlib.sha256("/".join(map(str, names)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


class Linear(nn.Module):
    """A linear layer for each member: x (E, ..., inputs) -> (E, ..., outputs). It starts as nn.Linear does."""

    def __init__(self, seeds: Sequence[int], name: str, inputs: int, outputs: int, bias: bool = True):
        super().__init__()
        self.weight = nn.Parameter(uniform(seeds, f"{name}.weight", inputs, outputs, bound=inputs**-0.5))
        self.bias = nn.Parameter(uniform(seeds, f"{name}.bias", 1, outputs, bound=inputs**-0.5)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(1, -2)
        result = rows @ self.weight if self.bias is None else torch.baddbmm(self.bias, rows, self.weight)
        return result.unflatten(1, x.shape[1:-1])


class MLP(nn.Module):
    """Two linear layers for each member. `states` are those between them."""

    def __init__(self, seeds: Sequence[int], name: str, inputs: int, outputs: int = WIDTH):
        super().__init__()
        self.first = Linear(seeds, f"{name}.0", inputs, WIDTH)
        self.second = Linear(seeds, f"{name}.1", WIDTH, outputs)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs and the states, (E, ..., outputs) and (E, ..., WIDTH)."""
        states = F.relu(self.first(x))
        return self.second(states), states


class OneStep(nn.Module):
    """One step of attention from queries to keys, and a linear readout. There is no residual connection.

    q = MLP(queries), k = MLP(keys), v = linear(values), outputs = linear(LayerNorm(attention(q, k, v))).

    Called with a batch, whose first tensors are queries, keys and values (E, B, ., .), it returns (E, B, N, outputs).
    normalize: whether to apply LayerNorm, and to have biases after the attention. causal: whether attention is.
    """

    def __init__(
        self,
        arm: Arm,
        seeds: Sequence[int],
        queries: int,
        keys: int,
        values: int,
        outputs: int,
        normalize: bool = True,
        causal: bool = False,
    ):
        super().__init__()
        self.q, self.k = MLP(seeds, "query", queries), MLP(seeds, "key", keys)
        self.v = Linear(seeds, "value", values, WIDTH, bias=normalize)
        self.readout = Linear(seeds, "readout", WIDTH, outputs, bias=normalize)
        self.attention, self.normalize = Attention(arm, seeds, WIDTH), normalize
        self.mask = Mask(causal=True) if causal else None

    def project(self, batch: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """q, k, v, and the states behind q and k: (E, B, N or M, WIDTH) each."""
        queries, keys, values, *_ = batch
        (q, query_states), (k, key_states) = self.q(queries), self.k(keys)
        return q, k, self.v(values), query_states, key_states

    def forward(self, batch: Any) -> Tensor:
        context = self.attention(*self.project(batch), self.mask)
        return self.readout(F.layer_norm(context, context.shape[-1:]) if self.normalize else context)

    def weights(self, batch: Any) -> Tensor:
        """The attention weights of a batch, (E, B, N, M)."""
        q, k, _, query_states, key_states = self.project(batch)
        return self.attention.weights(q, k, query_states, key_states, self.mask)


def uniform(seeds: Sequence[int], name: str, *shape: int, bound: float) -> Tensor:
    """Initial values between -bound and bound, (E, *shape)."""
    return torch.stack([(2 * torch.rand(shape, generator=generator(seed, name)) - 1) * bound for seed in seeds])


def normal(seeds: Sequence[int], name: str, *shape: int, scale: float = 1.0) -> Tensor:
    """Initial values from a normal distribution, (E, *shape)."""
    return torch.stack([torch.randn(shape, generator=generator(seed, name)) * scale for seed in seeds])
