"""Optimizer and learning-rate schedule: conf/optimizer/*.yaml and conf/scheduler/*.yaml, built for a model."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from attnorm.attention.hooks import TrainingHooks
from attnorm.errors import Problem
from attnorm.imports import parameters
from attnorm.parts import Part, Problems, names_of
from attnorm.schema import Count, NonNegative, Positive, Share

if TYPE_CHECKING:
    from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig

DECAYS: dict[str, Callable[[float], float]] = {  # share of the decay that is done -> share of the learning rate
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
}


def warmup_decay(
    optimizer: Optimizer,
    *,
    total_steps: int,
    decay: Literal["constant", "linear", "cosine"] = "linear",
    warmup: Share = 0.1,
    min_lr_ratio: Share = 0.0,
) -> LambdaLR:
    """A linear warm-up over the share `warmup` of all updates, then a decay to `min_lr_ratio` times the peak."""
    rising = round(warmup * total_steps)

    def factor(step: int) -> float:
        if step < rising:
            return (step + 1) / (rising + 1)
        done = min(1.0, (step - rising) / max(1, total_steps - rising))
        return min_lr_ratio + (1.0 - min_lr_ratio) * DECAYS[decay](done)

    return LambdaLR(optimizer, factor)


@dataclass(frozen=True, kw_only=True)
class ParamGroups:
    """Options of the group `optimizer` that are read here, to set up parameter groups.

    lr, weight_decay: the optimizer gets them as well; matrices decay, norms, biases and hybrid weights do not.
    hybrid_lr_factor: hybrid weights learn at `lr` times this. Adam moves a parameter by about its learning rate per
                      step, whatever its gradient, so at the rate of the matrices a mixing weight would hardly move.
    """

    lr: Positive
    weight_decay: NonNegative = 0.0
    hybrid_lr_factor: Positive = 1.0

    def of(self, model: nn.Module) -> list[dict]:
        """The parameter groups of a model: "decay", "no_decay" and "hybrid", those of them that have parameters."""
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


@dataclass(frozen=True, kw_only=True)
class SchedulerTiming:
    """Options of the group `scheduler` that Lightning reads: when the scheduler steps, and which metric it watches."""

    interval: Literal["step", "epoch"] = "step"
    frequency: Count = 1
    monitor: str | None = None


@dataclass(frozen=True)
class Optimization:
    """The groups `optimizer` and `scheduler`: their classes, and the options that are read here.

    The scheduler gets `total_steps`, the number of updates of the run, if it has such a parameter.
    """

    optimizer: Part
    groups: ParamGroups
    scheduler: Part
    timing: SchedulerTiming

    def build(self, model: nn.Module, total_steps: int, fused: bool) -> "OptimizerLRSchedulerConfig":
        """The optimizer of a model and its schedule over `total_steps` updates, as Lightning wants them.

        fused: whether the optimizer may use a fused kernel, if its class has one.
        """
        options = dict(self.optimizer.options)
        if "fused" in parameters(self.optimizer.cls):
            options = {"fused": fused, **options}
        optimizer = self.optimizer.cls(self.groups.of(model), **options)
        parts = with_hooks(model)
        optimizer.register_step_post_hook(lambda *_: project(parts))
        when = {name: value for name, value in vars(self.timing).items() if value is not None}
        scheduler = self.scheduler.build(optimizer=optimizer, total_steps=total_steps)
        schedule: Any = {"scheduler": scheduler, "strict": False, **when}
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def learning_rates(self, total_steps: int, count: int) -> list[float]:
        """The shares of the peak learning rate that the first `count` of `total_steps` updates are made with."""
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        scheduler, rates = self.scheduler.build(optimizer=optimizer, total_steps=total_steps), []
        for _ in range(count):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        return rates

    @property
    def depends_on_length(self) -> bool:
        """Whether learning rates depend on how many updates a run has."""
        return "total_steps" in parameters(self.scheduler.cls)


def read_optimization(
    optimizer: Mapping[str, Any], scheduler: Mapping[str, Any], problems: Problems, build: bool = True
) -> Optimization | None:
    """Reads the two groups; None, with problems added, if an optimizer and a schedule cannot be built from them.

    build: whether an optimizer is built, to see what its class says of the values; the first one imports the compiler.
    """
    part = problems.part("optimizer", optimizer, facts=("params",), shared=("hybrid_lr_factor",))
    groups = problems.typed("optimizer", ParamGroups, optimizer, elsewhere=None)
    if part is not None and problems.is_valid("optimizer"):
        options = dict(part.options)
        for name, value in options.items():
            if isinstance(value, (list, tuple)):  # optimizers refuse [0, 0.5], in which one number is an int
                options[name] = tuple([float(item) if isinstance(item, int) else item for item in value])
        part = Part(part.cls, options)
        problems += refusals(part, groups) if build else []
    when = problems.typed("scheduler", SchedulerTiming, scheduler, elsewhere=None)
    facts = ("optimizer", "total_steps")
    schedule = problems.part("scheduler", scheduler, facts=facts, shared=names_of(SchedulerTiming))
    if part is None or schedule is None or not problems.is_valid("optimizer", "scheduler"):
        return None
    optimization = Optimization(part, groups, schedule, when)
    if optimization.depends_on_length:
        for name, needed in (("interval", "step"), ("frequency", 1)):
            if (value := getattr(when, name)) != needed:
                sentence = f"{schedule.cls.__name__} counts all updates of the run; allowed: {needed}"
                problems.append(Problem(f"scheduler.{name}", sentence, value))
    return optimization


def refusals(optimizer: Part, groups: ParamGroups) -> list[Problem]:
    """What the optimizer's class itself says of the values, tried on the parameter groups of a small model."""
    try:
        optimizer.cls(groups.of(nn.Linear(1, 1)), **optimizer.options)
        return []
    except Exception as error:  # of many kinds, with the same meaning
        reason_of_groups = str(error).strip().partition("\n")[0]

    def refusal(**options: Any) -> str | None:
        """What it says of these values, tried on a single parameter."""
        try:
            optimizer.cls([nn.Parameter(torch.zeros(1, 1))], lr=optimizer.options["lr"], **options)
        except ValueError as error:  # the optimizer's own check
            return str(error).strip().splitlines()[0]
        except Exception:  # it has no check for such a value
            defaults = [f"its default is {parameters(optimizer.cls)[name].default}" for name in options]
            return "; ".join([f"{optimizer.cls.__name__} does not accept this value", *defaults])
        return None

    others = {name: value for name, value in optimizer.options.items() if name != "lr"}
    if (reason := refusal(**others)) is None:
        groups_of_run = "the parameter groups of a run (weight decay is for matrices only)"
        message = f"{optimizer.cls.__name__} cannot train {groups_of_run}: {reason_of_groups}"
        return [Problem("optimizer._target_", message)]
    if refusal() is not None:
        return [Problem("optimizer.lr", reason, optimizer.options["lr"])]
    alone = [(name, value, refusal(**{name: value})) for name, value in others.items()]
    return [Problem(f"optimizer.{name}", why, value) for name, value, why in alone if why is not None] or [
        Problem("optimizer", reason)
    ]


@torch.no_grad()
def project(parts: list[TrainingHooks]) -> None:
    """Puts parameters back into their allowed range."""
    for part in parts:
        part.project_()


def with_hooks(model: nn.Module) -> list[TrainingHooks]:
    """The normalizers and scorers of a model."""
    return [module for module in model.modules() if isinstance(module, TrainingHooks)]
