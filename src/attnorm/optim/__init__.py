"""Optimizer and learning-rate schedule: conf/optimizer/*.yaml and conf/scheduler/*.yaml, built for a model."""

import math
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import torch
from pydantic import Field
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from attnorm.attention.hooks import TrainingHooks
from attnorm.attention.multihead import attention_layers
from attnorm.errors import ConfigError, Problem, key_of
from attnorm.imports import nearest, parameters
from attnorm.optim.muon import hidden_matrices
from attnorm.parts import RESERVED, Part, class_of, made, names_of
from attnorm.schema import Count, NonNegative, Positive, Probability, Share, Text, WholeNumber, read_options

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
    warmup: Share | WholeNumber = 0.1,
    min_lr_ratio: Share = 0.0,
    decay_share: Probability = 1.0,
) -> LambdaLR:
    """A linear warm-up, then a stable part at the peak, then a decay to `min_lr_ratio` times the peak.

    warmup:      a share of all updates, or a whole number of updates, which does not depend on the length of the run.
    decay_share: the decay begins after the warm-up, but not before the last part of the run, this share of all updates.
                 With less than 1, the schedule is WSD (MiniCPM, arXiv:2404.06395, Sec. 4), and a run can be extended
                 in its stable part.
    """
    rising = warmup if isinstance(warmup, int) else round(warmup * total_steps)
    start = max(rising, total_steps - round(decay_share * total_steps))

    def factor(step: int) -> float:
        if step < rising:
            return (step + 1) / (rising + 1)
        done = min(1.0, max(0, step - start) / max(1, total_steps - start))
        return min_lr_ratio + (1.0 - min_lr_ratio) * DECAYS[decay](done)

    return LambdaLR(optimizer, factor)


Factors = Annotated[
    Mapping[str, Positive], Field(description="numbers above 0 by the name of a part, as in {encoder: 0.1}")
]
GROUPING = ("hybrid_lr_factor", "freeze", "lr_factors")  # of the group `optimizer`, which its class is not given


@dataclass(frozen=True, kw_only=True)
class ParamGroups:
    """Options of the group `optimizer` that are read here, to set up parameter groups.

    lr, weight_decay: the optimizer gets them as well; matrices decay, norms, biases and hybrid weights do not.
    hybrid_lr_factor: hybrid weights learn at `lr` times this. Adam moves a parameter by about its learning rate per
                      step, whatever its gradient, so at the rate of the matrices a mixing weight would hardly move.
    freeze:           the parts of the model that do not learn, by the names of `model_parts`.
    lr_factors:       parts that learn at this factor times the rate that they would have. If several parts have a
                      parameter, that with the fewest parameters counts.
    """

    lr: Positive
    weight_decay: NonNegative = 0.0
    hybrid_lr_factor: Positive = 1.0
    freeze: tuple[Text, ...] = ()
    lr_factors: Factors = field(default_factory=dict)

    def of(self, model: nn.Module, hidden: Collection[int] = ()) -> list[dict]:
        """The parameter groups of a model: "decay", "no_decay" and "hybrid", and of parts with a factor such as
        "decay x 0.1"; those of them that have parameters.

        hidden: the ids of the parameters that are a group "hidden" of their own, with `use_muon`.
        """
        hybrids = {id(parameter) for part in with_hooks(model) for parameter in part.fast_parameters()}
        parts, factors = model_parts(model) if self.lr_factors else {}, dict[int, float]()
        for name in sorted(self.lr_factors, key=lambda name: (-len(parts.get(name, ())), name)):
            factors |= dict.fromkeys(map(id, parts.get(name, ())), self.lr_factors[name])
        settings: dict[str, dict[str, Any]] = {
            "hidden": {"weight_decay": self.weight_decay, "use_muon": True},
            "decay": {"weight_decay": self.weight_decay},
            "no_decay": {"weight_decay": 0.0},
            "hybrid": {"weight_decay": 0.0, "lr": self.lr * self.hybrid_lr_factor},
        }
        kinds: dict[tuple[float, str], list[nn.Parameter]] = {
            (factor, kind): [] for factor in (1.0, *self.lr_factors.values()) for kind in settings
        }
        for parameter in model.parameters():
            if parameter.requires_grad:
                kind = "hidden" if id(parameter) in hidden else "decay" if parameter.ndim > 1 else "no_decay"
                kind = "hybrid" if id(parameter) in hybrids else kind
                kinds[factors.get(id(parameter), 1.0), kind].append(parameter)
        groups: list[dict[str, Any]] = []
        for (factor, kind), params in kinds.items():
            group = {"params": params, "name": kind, **settings[kind]}
            if factor != 1:
                group |= {"name": f"{kind} x {factor:g}", "lr": settings[kind].get("lr", self.lr) * factor}
            groups += [group] if params else []
        return groups

    def freeze_parts(self, model: nn.Module) -> None:
        """Freezes the parts `freeze` of a model. Raises ConfigError for a part that the model does not have, for a
        factor of a part that is frozen, and if nothing is left to train."""
        if not self.freeze and not self.lr_factors:
            return
        parts, problems = model_parts(model), []
        for key, names in (("freeze", self.freeze), ("lr_factors", self.lr_factors)):
            for name in names:
                if name not in parts:
                    outer = ", ".join(part for part in parts if part.isidentifier())
                    message = f"the model has no such part; allowed: {outer}, and their modules.{nearest(name, parts)}"
                    problems.append(Problem(f"optimizer.{key}", message, name))
                elif key == "freeze":
                    for parameter in parts[name]:
                        parameter.requires_grad_(False)
                elif not any(parameter.requires_grad for parameter in parts[name]):
                    problems.append(Problem(f"optimizer.{key}", "has no effect, since this part is frozen", name))
        if not problems and not any(parameter.requires_grad for parameter in model.parameters()):
            problems.append(Problem("optimizer.freeze", "leaves nothing to train", list(self.freeze)))
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True, kw_only=True)
class SchedulerTiming:
    """Options of the group `scheduler` that its class is not given: when the scheduler steps.

    interval:  after "step" (an update; also None) or "epoch"; one that watches a metric has none but validations.
    frequency: after every how many of them it steps.
    monitor:   the validation metric that it watches; None: the one that selects the best model.
    """

    interval: Literal["step", "epoch"] | None = None
    frequency: Count = 1
    monitor: Text | None = None


