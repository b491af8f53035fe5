"""Trains an ensemble: all seeds and learning rates of an arm at once, as one model.

Member e is the model that would be trained alone with its seed and its rate: losses are summed over members, no
parameter is shared, and the optimizer works on each number by itself.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnorm.attention.hooks import TrainingHooks
from attnorm.probes.arm import Arm
from attnorm.probes.attention import Attention
from attnorm.probes.base import Probe
from attnorm.probes.model import generator

WARMUP = 0.05  # of the updates
FAST = 10.0  # the learning rate of hybrid weights and other scalars is this many times the others'
WEIGHT_DECAY = 0.01  # of the parameters of linear layers
CHECKS = 10  # points of a curve
SELECTION = 512  # examples
PAIRS = 2**21  # query-key pairs and members that are evaluated at once


@dataclass
class Trained:
    """A trained ensemble. seconds: of the training alone, CPU time. curve: the score on the selection data at CHECKS
    points of the training, (E, CHECKS)."""

    model: nn.Module
    seconds: float
    curve: Tensor

    def learned_scalars(self) -> dict[str, Tensor]:
        """The learned scalars of the first attention, (E,) each."""
        return next(part for part in self.model.modules() if isinstance(part, Attention)).learned_scalars()


class AdamW:
    """Adam with decoupled weight decay (arXiv 1711.05101) and a learning rate per member.

    rates: the learning rate of each member. The update of a parameter (E, ...) or of the module of one member is that
    of `torch.optim.AdamW`.
    """

    def __init__(self, model: nn.Module, rates: Sequence[float]):
        self.count = 0
        fast = {id(p) for part in model.modules() if isinstance(part, TrainingHooks) for p in part.fast_parameters()}
        lists: list[Any] = []  # of one module for each member, whose parameters have no axis for members
        for part in model.modules():
            if isinstance(part, Attention):
                lists += [] if part.together else [part.normalizers]
                lists += [] if part.priors is None else [part.priors]
        alone = {id(p): member for parts in lists for member, one in enumerate(parts) for p in one.parameters()}
        self.state = []
        for parameter in model.parameters():
            member = alone.get(id(parameter))
            of = torch.tensor(rates if member is None else [rates[member]])
            shape = (-1, *[1] * (parameter.dim() - 1)) if member is None else ()
            rate = of.reshape(shape) * (FAST if id(parameter) in fast else 1.0)
            matrix = parameter.dim() >= (3 if member is None else 2) and id(parameter) not in fast
            decay = WEIGHT_DECAY if matrix else 0.0
            self.state.append((parameter, rate, decay, torch.zeros_like(parameter), torch.zeros_like(parameter)))

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """One update with the learning rates times `factor`; clears the gradients."""
        self.count += 1
        a, b, eps = 0.9, 0.999, 1e-8
        scale, root = 1 - a**self.count, math.sqrt(1 - b**self.count)
        for parameter, rate, decay, mean, square in self.state:
            if (gradient := parameter.grad) is None:
                continue
            mean.lerp_(gradient, 1 - a)
            square.mul_(b).addcmul_(gradient, gradient, value=1 - b)
            change = mean / (square.sqrt().div_(root).add_(eps)) / scale
            parameter.sub_(rate * factor * (change + decay * parameter if decay else change))
            parameter.grad = None


def train(probe: Probe, arm: Arm, seeds: Sequence[int], rates: Sequence[float], updates: int) -> Trained:
    """Trains one member for each pair of a seed and a rate (`seeds` and `rates` have the same length).

    The batches and the initial values of a member follow from its seed.
    """
    streams = {seed: generator(type(probe).__qualname__, "train", seed) for seed in seeds}
    sizes = torch.Generator().manual_seed(0)
    model = probe.model(arm, seeds)
    optimizer = AdamW(model, rates)
    hooks = [part for part in model.modules() if isinstance(part, TrainingHooks)]
    checks = {round((i + 1) * updates / CHECKS) for i in range(CHECKS)}
    curve: list[Tensor] = [] if updates else [select(probe, model, len(seeds))]
    seconds = 0.0
    for update in range(1, updates + 1):
        begin = time.process_time()
        size = (
            probe.train_sizes[int(torch.randint(len(probe.train_sizes), (), generator=sizes))]
            if probe.train_sizes
            else probe.size
        )
        if probe.train_examples and (update - 1) % (probe.train_examples // probe.examples) == 0:  # from the beginning
            streams = {seed: generator(type(probe).__qualname__, "train", seed) for seed in seeds}
        batches = {seed: probe.batch(probe.examples, size, stream) for seed, stream in streams.items()}
        batch = stack([batches[seed] for seed in seeds])
        probe.loss(model(batch), batch).sum().backward()
        optimizer.step(schedule(update, updates))
        with torch.no_grad():
            for part in hooks:
                part.project_()
        seconds += time.process_time() - begin
        if update in checks:
            curve.append(select(probe, model, len(seeds)))
    return Trained(model, seconds, torch.stack(curve, 1))


def schedule(update: int, updates: int) -> float:
    """The factor of the learning rate at an update, from 1: linear warm-up, then linear decay to 0."""
    return min(update / (WARMUP * updates), (updates - update + 1) / (updates * (1 - WARMUP)), 1.0)


def stack(batches: Sequence[Any]) -> Any:
    """One batch with an axis for the members in front."""
    parts = zip(*batches, strict=True)
    return type(batches[0])(*(None if part[0] is None else torch.stack(part) for part in parts))


def select(probe: Probe, model: nn.Module, members: int) -> Tensor:
    """The mean score of each member on the selection data at the size of the comparison, (E,)."""
    return evaluate(probe, model, members, "selection", probe.size, SELECTION)[0].mean(1)


@torch.no_grad()
def evaluate(probe: Probe, model: nn.Module, members: int, split: str, size: int, count: int) -> tuple[Tensor, Tensor]:
    """The scores (E, count) on examples that are the same for all arms and seeds, and which members are not finite."""
    scores, finite = [], torch.ones(members, dtype=torch.bool)
    model.eval()
    for batch in batches(probe, split, size, count, members):
        outputs = model(batch)
        finite &= outputs.flatten(1).isfinite().all(1)
        scores.append(probe.score(outputs.nan_to_num(0.0, 0.0, 0.0), batch))
    model.train()
    return torch.cat(scores, 1), ~finite


def batches(probe: Probe, split: str, size: int, count: int, members: int, pieces: int = 0) -> Iterator[Any]:
    """The examples of a split in pieces, each with an axis for the members in front. 0: as many as memory needs."""
    stream = generator(type(probe).__qualname__, split, size)
    batch = probe.batch(count, size, stream)
    piece = -(-count // pieces) if pieces else max(1, PAIRS // (members * size * 32))
    for start in range(0, count, piece):
        part = [None if tensor is None else tensor[start : start + piece] for tensor in batch]
        yield type(batch)(*(None if tensor is None else tensor.expand(members, *tensor.shape) for tensor in part))
