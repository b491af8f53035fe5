"""Optimizer and schedule: which parameters decay, which learn faster, how the learning rate moves."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from attnorm.attention.hooks import TrainingHooks

OPTIMIZERS = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}
SCHEDULES: dict[str, Callable[[float], float]] = {  # share of the decay that is done -> share of the learning rate
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
}


@dataclass(frozen=True)
class Optim:
    """conf/optim/*.yaml.

    hybrid_lr_factor: the hybrid weights learn at `lr` times this. Adam moves a parameter by about its learning rate a
    step, whatever its gradient, so at the rate of the matrices a mixing weight would hardly leave its start.
    warmup: share of all updates, in [0, 1); floor: the schedule ends at this share of `lr`.
    """

    name: str
    lr: float
    weight_decay: float
    betas: tuple[float, float]
    eps: float
    hybrid_lr_factor: float
    schedule: str
    warmup: float
    floor: float

    def build(self, model: nn.Module, total_steps: int, fused: bool) -> tuple[Optimizer, LambdaLR]:
        """The optimizer of a model and its schedule over `total_steps` updates."""
        optimizer = OPTIMIZERS[self.name](
            self.groups(model), lr=self.lr, betas=tuple(self.betas), eps=self.eps, fused=fused
        )
        parts = with_hooks(model)
        optimizer.register_step_post_hook(lambda *_: project(parts))
        return optimizer, LambdaLR(optimizer, lambda step: self.factor(step, total_steps))

    def groups(self, model: nn.Module) -> list[dict]:
        """Matrices decay; norms, biases and fast parameters (hybrid weights) do not; the latter have their own rate."""
        hybrids = {id(parameter) for part in with_hooks(model) for parameter in part.fast_parameters()}
        kinds: dict[str, list[nn.Parameter]] = {"decay": [], "no_decay": [], "hybrid": []}
        for parameter in model.parameters():
            if parameter.requires_grad:
                kind = "hybrid" if id(parameter) in hybrids else "decay" if parameter.ndim > 1 else "no_decay"
                kinds[kind].append(parameter)
        settings = {
            "decay": {"weight_decay": self.weight_decay},
            "no_decay": {"weight_decay": 0.0},
            "hybrid": {"weight_decay": 0.0, "lr": self.lr * self.hybrid_lr_factor},
        }
        return [{"params": params, "name": kind, **settings[kind]} for kind, params in kinds.items() if params]

    def factor(self, step: int, total_steps: int) -> float:
        """The learning rate of update `step` (from 0) as a share of `lr`: linear warm-up, then the schedule."""
        warmup = round(self.warmup * total_steps)
        if step < warmup:
            return (step + 1) / (warmup + 1)
        done = min(1.0, (step - warmup) / max(1, total_steps - warmup))
        return self.floor + (1.0 - self.floor) * SCHEDULES[self.schedule](done)


@torch.no_grad()
def project(parts: list[TrainingHooks]) -> None:
    """Puts parameters back into their allowed range."""
    for part in parts:
        part.project_()


def with_hooks(model: nn.Module) -> list[TrainingHooks]:
    """The normalizers and scorers of a model."""
    return [module for module in model.modules() if isinstance(module, TrainingHooks)]