@dataclass(frozen=True)
class Optimization:
    """The groups `optimizer` and `scheduler`: their classes, and the options that are read here.

    The scheduler gets `total_steps`, the number of updates of the run, if it has such a parameter.
    """

    optimizer: Part
    groups: ParamGroups
    scheduler: Part
    timing: SchedulerTiming

    def watching(self, monitor: str, directions: Mapping[str, str]) -> "Optimization":
        """The same, with a metric for a scheduler that watches one, which is `monitor` unless another one is set, and
        with the direction of this metric."""
        if not watches_metric(self.scheduler.cls):
            return self
        timing = replace(self.timing, monitor=self.timing.monitor or monitor)
        mode = {"mode": directions[str(timing.monitor)]} if "mode" in parameters(self.scheduler.cls) else {}
        return replace(self, timing=timing, scheduler=Part(self.scheduler.cls, {**mode, **self.scheduler.options}))

    def build(self, model: nn.Module, total_steps: int, fused: bool) -> "OptimizerLRSchedulerConfig":
        """The optimizer of a model and its schedule over `total_steps` updates, as Lightning wants them.

        fused: whether the optimizer may use a fused kernel, if its class has one.
        """
        options = dict(self.optimizer.options)
        if "fused" in parameters(self.optimizer.cls) and not options.get("foreach"):
            options = {"fused": fused, **options}
        hidden = hidden_matrices(model) if getattr(self.optimizer.cls, "separates_hidden", False) else ()
        optimizer = self.optimizer.cls(self.groups.of(model, hidden), **options)
        parts = with_hooks(model)

        @torch.no_grad()
        def project(*_: Any) -> None:
            for part in parts:
                part.project_()

        optimizer.register_step_post_hook(project)
        schedule: Any = {**vars(self.timing), "interval": self.timing.interval or "step", "reduce_on_plateau": False}
        schedule["scheduler"] = self.scheduler.build(optimizer=optimizer, total_steps=total_steps)
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def learning_rates(self, total_steps: int, count: int) -> list[float]:
        """The shares of the peak learning rate that the first `count` of `total_steps` updates are made with."""
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        scheduler, rates = self.scheduler.build(optimizer=optimizer, total_steps=total_steps), []
        for number in range(count):
            if number:
                optimizer.step()
                scheduler.step()
            rates.append(optimizer.param_groups[0]["lr"])
        return rates

    @property
    def depends_on_length(self) -> bool:
        """Whether learning rates depend on how many updates a run has."""
        return "total_steps" in parameters(self.scheduler.cls)


