"""Attention of an ensemble: its members are heads of one normalizer."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attnorm.attention.masking import Mask
from attnorm.attention.normalizers.base import Normalizer, dot_scores
from attnorm.attention.registry import build_prior
from attnorm.probes.arm import CONTENT, Arm

Part = TypeVar("Part", bound=nn.Module)


class Attention(nn.Module):
    """One head of attention for each member, (E, B, N, D) -> (E, B, N, D), with the normalizer of an arm.

    A normalizer that only sees scores and has no parameters, or parameters per head, is called once: the members are
    its heads. Otherwise every member has one of its own (`together` is False), which is slower.
    """

    def __init__(self, arm: Arm, seeds: Sequence[int], width: int):
        super().__init__()
        alone = [seeded(lambda: arm.normalizer(1, width), seed) for seed in seeds]
        self.together = are_heads(alone[0], arm.normalizer(2, width), width)
        if self.together:
            alone = [_joined(alone, arm.normalizer(len(seeds), width))]
        self.normalizers: Any = nn.ModuleList(alone)
        priors = [seeded(lambda: build_prior(CONTENT, width=width, heads=1), seed) for seed in seeds]
        self.priors: Any = nn.ModuleList(priors) if arm.has_prior else None
        self.scale = width**-0.5

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, query_states: Tensor, key_states: Tensor, mask: Mask | None = None
    ) -> Tensor:
        """Queries (E, B, N, D), keys and values (E, B, M, D) -> (E, B, N, D). The states are those behind q and k."""
        return self.average(self.weights(q, k, query_states, key_states, mask), v)

    def average(self, weights: Tensor, v: Tensor) -> Tensor:
        """Averages the values, and adds the value of the remainder, if the normalizer has one."""
        output = weights @ v
        values = [normalizer.remainder_value() for normalizer in self.normalizers]
        if values[0] is None:
            return output
        return output + (1 - weights.sum(-1, keepdim=True)) * torch.cat(values)[:, None, None, :]

    def weights(
        self, q: Tensor, k: Tensor, query_states: Tensor, key_states: Tensor, mask: Mask | None = None
    ) -> Tensor:
        """The attention weights (E, B, N, M)."""
        prior = None  # log u of each member, (B, 1, 1 or N, M)
        if self.priors is not None:
            sizes = (q.shape[-2], k.shape[-2], 0)
            prior = [of(*sizes, states, mask) for of, states in zip(self.priors, key_states, strict=True)]
        if self.normalizers[0].needs_keys:  # a solver may refuse the keys of diverged members
            k = k.nan_to_num(0.0, 0.0, 0.0)
        if self.together:  # (B, E, N, M)
            log_prior = None if prior is None else torch.cat(prior, 1)
            q, k = q.transpose(0, 1), k.transpose(0, 1)
            weights = self.normalizers[0].weights_of(q, k, mask, log_prior=log_prior, scale=self.scale)
            return weights.transpose(0, 1)
        rows = []
        for e, normalizer in enumerate(self.normalizers):
            features = None
            if normalizer.needs_states != "none":
                features = normalizer.features_of(
                    (query_states if normalizer.needs_states == "queries" else key_states)[e]
                )
            given = {"log_prior": None if prior is None else prior[e], "scale": self.scale, "features": features}
            rows.append(normalizer.weights_of(q[e][:, None], k[e][:, None], mask, **given).squeeze(1))
        return torch.stack(rows)

    def learned_scalars(self) -> dict[str, Tensor]:
        """The learned scalars of the normalizer, (E,) each, for those with one number per head."""
        layers = [normalizer.learned_scalars() for normalizer in self.normalizers]
        return {name: torch.cat([scalars[name].detach().flatten() for scalars in layers]) for name in layers[0]}


def seeded(make: Callable[[], Part], seed: int) -> Part:
    """Builds a module whose initial values depend on the seed only."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def _joined(alone: Sequence[Normalizer], joint: Normalizer) -> Normalizer:
    """`joint` with the parameters of several normalizers, one after the other."""
    states = [one.state_dict() for one in alone]
    joint.load_state_dict({name: torch.cat([state[name] for state in states]) for name in states[0]})
    return joint


@torch.no_grad()
def are_heads(one: Normalizer, two: Normalizer, width: int) -> bool:
    """Whether the normalizer for two heads is that for one head twice: it sees only scores, with numbers per head.

    Constants that differ between heads are no numbers of the state, and an own class may couple heads without saying
    so. The weights of two different heads are therefore compared as well.
    """
    if one.needs_states != "none" or one.couples_heads:
        return False
    sizes = [{name: value.shape for name, value in normalizer.state_dict().items()} for normalizer in (one, two)]
    if sizes[1] != {name: (2 * shape[0], *shape[1:]) if shape else None for name, shape in sizes[0].items()}:
        return False
    allowed, scale = torch.ones(5, 5, dtype=torch.bool).tril() if one.needs_causal else None, width**-0.5

    def weights(normalizer: Normalizer, q: Tensor) -> Tensor:
        return normalizer(dot_scores(q, q, scale), allowed, keys=q, scale=scale, **normalizer.declared(q, None))

    q = torch.randn(1, 2, 5, width, generator=torch.Generator().manual_seed(0))
    alone = torch.cat([weights(one, q[:, :1]), weights(one, q[:, 1:])], 1)
    return torch.allclose(weights(_joined([one, one], two), q), alone, atol=1e-6)
