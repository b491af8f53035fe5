"""Gives each attention module of a loaded model a normalizer of its own."""

import copy
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from torch import nn

from attnorm.attention import Normalizer
from attnorm.attention.call_context import in_layer
from attnorm.attention.model_sites import Sites
from attnorm.attention.registry import name_of
from attnorm.attention.table_form import DEFAULT, TABLES, names_in
from attnorm.errors import ConfigError
from attnorm.integrations.transformers.attention import cache_message
from attnorm.integrations.transformers.register import (
    CONVERTED,
    IMPLEMENTATION,
    WITH_FLOAT_MASKS,
    own_softmax_message,
    refusal,
    refuse_request,
    register,
)
from attnorm.integrations.transformers.sites import SITES, attention_modules, own_softmax_modules, sizes_of

Model = TypeVar("Model", bound=nn.Module)
HYBRIDS = {"hnas", "hnas_prefix"}  # which contain softmax
ORDERED = "ordered"  # beside the sites in the record of a conversion, if it is False
PART = f".{CONVERTED}."  # in the names of the parameters of normalizers


class Conversion(dict[str, Any]):
    """The normalizers that `convert` gave to models with a configuration. What was read from a file is a plain dict: a
    model that `transformers` alone has loaded has none of them."""


def convert(
    model: Model,
    attention: str | type[Normalizer] | Mapping[str, Any],
    *,
    share: float | None = None,
    ordered: bool = True,
) -> Model:
    """Replaces the normalizers of a loaded `transformers` model, in place, and returns the model.

    attention: a normalizer, which is a name, a path "package.module.Class" or a class; or one for each site, such as
               {"encoder": "hnas"}, or a list with one per layer. The sites are "encoder" (self-attention to both
               sides), "decoder" (causal self-attention) and "cross" (cross-attention), as far as the model has them. A
               site that is not named keeps softmax. "options" has the options of normalizers by name, as in
               {"encoder": "hnas", "options": {"hnas": {"start": 0.3}}}. As everywhere in attnorm, a normalizer for all
               sites that couples all queries is used in the encoder only.

    share:     the first share of a normalizer beside softmax, from 0 to 1. For "hnas" and "hnas_prefix", whose hybrid
               weight it is, it is short for the options {"form": "clamp", "start": share}; by default, they start
               halfway between softmax and dnas, which changes the output of a trained model at once. Any other
               normalizer becomes a `mix` of softmax and itself. With share=0, the output is that of softmax (to the bit
               for hnas), and the shares have their true gradient. After each update, they are to be clamped: see
               `share_schedule`.

    ordered:   whether positions have an order. False accepts a mask (B, 1, N, M) of neighbours or random pairs for
               normalizers that couple all queries; see `attnorm.nn.functional.attention`.

    Each module gets a submodule `attnorm`, in float32 and on the device of the module, whose parameters are trained and
    saved with the others. Convert before the optimizer is built. The configuration of the model records `attention`,
    and `from_pretrained` of this module loads the model again. Two parts of a model may be converted one after the
    other. If they share a configuration, it records the sites of both. The library `peft` freezes what it does not
    know, also the parameters of normalizers: train and save them by `LoraConfig(..., modules_to_save=["attnorm"])`.

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
    earlier = earlier if isinstance(earlier, Conversion) else {}
    converted = [
        layer for site, layers in attention_modules(model).items() if site in earlier for layer in layers.values()
    ]
    if not all(hasattr(layer, CONVERTED) for layer in converted):
        copies, earlier = dict[int, Any](), {}  # another model of the same configuration object has been converted
        copy.deepcopy(changed.config, copies)
        for part in changed.modules():
            if hasattr(part, "config"):
                part.config = copies.get(id(part.config), part.config)
    table = with_paths(attention)
    table = table if share is None else with_share(table, share)
    recorded = Conversion(attach(model, table if ordered else with_default(table) | {ORDERED: False}, earlier))
    if refuse_cache not in model._forward_pre_hooks.values():
        model.register_forward_pre_hook(refuse_cache, with_kwargs=True)
        model.register_forward_pre_hook(warn_of_frozen)
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


def with_share(attention: Any, share: float) -> dict[str, Any]:
    """The table in which each normalizer but softmax starts with this share beside softmax."""
    table = with_default(attention)
    options = {**table.get("options", {})}
    names = names_in({"prior": {}, **table}) - {"softmax"}
    if not names:
        raise ConfigError([f"share={share}: no site has another normalizer than softmax"])
    others = names - HYBRIDS
    if len(others) > 1:
        raise ConfigError(
            [f"share={share}: allowed: one normalizer beside softmax, not {' and '.join(sorted(others))}"]
        )
    for name in names & HYBRIDS:
        if taken := {"start", "form", "fixed"} & {*options.get(name, {})}:
            both = f"attention['options'][{name!r}][{min(taken)!r}]"
            raise ConfigError([f"share={share}: sets the start and the form of {name}, and so does {both}; use one"])
        options[name] = {"form": "clamp", "start": share, **options.get(name, {})}
    for name in others:
        member = {"name": name, **options.pop(name)} if options.get(name) else name
        options["mix"] = {"members": ["softmax", member], "form": "project", "start": [1 - share, share]}

    def mixed(value: Any) -> Any:
        return [*map(mixed, value)] if isinstance(value, list) else "mix" if value in others else value

    return {key: options if key == "options" else mixed(value) for key, value in {**table, "options": {}}.items()}


def with_default(attention: Any) -> dict[str, Any]:
    """The table of a normalizer for all sites, or one in which the other sites keep softmax."""
    return {DEFAULT: "softmax", **attention} if isinstance(attention, Mapping) else {DEFAULT: attention}


def attach(
    model: nn.Module, attention: str | Mapping[str, Any], recorded: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Gives each attention module its normalizer. Returns the normalizers of all sites, and their options.

    recorded: the same for another part of the model, whose sites are returned, too.
    """
    sites, fixed = attention_modules(model), own_softmax_modules(model)
    sizes = {site: [sizes_of(module) for module in modules.values()] for site, modules in sites.items()}
    if not isinstance(attention, str | Mapping):
        expected = "a normalizer, such as 'dnas', or one for each site, such as {'encoder': 'dnas'}"
        raise ConfigError([f"attention={attention!r}: expected {expected}"])
    settings = with_default(attention)
    is_ordered, _ = settings.pop(ORDERED, True), settings.pop(IMPLEMENTATION, None)
    cross: Any = sites.get("cross", {}).values()
    is_written = "decoder" in {**sites, **fixed} or any(getattr(module, "is_decoder", False) for module in cross)
    tables = Sites(
        settings,
        {site: site == "decoder" or (site == "cross" and is_written) for site in {**sites, **fixed}},
        {site: len(modules) for site, modules in sites.items()},
        heads={site: of_layers[0].get("heads") for site, of_layers in sizes.items()},
    )
    if problems := [*_problems_of(settings, tables, fixed)]:
        raise ConfigError(map(in_python, problems))
    new = {key: value for key, value in tables.resolved.items() if key in sites or key == "options"}
    everywhere = with_recorded(new, recorded)
    parts: list[tuple[Any, str, Normalizer]] = [
        (module, site, tables[site].normalizer(**sizes[site][layer], layer=layer))
        for site, modules in sites.items()
        for layer, module in enumerate(modules.values())
    ]
    for module, site, normalizer in parts:
        module.attnorm = in_layer(normalizer).to(next(module.parameters()).device).train(module.training)
        module.attnorm_site = site
        module.attnorm_ordered = is_ordered
    return everywhere if is_ordered else everywhere | {ORDERED: False}


