"""Optimizer and learning-rate schedule: conf/optimizer/*.yaml and conf/scheduler/*.yaml, built for a model."""

import math
from collections.abc import Callable, Mapping
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
from attnorm.errors import ConfigError, Problem
from attnorm.imports import nearest, parameters
from attnorm.parts import Part, Problems, names_of
from attnorm.schema import Count, NonNegative, Positive, Probability, Share, Text, WholeNumber

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

    def of(self, model: nn.Module) -> list[dict]:
        """The parameter groups of a model: "decay", "no_decay" and "hybrid", and of parts with a factor such as
        "decay x 0.1"; those of them that have parameters."""
        hybrids = {id(parameter) for part in with_hooks(model) for parameter in part.fast_parameters()}
        parts, factors = model_parts(model) if self.lr_factors else {}, dict[int, float]()
        for name in sorted(self.lr_factors, key=lambda name: (-len(parts.get(name, ())), name)):
            factors |= dict.fromkeys(map(id, parts.get(name, ())), self.lr_factors[name])
        settings = {
            "decay": {"weight_decay": self.weight_decay},
            "no_decay": {"weight_decay": 0.0},
            "hybrid": {"weight_decay": 0.0, "lr": self.lr * self.hybrid_lr_factor},
        }
        kinds: dict[tuple[float, str], list[nn.Parameter]] = {
            (factor, kind): [] for factor in (1.0, *self.lr_factors.values()) for kind in settings
        }
        for parameter in model.parameters():
            if parameter.requires_grad:
                kind = "hybrid" if id(parameter) in hybrids else "decay" if parameter.ndim > 1 else "no_decay"
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
                    outer = ", ".join(part for part in parts if "." not in part)
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
        if "fused" in parameters(self.optimizer.cls):
            options = {"fused": fused, **options}
        optimizer = self.optimizer.cls(self.groups.of(model), **options)
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
    """The parameters of the parts of a model by name: of its modules, with the names that its curves give to stacks of
    layers, such as "decoder" and "decoder.0.cross", and of the attention layers of each other site, such as "cross"."""
    parts: dict[str, list[nn.Parameter]] = {}
    stacks = getattr(model, "stacks", {})
    for path, module in model.named_modules():
        stack, dot, rest = path.partition(".")
        parts[stacks.get(stack, stack) + dot + rest] = list(module.parameters())
    sites: dict[str, list[nn.Parameter]] = {}
    for layer in attention_layers(model).values():
        sites.setdefault(layer.normalizer.site, []).extend(layer.parameters())
    return {name: params for name, params in (sites | parts).items() if name and params}


def read_optimization(
    optimizer: Mapping[str, Any], scheduler: Mapping[str, Any], problems: Problems, build: bool = True
) -> Optimization | None:
    """Reads the two groups; None, with problems added, if an optimizer and a schedule cannot be built from them.

    build: whether an optimizer is built, to see what its class says of the values; the first one imports the compiler.
    """
    part = problems.part("optimizer", optimizer, facts=("params",), shared=GROUPING)
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
            if (value := getattr(when, name)) not in (None, needed):
                sentence = f"{schedule.cls.__name__} counts all updates of the run; allowed: {needed}"
                problems.append(Problem(f"scheduler.{name}", sentence, value))
    if when.interval is not None and watches_metric(schedule.cls):
        sentence = f"has no effect, since {schedule.cls.__name__} steps after validations"
        problems.append(Problem("scheduler.interval", sentence, when.interval))
    elif when.monitor is not None and not watches_metric(schedule.cls):
        problems.append(Problem("scheduler.monitor", f"{schedule.cls.__name__} watches no metric", when.monitor))
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


def with_hooks(model: nn.Module) -> list[TrainingHooks]:
    """The normalizers and scorers of a model."""
    return [module for module in model.modules() if isinstance(module, TrainingHooks)]
