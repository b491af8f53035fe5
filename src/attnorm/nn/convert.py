"""Replaces the attention of a model that was built with PyTorch's modules."""

import copy
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from attnorm.attention.registry import name_of
from attnorm.nn.choice import Choice
from attnorm.nn.masks import SOURCE
from attnorm.nn.multihead import MultiheadAttention

Model = TypeVar("Model", bound=nn.Module)
PADDING = "src_key_padding_mask"
ENCODERS = {  # the names of their arguments
    nn.TransformerEncoder: ("src", "mask", PADDING, "is_causal"),
    nn.TransformerEncoderLayer: ("src", "src_mask", PADDING, "is_causal"),
}


def convert(model: Model, normalizer: Choice, *, ordered: bool = True) -> Model:
    """Replaces each `torch.nn.MultiheadAttention` inside a model, in place, and returns the model.

    The new modules share the parameters and the hooks of the old ones, so that an optimizer of them remains valid. It
    does not know the parameters of the normalizers yet. Modules that `convert` has made get another normalizer; those
    of other subclasses are left as they are. The encoders of PyTorch inside the model no longer use nested tensors, and
    each `torch.nn.TransformerDecoderLayer` tells its cross-attention which queries its `tgt_key_padding_mask` pads.

    normalizer: as in `MultiheadAttention`. Each module gets a copy of an instance. "hnas" starts halfway between
                softmax and dnas, which changes the output of a trained model at once. To start such a model as softmax,
                pass {"name": "hnas", "form": "clamp", "start": 0}.
    ordered:    as in `MultiheadAttention`.

    To convert a part of a model, pass this part: `convert(transformer.encoder, "dnas")`. With the library `peft`, which
    freezes what it does not know, train and save the parameters of the normalizers by
    `LoraConfig(..., modules_to_save=["normalizer"])`.

    Raises ValueError before anything is replaced: if there is nothing to replace, for an unknown normalizer, for
    arguments that `MultiheadAttention` refuses, and for a normalizer that couples all queries inside a
    `torch.nn.TransformerDecoderLayer`, where it would leak the future, also in the cross-attention.
    """
    made: dict[nn.Module, MultiheadAttention] = {}
    places = []
    for path, parent in model.named_modules():
        for name, old in parent._modules.items():  # also a module that is there twice
            if type(old) not in (nn.MultiheadAttention, MultiheadAttention):
                continue
            where = f"{path}.{name}".lstrip(".")
            try:
                new = made[old] = made.get(old) or converted(old, normalizer, ordered)
                if isinstance(parent, nn.TransformerDecoderLayer) and new.normalizer.couples_queries == "all":
                    raise ValueError(new.normalizer.leak_message(name_of(new.normalizer)))
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from error
            new.in_decoder_layer = isinstance(parent, nn.TransformerDecoderLayer)
            places.append((parent, name, new))
    if not places:
        message = f"{type(model).__name__} contains no torch.nn.MultiheadAttention that could be replaced"
        if any(hasattr(module, "set_processor") for module in model.modules()):  # of diffusers
            message += (
                "; its layers take processors: write one as a torch.nn.Module with the normalizer as a submodule, and "
                "call layer.set_processor(processor) for each layer. In any other object, it is in no state dict"
            )
        raise ValueError(message)
    for parent, name, new in places:
        setattr(parent, name, new)
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
        if type(module) in ENCODERS and with_source not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(with_source, with_kwargs=True)
        if isinstance(module, nn.TransformerDecoderLayer) and hand_over not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(hand_over, with_kwargs=True)
            module.register_forward_hook(_forget, always_call=True)
    return model


def with_source(encoder: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Makes the float mask of padding that an encoder of PyTorch would make of a bool one. Attention takes the bool
    mask from it, and need not look at values, for which it would wait for the device."""
    arguments = {**kwargs, **dict(zip(ENCODERS[type(encoder)], args, strict=False))}
    padding = arguments.get(PADDING)
    # beside another mask, PyTorch expects the dtype of that one
    alone = arguments.get("mask") is arguments.get("src_mask") is None
    if padding is not None and padding.dtype == torch.bool and alone and not torch.compiler.is_compiling():
        mask = torch.zeros_like(padding, dtype=arguments["src"].dtype).masked_fill_(padding, -torch.inf)
        setattr(mask, SOURCE, padding)
        return (), {**arguments, PADDING: mask}
    return args, kwargs


def hand_over(layer: Any, args: tuple, kwargs: Mapping[str, Any]) -> None:
    """Tells the cross-attention of a decoder layer which of its queries are padding."""
    layer.multihead_attn.padded_queries = args[4] if len(args) > 4 else kwargs.get("tgt_key_padding_mask")


def _forget(layer: Any, *_: Any) -> None:
    layer.multihead_attn.padded_queries = None


def converted(old: nn.MultiheadAttention, normalizer: Choice, ordered: bool) -> MultiheadAttention:
    """A module with the arguments, the parameters and the mode of another one."""
    new = MultiheadAttention(
        old.embed_dim,
        old.num_heads,
        old.dropout,
        old.in_proj_bias is not None,
        old.bias_k is not None,
        old.add_zero_attn,
        old.kdim,
        old.vdim,
        old.batch_first,
        old.out_proj.weight.device,
        old.out_proj.weight.dtype,
        normalizer=copy.deepcopy(normalizer),
        ordered=ordered,
    )
    for name, parameter in old.named_parameters(recurse=False):
        setattr(new, name, parameter)
    new.out_proj = old.out_proj
    for name, hooks in vars(old).items():
        if "_hook" in name:  # the same objects, so that the handles of the hooks still remove them
            setattr(new, name, hooks)
    loading: Iterable[Any] = new._load_state_dict_pre_hooks.values()
    for hook in loading:
        if getattr(hook, "with_module", False):  # PyTorch's wrapper of a hook refers to the module that has it
            hook.module = weakref.ref(new)
    return new.train(old.training)
