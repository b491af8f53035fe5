"""A probe and normalizers of one's own for the tests. They are small, and import nothing beyond attnorm and torch."""

import os
from typing import ClassVar

import torch
from torch import nn

from attnorm.attention.normalizers.base import Normalizer, softmax_over_keys
from attnorm.probes.base import Probe, asked, permutations, rows_at


class Temperature(Normalizer):
    """softmax(exp(t) s): one learned number for all heads, without an axis for them."""

    def __init__(self) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def learned_scalars(self):
        return {"temperature": self.log_temperature.exp().unsqueeze(0)}

    def fast_parameters(self):
        return (self.log_temperature,)

    def weights(self, s, given):
        return softmax_over_keys(self.log_temperature.exp() * s)


class Noisy(Normalizer):
    """softmax with Gumbel noise in training. modes: whether each call was one of training."""

    modes: ClassVar[list[bool]] = []

    def weights(self, s, given):
        self.modes.append(self.training)
        noise = -torch.rand_like(s).clamp_min(1e-6).log().neg().clamp_min(1e-6).log()
        return softmax_over_keys(s + noise if self.training else s)


class Gate(Normalizer):
    """softmax(s), and one learned matrix per head, which training moves and weight decay shrinks."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.eye(width).repeat(heads, 1, 1))

    needs_queries = True

    def weights(self, s, given):
        return softmax_over_keys(s + (given.queries @ self.matrix).sum(-1, keepdim=True).tanh() * s)


class Slopes(Normalizer):
    """softmax with a constant per head that is neither a parameter nor a buffer."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.slopes = [2.0**-head for head in range(heads)]

    def weights(self, s, given):
        return softmax_over_keys(s * torch.tensor(self.slopes)[:, None, None])


class Talking(Normalizer):
    """softmax of the mean over the heads, and does not say that it couples them."""

    def weights(self, s, given):
        return softmax_over_keys(s.mean(1, keepdim=True).expand_as(s))


class Leaky(Normalizer):
    """Columns, then rows, and does not say that its rows depend on later queries."""

    def weights(self, s, given):
        return softmax_over_keys(s - s.logsumexp(-2, keepdim=True).clamp(min=-50))


class Broken(Normalizer):
    """Raises an error as soon as it is used, or exits with the code of the environment variable BROKEN_EXITS."""

    def weights(self, s, given):
        if code := os.environ.get("BROKEN_EXITS"):
            raise SystemExit(int(code))
        raise RuntimeError("broken on <purpose>")


class TwoParts(Exception):
    """An error that pickle cannot bring back: its constructor has two arguments."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class Unsendable(Normalizer):
    """Raises such an error."""

    def weights(self, s, given):
        raise TwoParts("one", "two")


class Killed(Normalizer):
    """Ends its process, as a full memory does."""

    def weights(self, s, given):
        os._exit(9)


class Tiny(Probe):
    """Queries are noisy copies of the keys, & <they> are few."""

    size, test_sizes, updates, examples = 4, (4, 6), 4, 8
    prediction = "no <difference>"

    def __init__(self, noise: float = 0.1):
        self.noise = noise

    def batch(self, count, size, generator):
        keys = torch.randn(count, size, 3, generator=generator)
        wanted = permutations(count, size, generator)
        queries = rows_at(keys, wanted) + self.noise * torch.randn(keys.shape, generator=generator)
        return asked(queries, keys, wanted, generator)


class TinyCausal(Tiny):
    """The same, with causal attention."""

    site = "causal"


class Unsolved(Tiny):
    """A solver that fails at a size of the tests."""

    def ceiling(self, batch):
        return torch.linalg.inv(torch.eye(2) * (batch.keys.shape[1] == 4)).sum() * torch.ones(len(batch.keys))


class UnsolvedInTraining(Tiny):
    """A solver that fails at a size of the training."""

    train_sizes = (4, 5)

    def ceiling(self, batch):
        return torch.linalg.inv(torch.eye(2) * (batch.keys.shape[1] != 5)).sum() * torch.ones(len(batch.keys))


class NumberAsCeiling(Tiny):
    def ceiling(self, batch):
        return 1.0


class ScoreOfQueries(Tiny):
    def score(self, outputs, batch):
        return outputs.argmax(-1) == batch.targets


class LossOfExamples(Tiny):
    def loss(self, outputs, batch):
        return outputs.flatten(2).mean(-1)


class NoDoses(Tiny):
    doses: ClassVar = {}


class Dosed(Tiny):
    """Doses that are numbers, and one that is not a number."""

    doses: ClassVar = {"1": {}, "2.5": {}, "-1": {}, "none": {}}
    axis = "noise of the queries"


class Listed(Tiny):
    """Doses of another form."""

    doses = (1, 2)


class Elsewhere(Tiny):
    """A site that does not exist."""

    site = "self"


class Scaled(Normalizer):
    """softmax(factor s), for a factor that has to be given."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def weights(self, s, given):
        return softmax_over_keys(self.factor * s)
