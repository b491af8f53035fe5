"""Gives each attention module of a loaded model a normalizer of its own, and loads such models again."""

import sys
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import nn

from attnorm.attention import Normalizer
from attnorm.attention.names import name_of
from attnorm.attention.sites import Sites
from attnorm.attention.surroundings import in_layer
from attnorm.attention.tables import DEFAULT, TABLES, names_in
from attnorm.errors import ConfigError
from attnorm.imports import TRUST, package_of, texts, trusted_packages
from attnorm.integrations.transformers.attention import cache_message
from attnorm.integrations.transformers.register import (
    CONVERTED,
    WITH_FLOAT_MASKS,
    own_softmax_message,
    refusal,
    refuse_request,
    register,
)
from attnorm.integrations.transformers.sites import SITES, attention_modules, own_softmax_modules, sizes_of

Model = TypeVar("Model", bound=nn.Module)
PART = f".{CONVERTED}."  # in the names of the parameters of normalizers


class Record(dict[str, Any]):
    """The normalizers that `convert` gave to models with a configuration. What was read from a file is a plain dict: a
    model that `transformers` alone has loaded has none of them."""


def convert(model: Model, attention: str | type[Normalizer] | Mapping[str, Any]) -> Model:
    """Replaces the normalizers of a loaded `transformers` model, in place, and returns the model.

    attention: a normalizer, which is a name, a path "package.module.Class" or a class; or one for each site, such as
               {"encoder": "hnas"}, or a list with one per layer. The sites are "encoder" (self-attention to both
               sides), "decoder" (causal self-attention) and "cross" (cross-attention), as far as the model has them. A
               site that is not named keeps softmax. "options" has the options of normalizers by name, as in
               {"encoder": "hnas", "options": {"hnas": {"start": 0.3}}}. As everywhere in attnorm, a normalizer for all
               sites that couples all queries is used in the encoder only.

    Each module gets a submodule `attnorm`, in float32 and on the device of the module, whose parameters are trained and
    saved with the others. Convert before the optimizer is built. The configuration of the model records `attention`,
    and `from_pretrained` of this module loads the model again. Two parts of a model may be converted one after the
    other. If they share a configuration, it records the sites of both.

    Raises ConfigError with all problems, and ValueError for something else than a model of `transformers`.
    """
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise ValueError(
            f"model={type(model).__name__}: expected a PreTrainedModel of transformers, with a configuration that "
            "records the normalizers; convert the whole model by site and layer, as in "
            "convert(model, {'encoder': ['hnas', 'softmax']}). For modules of torch, use attnorm.nn.convert"
        )
    register()
    refuse_request(type(model), CONVERTED)
    changed: Any = model
    earlier = getattr(changed.config, "attnorm", None)
    recorded = Record(attach(model, with_paths(attention), earlier if isinstance(earlier, Record) else {}))
    if refuse_cache not in model._forward_pre_hooks.values():
        model.register_forward_pre_hook(refuse_cache, with_kwargs=True)
    changed.set_attn_implementation(CONVERTED)
    changed.config.attnorm = recorded
    return model


def with_paths(attention: Any) -> Any:
    """The same with the path of each class in its place, which a configuration can record."""
    if isinstance(attention, type):
        return f"{attention.__module__}.{attention.__qualname__}"
    if isinstance(attention, Mapping):
        return {key: with_paths(value) for key, value in attention.items()}
    return [*map(with_paths, attention)] if isinstance(attention, list) else attention


