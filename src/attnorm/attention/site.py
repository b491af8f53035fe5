"""Parts of a model that are valid alone but not together, or not at the layer where they are placed."""

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from attnorm.attention.build import PARTS, maps_of, normalizers_of, problem_of_part
from attnorm.attention.layer_options import LAYER_OPTIONS
from attnorm.attention.normalizers._fixed import fixed_value
from attnorm.attention.priors import needs_of
from attnorm.imports import find

if TYPE_CHECKING:
    from attnorm.attention.tables import AttentionTables

MIXTURES = ("hnas", "hnas_prefix", "mix")  # normalizers whose shares can be fixed


def placement_problems(tables: "AttentionTables") -> Iterator[str]:
    """Problems of the parts at each site, as messages for the user. Parts that cannot be built are left out: that is a
    problem of its own."""
    attention = tables.attention
    for site, value in tables.at_sites.items():
        names = normalizers_of(value)
        yield from fixed_problems(tables, site, names)
        priors = attention["prior"].get(site, [])
        if priors and {*names} == {"none"}:
            yield f"attention.prior.{site}=[{','.join(priors)}]: has no effect, because attention.{site}=none"
        if site in attention["scorer"]:
            yield from learned_alphas(tables, site, names)
            yield from undefined_scorers(tables, site, names)


def fixed_problems(tables: "AttentionTables", site: str, names: list[str]) -> Iterator[str]:
    """Shares that are fixed, but not for the layers or the heads that the site has."""
    layers, heads = (tables.layers or {}).get(site), (tables.heads or {}).get(site)
    if type(layers) is not int:
        return
    names = names * layers if len(names) == 1 else names
    for name in dict.fromkeys(names):
        fixed = (tables.attention["options"].get(name) or {}).get("fixed") if name in MIXTURES else None
        for mixture in tables.normalizers([name]) if fixed is not None else ():
            try:
                for layer in (layer for layer, other in enumerate(names) if other == name):
                    maps = maps_of(tables.attention, site, heads) if type(heads) is int else None
                    fixed_value(fixed, (site, layer), maps, mixture.parse)
            except ValueError as error:
                yield f"attention.options.{name}.fixed: {error}"
                continue
            if isinstance(fixed, Mapping) and len(fixed[site]) > layers:
                yield f"attention.options.{name}.fixed: {len(fixed[site])} values for the {layers} layers of {site}"


def learned_alphas(tables: "AttentionTables", site: str, names: list[str]) -> Iterator[str]:
    """A learned alpha beside a normalizer whose formula contains alpha as one fixed number."""
    scorer = tables.attention["scorer"][site]
    try:
        learns = tables.build("scorer", scorer).learns_alpha
    except ValueError:
        return
    for name in dict.fromkeys(names) if learns else ():
        if any(normalizer.needs_fixed_alpha for normalizer in tables.normalizers([name])):
            reason = f"because attention.{site}={name} contains alpha as a fixed number"
            if scorer == "dot":
                yield f"attention.options.dot.learn: has to be null, {reason}; set alpha or tau instead"
            else:
                yield f"attention.scorer.{site}={scorer}: learns alpha, and must not, {reason}; use scaled_dot or dot"


def undefined_scorers(tables: "AttentionTables", site: str, names: list[str]) -> Iterator[str]:
    """Scores that are not dot products, beside a normalizer that takes dot products of its own with the queries."""
    scorer = tables.attention["scorer"][site]
    try:
        is_dot = tables.build("scorer", scorer).is_dot
    except ValueError:
        return
    for name in () if is_dot else dict.fromkeys(names):
        if any(normalizer.needs_queries for normalizer in tables.normalizers([name])):
            yield (
                f"attention.scorer.{site}={scorer}: not defined with attention.{site}={name}, which uses the queries "
                "and the scale of the dot products; use scaled_dot, dot or bilinear"
            )


def option_problems(tables: "AttentionTables") -> Iterator[str]:
    """Options of a layer that cannot be built, or that are not defined for the normalizers of their site."""
    attention = tables.attention
    if not any(map(attention.__getitem__, LAYER_OPTIONS)):
        return
    for site, value in tables.at_sites.items():
        names = list(dict.fromkeys(normalizers_of(value)))
        chosen = {table: attention[table][site] for table in LAYER_OPTIONS if attention[table].get(site)}
        for table, choice in chosen.items():
            if names == ["none"]:
                key = f"attention.{table}.{site}={choice if isinstance(choice, str) else 'true'}"
                yield f"{key}: has no effect, because attention.{site}=none"
        if (gate := chosen.get("gate")) is not None:
            try:
                tables.build("gate", gate)
            except ValueError as error:
                yield problem_of_part(f"attention.gate.{site}={gate}", gate, attention, error)
        if "laser" in chosen and names != ["none"]:
            yield from laser_problems(tables, site, names, "differential" in chosen)


def laser_problems(tables: "AttentionTables", site: str, names: list[str], differential: bool) -> Iterator[str]:
    """Weights whose averages of exponentials have no logarithm, or one that is shifted by their sum."""
    key = f"attention.laser.{site}=true"
    if differential:
        yield (
            f"{key}: not defined with attention.differential.{site}=true, because the difference of two maps can be "
            "negative, and laser takes the logarithm of an average; use one of them"
        )
    for name in names:
        for total in (normalizer.total for normalizer in tables.normalizers([name])):
            if total != 1:
                reason = "may be negative" if total is None else "need not sum to 1"
                yield (
                    f"{key}: not defined with attention.{site}={name}, whose weights {reason}, because laser takes the "
                    "logarithm of an average; use a normalizer whose rows sum to 1, such as softmax"
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