def watches_metric(scheduler: Callable) -> bool:
    """Whether a scheduler, or what a function is annotated to return, steps by the value of a metric."""
    cls: Any = scheduler if isinstance(scheduler, type) else None
    with suppress(NameError, TypeError):  # an annotation that is only valid for a type checker
        cls = cls or get_type_hints(scheduler).get("return")
    step = [*parameters(cls.step).values()] if hasattr(cls, "step") else []
    return bool(step) and step[0].default is step[0].empty


def model_parts(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """The parameters of the parts of a model by name: of its modules, also with the names that its curves give them,
    such as "decoder" and "decoder/0/cross", and of the attention layers of each other site, such as "cross"."""
    parts, sites = dict[str, list[nn.Parameter]](), dict[str, list[nn.Parameter]]()
    stacks = getattr(model, "stacks", {})
    for path, module in model.named_modules():
        stack, dot, rest = path.partition(".")
        name = stacks.get(stack, stack) + dot + rest
        curve = name.replace(".layers.", ".")
        parts |= {key: list(module.parameters()) for key in (name, curve, curve.replace(".", "/"))}
    for layer in attention_layers(model).values():
        sites.setdefault(layer.normalizer.site, []).extend(layer.parameters())
    return {name: params for name, params in (sites | parts).items() if name and params}


def read_optimization(groups: Mapping[str, Any]) -> Optimization:
    """Reads the groups `optimizer` and `scheduler`. Raises ConfigError with the problems of both."""
    problems, read = list[str](), dict[str, Any]()
    for group, cls, facts in (
        ("optimizer", ParamGroups, ("params",)),
        ("scheduler", SchedulerTiming, ("optimizer", "total_steps")),
    ):
        settings = groups[group]
        try:
            made_by = class_of(group, settings)
            elsewhere = {*RESERVED, *names_of(cls)} - parameters(made_by).keys()
            read[group] = Part(made_by, read_options(group, made_by, settings, facts, elsewhere=elsewhere))
        except ConfigError as error:
            problems += error.problems
        try:
            read[cls.__name__] = made(group, cls, settings, elsewhere=None)
        except ConfigError as error:
            problems += error.problems
    if not problems:
        optimization = Optimization(*read.values())
        for name, needed in (("interval", "step"), ("frequency", 1)) if optimization.depends_on_length else ():
            if (value := getattr(optimization.timing, name)) not in (None, needed):
                sentence = f"{optimization.scheduler.cls.__name__} counts all updates of the run; allowed: {needed}"
                problems.append(Problem(f"scheduler.{name}", sentence, value))
        cls, timing = optimization.scheduler.cls, optimization.timing
        if timing.interval is not None and watches_metric(cls):
            message = f"has no effect, since {cls.__name__} steps after validations"
            problems.append(Problem("scheduler.interval", message, timing.interval))
        elif timing.monitor is not None and not watches_metric(cls):
            problems.append(Problem("scheduler.monitor", f"{cls.__name__} watches no metric", timing.monitor))
    if problems:
        raise ConfigError({key_of(problem): problem for problem in problems}.values())  # lr is read twice
    return optimization


def refusals(optimization: Optimization) -> list[Problem]:
    """What the optimizer's class itself says of the values, tried in an update of a small model."""
    optimizer, model = optimization.optimizer, nn.Linear(1, 1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    try:
        optimizer.cls(optimization.groups.of(model), **optimizer.options).step(lambda: 0.0)
    except Exception as error:  # of many kinds, with the same meaning
        reason = str(error).strip().partition("\n")[0]
        named = [name for name in optimizer.options if re.search(rf"\b{name}s?\b", reason, re.IGNORECASE)]
        if not isinstance(error, ValueError) or not named:
            groups = "the parameter groups of a run (weight decay is for matrices only)"
            return [Problem("optimizer._target_", f"{optimizer.cls.__name__} cannot train {groups}: {reason}")]
        return [Problem(f"optimizer.{name}", reason, optimizer.options[name]) for name in named]
    return []


def with_hooks(model: nn.Module) -> list[TrainingHooks]:
    """The normalizers and scorers of a model."""
    return [module for module in model.modules() if isinstance(module, TrainingHooks)]
