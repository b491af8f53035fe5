"""The shares of dnas in a converted model: what trains them, what sets them, and what is left of them at the end."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from attnorm.attention.names import name_of
from attnorm.attention.normalizers.hnas import HNAS
from attnorm.integrations.transformers.convert import convert
from attnorm.integrations.transformers.register import CONVERTED
from attnorm.integrations.transformers.sites import attention_modules

if TYPE_CHECKING:
    from transformers import TrainerCallback

Model = TypeVar("Model", bound=nn.Module)


def hybrids(model: nn.Module) -> dict[str, HNAS]:
    """The normalizers of a model with a hybrid weight, by the path of their module. Those of which the library `peft`
    trains a copy are left out."""
    named = model.named_modules()
    return {path: part for path, part in named if isinstance(part, HNAS) and "original_module" not in path}


def freeze_except(model: nn.Module, *names: str) -> list[str]:
    """Lets only those parameters train that have one of these names in their path. Returns their paths.

    names: such as "classifier"; by default "attnorm", the normalizers, so that the shares alone are trained.

    Raises ValueError if no parameter has one of the names. Then nothing is changed.
    """
    wanted = {*(names or (CONVERTED,))}
    trained = [path for path, _ in model.named_parameters() if wanted & {*path.split(".")}]
    if not trained:
        raise ValueError(f"names={sorted(wanted)}: no parameter of {type(model).__name__} has one of them in its path")
    for path, parameter in model.named_parameters():
        parameter.requires_grad_(path in trained)
    return trained


@torch.no_grad()
def set_share(model: nn.Module, share: float) -> None:
    """Sets all hybrid weights of a model to a number from 0 to 1. They must have form="clamp" and not be fixed, as
    `convert(model, ..., share=0.0)` makes them; otherwise raises ValueError."""
    if not 0 <= share <= 1:
        raise ValueError(f"share={share!r}: allowed: numbers from 0 to 1")
    for path, part in hybrids(model).items():
        if part.form != "clamp" or part.is_fixed:
            raise ValueError(f"{path}: needs form='clamp' and no fixed value, as convert(model, ..., share=0.0) gives")
    for part in hybrids(model).values():
        part.hybrid.fill_(share)


def harden(model: Model) -> Model:
    """Turns hybrid normalizers whose shares are all 1 into dnas, and all 0 into softmax, in place. Returns the model.

    At an autoregressive site, it is `dnas_prefix`. The output stays the same up to rounding, and one of the two parts
    is no longer computed. The other normalizers stay, with their parameters. The configuration of the model records
    the new ones. Raises ValueError for a model that `convert` has not converted.
    """
    recorded = getattr(getattr(model, "config", None), CONVERTED, None)
    if recorded is None:
        raise ValueError(f"model={type(model).__name__}: has not been converted, so it has no shares")
    table: dict[str, Any] = {"options": recorded["options"]}
    kept: list[tuple[nn.Module, nn.Module]] = []
    for site, modules in attention_modules(model).items():
        if site not in recorded:
            continue
        value = recorded[site]
        names = [*value] if isinstance(value, list) else [value] * len(modules)
        for layer, module in enumerate(modules.values()):
            part: Any = module.attnorm
            share = {*part.hybrid_weight().tolist()} if isinstance(part, HNAS) else set()
            if share == {0.0} or share == {1.0}:
                names[layer] = "softmax" if share == {0.0} else name_of(part.dnas)
            else:
                kept.append((module, part))
        table[site] = names
    used = {name for names in table.values() if isinstance(names, list) for name in names}
    table["options"] = {name: options for name, options in recorded["options"].items() if name in used}
    convert(model, table)
    for module, part in kept:
        module.attnorm = part
    return model


def share_schedule(share: Callable[[int], float] | None = None) -> "TrainerCallback":
    """A callback for the `Trainer` of transformers, which sets or clamps the shares after each update and logs them.

    share: the share after so many updates, a function from the step to a number from 0 to 1, such as
           `lambda step: min(1.0, step / 1000)`. None: the shares are trained, and are only clamped to [0, 1].

    The shares of the layers are in each entry of `trainer.state.log_history`, as "share.0", "share.1" and so on: for
    each layer the mean over its heads.
    """
    from transformers import TrainerCallback

    class ShareSchedule(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            self.on_step_end(args, state, control, model)

        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            if share is not None:
                set_share(model, share(state.global_step))
            for part in hybrids(model).values():
                part.project_()

        def on_log(self, args: Any, state: Any, control: Any, model: Any = None, logs: Any = None, **_: Any) -> None:
            parts = enumerate(hybrids(model).values())
            shares = {f"share.{layer}": part.hybrid_weight().mean().item() for layer, part in parts}
            state.log_history[-1].update(shares)
            logs.update(shares)

    return ShareSchedule()
