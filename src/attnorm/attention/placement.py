"""Parts of a model that are valid alone but not together, or not at the layer where they are placed."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from attnorm.attention.build import PARTS, build_part, normalizers_of
from attnorm.attention.normalizers._fixed import fixed_value
from attnorm.attention.priors import needs_of
from attnorm.imports import find

MIXTURES = ("hnas", "hnas_prefix", "mix")  # normalizers whose shares can be fixed


def placement_problems(
    attention: dict,
    placed: Mapping[str, str | list[str]],
    layers: Mapping[str, Any] | None,
    heads: Mapping[str, Any] | None = None,
) -> Iterator[str]:
    """Problems of the parts at each site, as messages for the user.

    attention: the tables. Parts that cannot be built are left out: that is a problem of its own.
    placed:    the normalizers of each site: one, or a list with one per layer.
    layers, heads: the numbers of layers and of heads at each site, as in `check_attention`.
    """
    for site, value in placed.items():
        yield from fixed_problems(attention, site, value, (layers or {}).get(site), (heads or {}).get(site))
        yield from useless_priors(attention, site, value)
        yield from learned_alphas(attention, site, value)


def fixed_problems(attention: dict, site: str, value: str | list[str], layers: Any, heads: Any) -> Iterator[str]:
    """Shares that are fixed, but not for the layers or the heads that the site has."""
    if type(layers) is not int:
        return
    names = [value] * layers if isinstance(value, str) else normalizers_of(value)
    for name in dict.fromkeys(name for name in names if name in MIXTURES):
        fixed, mixture = (attention["options"].get(name) or {}).get("fixed"), built(name, attention)
        if fixed is None or mixture is None:
            continue
        try:
            for layer in (layer for layer, other in enumerate(names) if other == name):
                fixed_value(fixed, (site, layer), heads if type(heads) is int else None, mixture.parse)
        except ValueError as error:
            yield f"attention.options.{name}.fixed: {error}"
            continue
        if isinstance(fixed, Mapping) and len(fixed[site]) > layers:
            yield f"attention.options.{name}.fixed: {len(fixed[site])} values for the {layers} layers of {site}"


def built(name: str, attention: dict) -> Any:
    """A normalizer as in the smallest model, or None if it cannot be built, which is a problem of its own."""
    try:
        return build_part("normalizer", name, attention, heads=1, width=1)
    except ValueError:
        return None


def useless_priors(attention: dict, site: str, value: str | list[str]) -> Iterator[str]:
    """Priors at a site where nothing is attended to."""
    priors = attention["prior"].get(site, [])
    if priors and {*normalizers_of(value)} == {"none"}:
        yield f"attention.prior.{site}=[{','.join(priors)}]: has no effect, because attention.{site}=none"


def learned_alphas(attention: dict, site: str, value: str | list[str]) -> Iterator[str]:
    """A learned alpha beside a normalizer whose formula contains alpha as one fixed number."""
    learns = (attention["options"].get("dot") or {}).get("learn") is not None
    if attention["scorer"].get(site) != "dot" or not learns:
        return
    for name in dict.fromkeys(normalizers_of(value)):
        normalizer = built(name, attention)
        if normalizer is not None and normalizer.needs_fixed_alpha:
            yield (
                f"attention.options.dot.learn: has to be null, because attention.{site}={name} contains alpha "
                "as a fixed number; set alpha or tau instead"
            )


def missing_facts(attention: Mapping, sites: Collection[str], provided: Collection[str]) -> Iterator[tuple[str, str]]:
    """The priors that need facts which the model does not provide: (key and value, the missing facts) for each.

    provided: the names of the facts that the model passes to its priors.
    """
    for site in sites:
        for name in attention["prior"].get(site, []):
            try:
                needs = needs_of(find("prior", name, *PARTS["prior"]))
            except ValueError:
                continue  # that there is no such prior is a problem of its own
            if missing := [fact for fact in needs if fact not in provided]:
                yield f"attention.prior.{site}={name}", ", ".join(missing)
