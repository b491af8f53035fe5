"""An optimizer and a scheduler."""

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class SignDescent(Optimizer):
    def __init__(self, params, lr: float, momentum: float = 0.5):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in (each for each in group["params"] if each.grad is not None):
                average = self.state[parameter].setdefault("average", torch.zeros_like(parameter))
                average.lerp_(parameter.grad, 1 - group["momentum"])
                parameter.sub_(average.sign(), alpha=group["lr"])
        return loss


class Halving(LRScheduler):
    def __init__(self, optimizer: Optimizer, every: int):
        self.every = every
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        return [rate * 0.5 ** (self.last_epoch // self.every) for rate in self.base_lrs]