def attach(
    model: nn.Module, attention: str | Mapping[str, Any], recorded: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Gives each attention module its normalizer. Returns the normalizers of all sites, and their options.

    recorded: the same for another part of the model, whose sites are returned, too.
    """
    sites, fixed = attention_modules(model), own_softmax_modules(model)
    sizes = {site: [sizes_of(module) for module in modules.values()] for site, modules in sites.items()}
    given = {DEFAULT: attention} if isinstance(attention, str) else {DEFAULT: "softmax", **attention}
    tables = Sites(
        given,
        {site: site == "decoder" or (site == "cross" and "decoder" in sites) for site in {**sites, **fixed}},
        {site: len(modules) for site, modules in sites.items()},
        heads={site: its[0].get("heads") for site, its in sizes.items()},
    )
    if problems := [*problems_of(given, tables, fixed)]:
        raise ConfigError(problems)
    here = {key: it for key, it in tables.resolved.items() if key in sites or key == "options"}
    everywhere = with_recorded(here, recorded)
    parts: list[tuple[Any, str, Normalizer]] = [
        (module, site, tables[site].normalizer(**sizes[site][layer], layer=layer))
        for site, modules in sites.items()
        for layer, module in enumerate(modules.values())
    ]
    for module, site, normalizer in parts:
        module.attnorm = in_layer(normalizer).to(next(module.parameters()).device).train(module.training)
        module.attnorm_site = site
    return everywhere


def with_recorded(here: Mapping[str, Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The normalizers of the converted sites, and those of the other sites that are recorded, with their options.

    Raises ConfigError if the two need different options of the same normalizer.
    """
    others = {site: value for site, value in recorded.items() if site in SITES and site not in here}
    options: dict[str, Any] = {**here["options"]}
    for name in names_in({"prior": {}, **others}):
        of_others, ours = recorded["options"].get(name, {}), here["options"].get(name, {})
        if name in names_in({"prior": {}, **here}) and ours != of_others:
            raise ConfigError(
                [
                    f"attention.options.{name}={ours}: {', '.join(others)} of the model already uses {name} with the "
                    f"options {of_others}; all sites share the options of a normalizer"
                ]
            )
        if of_others:
            options[name] = of_others
    return {**others, **here, "options": options}


def problems_of(given: Mapping[str, Any], tables: Sites, fixed: Mapping[str, Mapping[str, nn.Module]]) -> Iterator[str]:
    """The problems of a conversion, as messages for the user. fixed: the modules that compute softmax themselves."""
    if not tables.autoregressive:
        yield "the model has no attention module that calls an attention function of transformers"
        return
    for table in TABLES:
        if table in given and table != "options":
            yield f"attention.{table}: not available here; only normalizers and their options can be set"
    yield from tables.problems
    for site, of_site in tables.items() if not tables.problems else ():
        if site in fixed and {*of_site.names} != {"softmax"}:
            yield f"attention.{site}={of_site.value}: {own_softmax_message(fixed[site])}"
            continue
        for name, normalizer in of_site.normalizers():
            if reason := refusal(normalizer):
                yield f"attention.{site}={name}: {reason}"
            elif normalizer.needs_causal and site != "decoder":
                yield f"attention.{site}={name}: it is defined for causal self-attention only"


def refuse_cache(model: Any, args: tuple, kwargs: Mapping[str, Any]) -> None:
    """Raises ValueError for a forward pass that continues from a cache: a prefix normalizer needs the past queries."""
    from transformers import Cache

    caches = [it for it in (*args, *kwargs.values()) if isinstance(it, Cache)]
    if not caches:
        return
    for part in model.modules():
        if getattr(part, "attnorm_site", "encoder") == "encoder" or part.attnorm.couples_queries != "past":
            continue
        implementation = getattr(part, "config", model.config)._attn_implementation  # it may have changed since
        in_use = implementation in (CONVERTED, WITH_FLOAT_MASKS)
        if in_use and any(it.get_seq_length() > 0 for it in caches):  # asked last: some lengths are on the device
            raise ValueError(f"{type(model).__name__}: {cache_message(name_of(part.attnorm))}")


def from_pretrained(model_class: Any, path: str, **options: Any) -> Any:
    """Loads a converted model that was saved with `save_pretrained`: model_class.from_pretrained, then its normalizers.

    model_class: a class of `transformers`, such as AutoModel. options: those of its `from_pretrained`.

    The configuration may name normalizers of other packages than attnorm, and importing them runs their code. This is
    refused unless their module has been imported already, their package is in the environment variable ATTNORM_TRUST,
    or `trust_remote_code=True`.

    Raises ValueError for such code, if the configuration does not record a conversion, and if a parameter of a
    normalizer is missing from the files or not expected there. `model_class.from_pretrained` alone would load the same
    model with softmax.
    """
    if options.pop("output_loading_info", False):
        raise ValueError("output_loading_info=True: not available here, where unexpected weights are an error")
    original = class_of(model_class, path, options)
    trusted = bool(options.get("trust_remote_code"))
    model, loading = with_normalizers(original, path, trusted).from_pretrained(
        path, output_loading_info=True, **options
    )
    model.__class__ = original
    owners = {name for name, _ in model.named_modules()}
    unknown = [name for name in loading["unexpected_keys"] if PART in name and name.partition(PART)[0] in owners]
    if unknown:
        raise ValueError(
            f"{path}: has weights that the entry attnorm of its config.json does not record: "
            f"{', '.join(sorted(unknown))}. If a part of the model was converted that has a configuration of its own, "
            "convert the whole model by site instead, as in convert(model, {'encoder': 'hnas'})"
        )
    converted = [*converted_parts(model)]
    if not converted:
        raise ValueError(
            f"{path}: its config.json has no entry attnorm, so the model was not converted; load it with "
            f"{model_class.__name__}.from_pretrained, then use convert"
        )
    if missing := sorted(name for name in loading["missing_keys"] if PART in name):
        raise ValueError(
            f"{path}: has no weights for {', '.join(missing)}, although its config.json says that it was converted"
        )
    loaded = {name: tensor for name, tensor in model.state_dict().items() if PART in name}
    for part in converted:
        convert(part, part.config.attnorm)  # anew, because what is not saved has not been initialised
    model.load_state_dict(loaded, strict=False)
    return model


def class_of(model_class: Any, path: str, options: Mapping[str, Any]) -> Any:
    """The class of the model that `model_class` loads, which may be one of the Auto classes."""
    from transformers import AutoConfig, PreTrainedModel

    if issubclass(model_class, PreTrainedModel):
        return model_class
    trust = {"trust_remote_code": options["trust_remote_code"]} if "trust_remote_code" in options else {}
    where = {
        key: options[key]
        for key in ("cache_dir", "code_revision", "local_files_only", "revision", "subfolder", "token")
        if key in options
    }
    config = AutoConfig.from_pretrained(path, **where, **trust)
    with torch.device("meta"):
        return type(model_class.from_config(config, **trust))


def with_normalizers(original: Any, path: str, trusted: bool) -> Any:
    """A class of models whose parts already have their normalizers when the weights are loaded.

    path: of the files. trusted: whether all code that they name may be imported.
    """

    def build(model: Any, *args: Any, **kwargs: Any) -> None:
        original.__init__(model, *args, **kwargs)
        for part in converted_parts(model):
            if not trusted:
                refuse_code(part.config.attnorm, path)
            attach(part, part.config.attnorm)

    in_float32 = {*(original._keep_in_fp32_modules_strict or ()), CONVERTED}
    members = {"__init__": build, "_keep_in_fp32_modules_strict": in_float32}
    names = {"__module__": original.__module__, "__qualname__": original.__qualname__}
    return type(original.__name__, (original,), members | names)


def refuse_code(recorded: Mapping[str, Any], path: str) -> None:
    """Raises ValueError if a recorded text may be the path of code that is neither trusted nor imported already."""
    for key, text in texts(recorded, "attnorm"):
        module, package = text.replace(":", ".").rpartition(".")[0], package_of(text)
        if module and module not in sys.modules and package not in trusted_packages():
            raise ValueError(
                f"{path}: {key}={text!r} in its config.json names code outside attnorm, and importing it runs it. If "
                f"you trust it, import it first, add {package!r} to the environment variable {TRUST}, or pass "
                "trust_remote_code=True"
            )


def converted_parts(model: nn.Module) -> Iterator[Any]:
    """The outermost models in a model whose configuration records a conversion."""
    from transformers import PreTrainedModel

    if isinstance(model, PreTrainedModel) and getattr(model.config, "attnorm", None) is not None:
        yield model
    else:
        for child in model.children():
            yield from converted_parts(child)
