"""The shares of dnas in a converted model: what trains them, what sets them, and what is left of them at the end."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from attnorm.attention.normalizers.hnas import HNAS
from attnorm.attention.normalizers.mix import Mix
from attnorm.attention.registry import name_of
from attnorm.integrations.transformers.convert import convert
from attnorm.integrations.transformers.register import CONVERTED
from attnorm.integrations.transformers.sites import attention_modules

if TYPE_CHECKING:
    from transformers import TrainerCallback

Model = TypeVar("Model", bound=nn.Module)


def hybrids(model: nn.Module) -> dict[str, HNAS | Mix]:
    """The normalizers of a model with a share beside softmax, by the path of their module. Those of which the library
    `peft` trains a copy are left out, and so are those inside a mix."""
    named = [(path, part) for path, part in model.named_modules() if "original_module" not in path]
    return {path: part for path, part in named if has_share(part) and "members" not in path}


def has_share(part: nn.Module) -> TypeGuard[HNAS | Mix]:
    """Whether a normalizer mixes softmax and another one."""
    of_two = isinstance(part, Mix) and len(part.each) == 2 and next(iter(part.members)) == "softmax"
    return isinstance(part, HNAS) or of_two


def share_of(part: HNAS | Mix) -> Tensor:
    """The share of the other normalizer, (1,) or (heads,)."""
    return part.hybrid_weight() if isinstance(part, HNAS) else part.mixture()[:, 1]


def freeze_except(model: nn.Module, *names: str) -> list[str]:
    """Lets only those parameters train that have one of these names in their path. Returns their paths.

    names: such as "classifier"; by default "attnorm", the normalizers, so that the shares alone are trained.

    Raises ValueError if no parameter has one of the names, and for a model that `peft` has wrapped. Then nothing is
    changed.
    """
    refuse_wrapped(model, "LoraConfig(..., modules_to_save=['attnorm']), which freezes the other parameters")
    wanted = {*(names or (CONVERTED,))}
    trained = [path for path, _ in model.named_parameters() if wanted & {*path.split(".")}]
    if not trained:
        raise ValueError(f"names={sorted(wanted)}: no parameter of {type(model).__name__} has one of them in its path")
    for path, parameter in model.named_parameters():
        parameter.requires_grad_(path in trained)
    return trained


def refuse_wrapped(model: nn.Module, instead: str) -> None:
    """Raises ValueError for a model of the library `peft`, which has frozen and copied parameters itself."""
    if type(model).__module__.partition(".")[0] == "peft":
        raise ValueError(f"model={type(model).__name__}: peft has wrapped it; use {instead}")


@torch.no_grad()
def set_share(model: nn.Module, share: float) -> None:
    """Sets all shares of a model to a number from 0 to 1. They must have form="clamp", or "project" in a mix, and not
    be fixed, as `convert(model, ..., share=0.0)` makes them; otherwise, and if there are none, raises ValueError."""
    if not 0 <= share <= 1:
        raise ValueError(f"share={share!r}: allowed: numbers from 0 to 1")
    parts = hybrids(model)
    if not parts:
        raise ValueError(f"model={type(model).__name__}: no normalizer has a share; see convert(model, ..., share=0.0)")
    for path, part in parts.items():
        if part.form not in ("clamp", "project") or part.is_fixed:
            raise ValueError(f"{path}: needs form='clamp' and no fixed value, as convert(model, ..., share=0.0) gives")
    for part in parts.values():
        part.trained.copy_(torch.tensor([share] if isinstance(part, HNAS) else [1 - share, share]))


def harden(model: Model) -> Model:
    """Turns hybrid normalizers whose shares are all 1 into dnas, and all 0 into softmax, in place. Returns the model.

    At an autoregressive site, it is `dnas_prefix`, and in a mix, the other member. The output stays the same up to
    rounding, and one of the two parts is no longer computed. The other normalizers stay, with their parameters. The
    configuration of the model records the new ones. Raises ValueError for a model that `convert` has not converted, and
    for one that `peft` has wrapped.
    """
    refuse_wrapped(model, "harden(model.merge_and_unload())")
    recorded = getattr(getattr(model, "config", None), CONVERTED, None)
    if recorded is None:
        raise ValueError(f"model={type(model).__name__}: has not been converted, so it has no shares")
    table: dict[str, Any] = {**recorded, "options": {**recorded["options"]}}
    kept: list[tuple[nn.Module, nn.Module]] = []
    for site, modules in attention_modules(model).items():
        if site not in recorded:
            continue
        value = recorded[site]
        names = [*value] if isinstance(value, list) else [value] * len(modules)
        for layer, module in enumerate(modules.values()):
            part: Any = module.attnorm
            share = {*share_of(part).tolist()} if has_share(part) else set()
            if share == {0.0}:
                names[layer] = "softmax"
            elif share == {1.0} and isinstance(part, HNAS):
                names[layer] = name_of(part.dnas)
            elif share == {1.0}:
                member = recorded["options"]["mix"]["members"][1]
                names[layer] = member if isinstance(member, str) else member["name"]
                of_member = {} if isinstance(member, str) else member
                table["options"][names[layer]] = {key: of_member[key] for key in of_member if key != "name"}
                kept.append((module, part.each[1]))  # with its parameters
            else:
                kept.append((module, part))
        table[site] = names
    used = {name for names in table.values() if isinstance(names, list) for name in names}
    table["options"] = {name: options for name, options in table["options"].items() if name in used}
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
            if not hybrids(model):
                raise ValueError(f"share_schedule: no normalizer of {type(model).__name__} has a share")
            if share is not None:
                set_share(model, share(state.global_step))
            for part in hybrids(model).values():
                part.project_()

        def on_log(self, args: Any, state: Any, control: Any, model: Any = None, logs: Any = None, **_: Any) -> None:
            parts = enumerate(hybrids(model).values())
            shares = {f"share.{layer}": share_of(part).mean().item() for layer, part in parts}
            state.log_history[-1].update(shares)
            logs.update(shares)

    return ShareSchedule()
