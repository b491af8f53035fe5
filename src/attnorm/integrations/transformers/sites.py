"""The attention modules of a model, and which site each of them is: "encoder", "decoder" or "cross"."""

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType
from typing import Any

from torch import nn

from attnorm.attention import Normalizer

SITES = ("encoder", "decoder", "cross")
CROSS = re.compile(r"cross|enc(oder)?_?dec(oder)?_?att|encoder_attn", re.I)  # names of modules and their classes
MERGED = re.compile(r"merged", re.I)  # self- and cross-attention of a decoder in one, without the flag is_causal
HEADS = ("num_heads", "num_attention_heads", "n_heads")
WIDTH = ("head_dim", "attention_head_size", "key_value_proj_dim")
CACHES = ("cache", "past_key_values")  # the argument; up to transformers 5.23, the second one


def attention_modules(model: nn.Module) -> dict[str, dict[str, nn.Module]]:
    """The modules of a model that call an attention function of `transformers`, by site and by name, in order."""
    return by_site(model, calls_attention_function)


def own_softmax_modules(model: nn.Module) -> dict[str, dict[str, nn.Module]]:
    """The attention modules of a model that compute softmax themselves, so that no normalizer replaces it."""
    return by_site(model, computes_softmax)


def needs_float_masks(model: nn.Module) -> bool:
    """Whether some modules may add the mask to the scores, also in a larger model that it is a part of."""
    of_file = vars(sys.modules[type(model).__module__]).values()
    return bool(own_softmax_modules(model)) or any(
        isinstance(value, type) and computes_softmax(value) for value in of_file
    )


def by_site(model: nn.Module, belongs: Callable[[Any], bool]) -> dict[str, dict[str, nn.Module]]:
    """The modules whose class belongs, by site and by name, in order."""
    from transformers import PreTrainedModel

    modules: dict[str, dict[str, nn.Module]] = {}
    models: dict[str, Any] = {}  # by their name and a dot
    for name, module in model.named_modules():
        if isinstance(module, PreTrainedModel):
            models[f"{name}." if name else ""] = module
        elif not isinstance(module, Normalizer) and belongs(type(module)):
            inner = max((path for path in models if name.startswith(path)), key=len, default="")
            cls: Any = type(module)
            is_encoder = site_of(module, name) == "encoder"
            if is_encoder and inner in models and makes_its_mask_causal(models[inner], cls):
                module.attnorm_site = "decoder"  # the flag is_causal may say only that the model makes the mask
            modules.setdefault(site_of(module, name), {})[name] = module
    return {site: modules[site] for site in SITES if site in modules}


def site_of(module: nn.Module, name: str = "") -> str:
    """The site of an attention module. name: its name in the model; without it, some are not known to be "cross"."""
    if (site := getattr(module, "attnorm_site", None)) is not None:  # set by `convert`, which knew the name
        return site
    if getattr(module, "is_cross_attention", False) or CROSS.search(f"{name} {type(module).__name__}"):
        return "cross"
    cls: Any = type(module)
    flag = getattr(module, "is_causal", None)
    is_causal = takes_cache(cls) if flag is None else flag or getattr(module, "is_decoder", False)  # not set in all
    return "decoder" if is_causal or is_merged(module) else "encoder"


def says_causal(module: nn.Module) -> bool:
    """Whether a module says that its future is hidden. If it does not say, its site does."""
    flag = getattr(module, "is_causal", None)
    return site_of(module) == "decoder" if flag is None else bool(flag)


@cache
def takes_cache(cls: Any) -> bool:
    """Whether the modules of a class continue from a cache, which only those of a decoder do.

    The images of Llama 4 take one and ignore it.
    """
    parameters = inspect.signature(cls.forward).parameters
    return any(name in parameters for name in CACHES) and "update" in names_in_code(cls)


def makes_its_mask_causal(model: Any, attention: Any) -> bool:
    """Whether a model gives causal masks to its modules of a class. A model of several parts gives them to those that
    take a cache, and not to images."""
    has_parts = bool(getattr(type(model.config), "sub_configs", {}))
    cls: Any = type(model)
    return is_causal_only(cls) and (not has_parts or takes_cache(attention))


@cache
def is_causal_only(cls: Any) -> bool:
    """Whether the models of a class make causal masks, and neither other ones nor additions to these."""
    names = names_in_code(cls)
    makes = any(name.startswith("create_") and "causal_mask" in name for name in names)
    adds = any("or_mask_function" in (*code.co_consts, *code.co_names) for code in codes_of(cls))
    return makes and not adds and not any(name.startswith("create_bidirectional") for name in names)


def is_merged(module: nn.Module) -> bool:
    """Whether the keys are those of the text that is being written, followed by those of the other text."""
    return MERGED.search(type(module).__name__) is not None


def may_be_of_decoder(module: nn.Module) -> bool:
    """Whether the queries of a module may be a text that is being written, in which none may depend on later ones.

    In doubt, it is.
    """
    config = getattr(module, "config", None)
    of_model = getattr(config, "is_decoder", False) or getattr(config, "is_encoder_decoder", False)
    return bool(getattr(module, "is_cross_attention", False) or getattr(module, "is_decoder", of_model))


def is_self_attention(module: nn.Module) -> bool:
    """Whether the queries and keys of a module are known to be the same positions."""
    if site_of(module) == "cross":
        return False
    return hasattr(module, "attnorm_site") or says_causal(module) or not may_be_of_decoder(module)


def sizes_of(module: nn.Module) -> dict[str, int]:
    """The number and the width of the heads of an attention module, as far as it says: `heads` and `width`."""
    config = getattr(module, "config", None)
    first = next(_numbers(module, HEADS), next(_numbers(config, HEADS), None))
    width = next(_numbers(module, WIDTH), None)
    return {name: value for name, value in {"heads": first, "width": width}.items() if value is not None}


def _numbers(owner: Any, names: tuple[str, ...]) -> Iterator[int]:
    yield from (value for name in names if isinstance(value := getattr(owner, name, None), int))


@cache
def calls_attention_function(cls: Any) -> bool:
    """Whether the code of a class looks up an attention function."""
    return "ALL_ATTENTION_FUNCTIONS" in names_in_code(cls)


@cache
def computes_softmax(cls: Any) -> bool:
    """Whether a class of attention modules calls softmax instead of an attention function.

    Deformable attention does so for the weights of a few sampled points, which are no keys.
    """
    if not cls.__name__.endswith("Attention") or "Deformable" in cls.__name__ or calls_attention_function(cls):
        return False
    return not names_in_code(cls).isdisjoint(("softmax", "eager_attention_forward"))


def names_in_code(cls: Any) -> set[str]:
    """The names of globals and attributes that the methods of a module use."""
    return {name for code in codes_of(cls) for name in code.co_names}


def codes_of(cls: Any) -> list[CodeType]:
    """The code of the methods of a class of modules and its bases."""
    bases = (base for base in cls.__mro__ if base not in nn.Module.__mro__)
    methods = (member for base in bases for member in vars(base).values() if callable(member))
    codes = (getattr(inspect.unwrap(method), "__code__", None) for method in methods)
    return [code for code in codes if code is not None]
