"""Registers the normalizers as attention functions of `transformers`, each together with its mask function."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from torch import Tensor, nn

from attnorm.attention import Normalizer, build_normalizer
from attnorm.attention.call_context import in_layer
from attnorm.attention.normalizers.softmax import Softmax
from attnorm.attention.registry import NORMALIZERS
from attnorm.imports import find, nearest
from attnorm.integrations.transformers.attention import layer_attention, model_mask
from attnorm.integrations.transformers.sites import attention_modules, needs_float_masks, own_softmax_modules
from attnorm.wording import counted

IMPLEMENTATION = "implementation"  # in the record of a conversion: another one that the model uses instead
CONVERTED = "attnorm"  # the `attn_implementation` of models that `convert` has changed
WITH_FLOAT_MASKS = f"{CONVERTED}_float_masks"  # the same if some layers compute softmax and add the mask to the scores
NAMED = f"{CONVERTED}:"  # followed by the name of a normalizer
Attention = Callable[..., tuple[Tensor, Tensor | None]]


def register() -> None:
    """Makes `attn_implementation="attnorm:<name>"` work for each normalizer without learned parameters.

    Call it before models are loaded; calling it again changes nothing. For each name, an attention function and a mask
    function are registered. From then on, a model whose class computes its own softmax raises ValueError for these
    names, and so does an unknown name. A normalizer that a model cannot use raises ValueError in its first forward
    pass.
    """
    from transformers import AttentionInterface, AttentionMaskInterface, masking_utils

    if CONVERTED in AttentionInterface._global_mapping:
        return
    functions = {f"{NAMED}{name}": function_of(name) for name in NORMALIZERS}
    converted = dict.fromkeys((CONVERTED, WITH_FLOAT_MASKS), attend_converted)
    for implementation, function in {**converted, **functions}.items():
        AttentionInterface.register(implementation, function)
        masks = masking_utils.eager_mask if implementation == WITH_FLOAT_MASKS else model_mask
        AttentionMaskInterface.register(implementation, masks)
    check_requests()


def function_of(name: str) -> Attention:
    """The attention function for a name. Calling it raises ValueError if the normalizer has learned parameters or
    needs hidden states, which a name cannot provide."""
    problem = refusal(find("normalizer", name, NORMALIZERS))
    try:
        normalizer = in_layer(build_normalizer(name))
    except ValueError:  # it needs the sizes of a model
        normalizer = None
    if problem is None and (normalizer is None or any(True for _ in normalizer.parameters())):
        problem = f"it has learned parameters, which have to be part of the model; use convert(model, {name!r})"

    def attention(module: nn.Module, query: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        if problem is not None or normalizer is None:
            raise ValueError(f"attn_implementation={NAMED}{name}: {problem}")
        if any(True for _ in normalizer.buffers()):
            normalizer.to(query.device)
        if normalizer.training != module.training:
            normalizer.train(module.training)
        return layer_attention(normalizer, module, query, *args, **kwargs)

    return attention


def refusal(normalizer: Normalizer | type[Normalizer]) -> str | None:
    """Why no model of `transformers` can use a normalizer, as a clause; None if some can."""
    if normalizer.needs_states == "none":
        return None
    return f"it needs the hidden states of the {normalizer.needs_states}, which attention functions are not given"


def attend_converted(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """The attention function of converted models. It uses the normalizer of the module, or softmax if it has none."""
    return layer_attention(getattr(module, "attnorm", SOFTMAX), module, *args, **kwargs)


SOFTMAX = Softmax()


def check_requests() -> None:
    """Makes models refuse names that start with "attnorm" and that they cannot use.

    Otherwise, a class that computes its own softmax would accept the name and ignore it.
    """
    from transformers import PreTrainedModel

    base: Any = PreTrainedModel
    accept, change, finish = base.get_correct_attn_implementation, base.set_attn_implementation, base.post_init

    @wraps(accept)
    def checked(self: Any, requested_attention: str | None, is_init_check: bool = False) -> str:
        if requested_attention is not None and requested_attention.startswith(CONVERTED):
            refuse_request(type(self), requested_attention)
            if not is_init_check:
                refuse_own_softmax(self, requested_attention)
        return accept(self, requested_attention, is_init_check)

    @wraps(change)
    def changed(self: Any, attn_implementation: str | dict, *args: Any, **options: Any) -> None:
        wanted = attn_implementation if isinstance(attn_implementation, dict) else {"": attn_implementation}
        for key, name in wanted.items():
            if isinstance(name, str) and name.startswith(CONVERTED):  # the library only warns
                config = getattr(self.config, key) if key else self.config
                for part in self.modules():
                    if isinstance(part, PreTrainedModel) and part.config is config:
                        refuse_request(type(part), name)
        if attn_implementation == CONVERTED and needs_float_masks(self):
            attn_implementation = WITH_FLOAT_MASKS
        change(self, attn_implementation, *args, **options)
        for part in self.modules():
            recorded = getattr(part.config, CONVERTED, None) if isinstance(part, PreTrainedModel) else None
            if recorded is not None and any(hasattr(module, CONVERTED) for module in part.modules()):
                recorded.pop(IMPLEMENTATION, None)
                if part.config._attn_implementation not in (CONVERTED, WITH_FLOAT_MASKS):
                    recorded[IMPLEMENTATION] = part.config._attn_implementation

    @wraps(finish)
    def finished(self: Any) -> None:
        refuse_own_softmax(self, self.config._attn_implementation)
        finish(self)

    base.get_correct_attn_implementation, base.set_attn_implementation, base.post_init = checked, changed, finished


def refuse_own_softmax(model: Any, implementation: str | None) -> None:
    """Raises ValueError if only some layers of a model would use the normalizer of this name."""
    if implementation is None or not implementation.startswith(NAMED):
        return
    from transformers import PreTrainedModel

    attention_modules(model)  # notes which of them are of a decoder, although their flag says otherwise
    others = [  # models with an implementation of their own, which are asked themselves
        f"{name}."
        for name, part in model.named_modules()
        if isinstance(part, PreTrainedModel) and part.config is not model.config
        if type(part)._can_set_attn_implementation()
    ]
    for modules in own_softmax_modules(model).values():
        if of_model := {name: module for name, module in modules.items() if not name.startswith(tuple(others))}:
            raise ValueError(f"attn_implementation={implementation}: {own_softmax_message(of_model)}")


def own_softmax_message(modules: Mapping[str, nn.Module]) -> str:
    """Why the normalizers of these modules cannot be replaced, as a clause."""
    first, *more = modules
    classes = " and ".join(sorted({type(module).__name__ for module in modules.values()}))
    others = f" and {counted(len(more), 'other module')}" if more else ""
    return (
        f"{classes} computes softmax itself instead of calling an attention function, so the normalizer of {first}"
        f"{others} cannot be replaced"
    )


def refuse_request(cls: Any, implementation: str) -> None:
    """Raises ValueError if models of a class cannot use this implementation, or if there is none of this name."""
    name = implementation.removeprefix(NAMED)
    if implementation not in (CONVERTED, WITH_FLOAT_MASKS) and name not in NORMALIZERS:
        allowed = ", ".join(f"{NAMED}{other}" for other in NORMALIZERS)
        advice = "; for a normalizer of your own, use convert(model, <class>)" if "." in name or ":" in name else ""
        message = f"allowed: {allowed}{advice}.{nearest(name, NORMALIZERS)}"
        raise ValueError(f"attn_implementation={implementation}: {message}")
    if not cls._can_set_attn_implementation():
        raise ValueError(
            f"attn_implementation={implementation}: {cls.__name__} computes softmax itself, if it has attention, "
            "instead of calling an attention function, so its normalizer cannot be replaced"
        )