def with_recorded(new: Mapping[str, Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The normalizers of the converted sites, and those of the other sites that are recorded, with their options.

    Raises ConfigError if the two need different options of the same normalizer.
    """
    others = {site: value for site, value in recorded.items() if site in SITES and site not in new}
    options: dict[str, Any] = {**new["options"]}
    for name in names_in({"prior": {}, **others}):
        of_others, of_new = recorded["options"].get(name, {}), new["options"].get(name, {})
        if name in names_in({"prior": {}, **new}) and of_new != of_others:
            used = f"{', '.join(others)} of the model already uses {name} with the options {of_others}"
            message = f"attention['options'][{name!r}]={of_new}: {used}; all sites share the options of a normalizer"
            raise ConfigError([message])
        if of_others:
            options[name] = of_others
    return {**others, **new, "options": options}


def _problems_of(
    settings: Mapping[str, Any], tables: Sites, fixed: Mapping[str, Mapping[str, nn.Module]]
) -> Iterator[str]:
    """The problems of a conversion, as messages for the user. fixed: the modules that compute softmax themselves."""
    if not tables.autoregressive:
        yield "the model has no attention module that calls an attention function of transformers"
        return
    for table in TABLES:
        if table in settings and table != "options":
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

    caches = [value for value in (*args, *kwargs.values()) if isinstance(value, Cache)]
    if not caches:
        return
    for part in model.modules():
        if getattr(part, "attnorm_site", "encoder") == "encoder" or part.attnorm.couples_queries != "past":
            continue
        implementation = getattr(part, "config", model.config)._attn_implementation  # it may have changed since
        in_use = implementation in (CONVERTED, WITH_FLOAT_MASKS)
        if in_use and any(cache.get_seq_length() > 0 for cache in caches):  # asked last: some lengths are on the device
            raise ValueError(f"{type(model).__name__}: {cache_message(name_of(part.attnorm))}")


def in_python(problem: str) -> str:
    """A problem in the words of `convert` instead of those of the command line: attention['encoder'] and not
    attention.encoder."""
    by_site = problem.replace("attention=softmax with attention.<site>=<normalizer>", "{'<site>': '<normalizer>'}")
    keys = re.sub(
        r"(?<![\w.])attention((?:\.\w+)+)",
        lambda match: "attention" + "".join(f"[{key!r}]" for key in match[1][1:].split(".") if key != DEFAULT),
        by_site,
    )
    return re.sub(r"\bnull\b", "None", keys)


def warn_of_frozen(model: nn.Module, args: tuple) -> None:
    """Warns if `peft` has frozen the parameters of normalizers, which it does not know."""
    if not model.training or "peft" not in sys.modules:
        return
    frozen = [
        name
        for name, parameter in model.named_parameters()
        if PART in name and not parameter.requires_grad and ".original_module." not in name
    ]
    if frozen:
        warnings.warn(
            f"peft has frozen {frozen[0]} and the like, so the normalizers are neither trained nor saved; add "
            f"modules_to_save=[{CONVERTED!r}] to the configuration of peft",
            stacklevel=2,
        )
