"""The attention tables of a whole model: filling in defaults and finding problems.

The tables say which normalizer, priors and scorer each site of a model uses. A site is a place with attention, such as
"encoder":

    {"_default_": "dnas", "cross": ["dnas_prefix", "softmax"],
     "prior": {"encoder": ["t5"]}, "scorer": {"cross": "bilinear"}, "bank": {}, "options": {"t5": {"buckets": 64}}}

A site maps to a normalizer, or to a list with one normalizer per layer. `_default_` applies to the sites that are not
set. `prior`, `scorer` and `bank` need not contain every site. The keys of `options` are the names of parts.
`check_attention` finds all problems of such tables, and `resolve_attention` names every site explicitly. Models are
built from the resolved tables.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from attnorm.attention.banks import bank_problems
from attnorm.attention.build import NORMALIZERS, build_part, normalizers_of, problem_of_part, short_name
from attnorm.attention.placement import placement_problems
from attnorm.imports import nearest
from attnorm.wording import counted

DEFAULT = "_default_"
TABLES = ("prior", "scorer", "bank", "options")
SMALL: dict[str, dict[str, Any]] = {  # facts of the smallest model, sufficient to check whether its parts can be built
    "normalizer": {"heads": 1, "width": 1, "place": None},
    "prior": {"heads": 1, "bidirectional": True, "positions": 1, "width": 1},
    "scorer": {"heads": 1, "width": 1},
}


# ------------------------------------------------------------------------------------------ resolving


def resolve_attention(attention: Mapping, sites: dict[str, bool]) -> dict:
    """Returns the tables with an explicit entry for every site of a model, and for no other site.

    A site that is not set gets `_default_`. At an autoregressive site, softmax replaces each normalizer of the default
    that couples all queries. A site without an entry in `prior` or `scorer` gets no prior, or the scaled dot product.
    Sites that the model does not have are removed, and so are options of parts that it does not use. Resolving the
    result again does not change it.

    attention: tables in which `check_attention` finds no problem.
    sites: the model's sites, each with whether it is autoregressive.
    """
    attention = with_tables(attention)
    found: dict[str, Any] = {
        site: at_site(attention, site, autoregressive)
        for site, autoregressive in sites.items()
        if site in attention or DEFAULT in attention
    }
    found["prior"] = {site: attention["prior"].get(site, []) for site in sites}
    found["scorer"] = {site: attention["scorer"].get(site, "scaled_dot") for site in sites}
    if banks := {site: attention["bank"][site] for site in sites if attention["bank"].get(site) is not None}:
        found["bank"] = banks
    used = set(names_in(found))
    found["options"] = {name: options for name, options in attention["options"].items() if name in used}
    return found


def at_site(attention: dict, site: str, autoregressive: bool) -> str | list[str]:
    """The normalizer of a site, or its list with one per layer, with the default filled in."""
    value = attention[site] if site in attention else attention[DEFAULT]
    names = normalizers_of(value)
    if site not in attention and autoregressive:
        names = ["softmax" if couples_all_queries(name, attention) else name for name in names]
        value = "softmax" if {*names} == {"softmax"} else value
    return names[0] if isinstance(value, str) else names


def couples_all_queries(name: str, attention: dict) -> bool:
    """Whether a normalizer is not allowed at an autoregressive site. False if it cannot be built."""
    try:
        return build_part("normalizer", name, attention, **SMALL["normalizer"]).couples_queries == "all"
    except ValueError:
        return False


def with_tables(attention: Mapping) -> dict:
    """The tables with empty entries for those of `TABLES` that are missing."""
    return {**{table: {} for table in TABLES}, **attention}


def names_in(attention: Mapping) -> Iterator[str]:
    """The names under which `options` lists the parts in the tables, also at sites that the model does not have."""
    for key, value in attention.items():
        if key not in TABLES and is_normalizer(value):
            yield from map(short_name, normalizers_of(value))
    yield from (short_name(name) for name in attention["scorer"].values())
    yield from (short_name(name) for name in attention.get("bank", {}).values() if isinstance(name, str))
    yield from (short_name(name) for names in attention["prior"].values() if is_names(names) for name in names)


# ------------------------------------------------------------------------------------------ checking


def check_attention(
    attention: Mapping,
    sites: dict[str, bool],
    layers: Mapping[str, Any] | None = None,
    typed: Collection[str] | None = None,
    heads: Mapping[str, Any] | None = None,
) -> list[str]:
    """Returns all problems of the attention tables as messages for the user. The list is empty if a model can be built.

    sites:  the model's sites, each with whether it is autoregressive.
    layers: the number of layers at each site, which the length of a list of normalizers must match. A number that is
            not an int is not compared. None means not known yet.
    typed:  the keys that the user typed, such as "attention.encoder". All other keys come from files that several
            models share, so a site that this model does not have is not a problem there. None means that all keys were
            typed.
    heads:  the number of heads at each site, which the numbers of values per head must match; as for `layers`.
    """
    attention = with_tables(attention)
    if problems := list(malformed_tables(attention)):
        return problems
    problems = [*unknown_sites(attention, sites, typed), *missing_sites(attention, sites)]
    if problems := problems + malformed(attention, sites):
        return problems
    placed = {site: at_site(attention, site, autoregressive) for site, autoregressive in sites.items()}
    return [
        *dict.fromkeys(part_problems(attention, sites)),  # several sites may use the same wrong option
        *default_problems(attention, sites, typed),
        *layer_problems(attention, sites, layers),
        *placement_problems(attention, placed, layers, heads),
        *bank_problems(attention, placed),
        *unused_tables(attention, sites, typed),
        *unused_options(attention, sites, typed),
    ]


def is_normalizer(value: Any) -> bool:
    """Whether a site can be set to this value: a name, or a nonempty list of names."""
    return isinstance(value, str) or (is_names(value) and value != [])


def is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def malformed_tables(attention: dict) -> Iterator[str]:
    """Tables that are not mappings."""
    examples = {
        "prior": "{encoder: [t5]}",
        "scorer": "{encoder: bilinear}",
        "bank": "{encoder: vocabulary}",
        "options": "{hnas: {start: 0.3}}",
    }
    for table, example in examples.items():
        by = "options by name" if table == "options" else f"a {table} by site"
        if not isinstance(attention[table], dict):
            yield f"attention.{table}={attention[table]}: expected {by}, such as {example}"


def malformed(attention: dict, sites: dict[str, bool]) -> list[str]:
    """Values of the tables that are not a name, a list of names, or options by name, as expected."""
    problems = []
    for key in (*sites, DEFAULT):
        if key in attention and not is_normalizer(attention[key]):
            problems.append(
                f"attention.{key}={attention[key]}: expected a name, or a list with a name per layer, such as "
                "[dnas,softmax]"
            )
    for site in sites:
        scorer, priors = attention["scorer"].get(site, "scaled_dot"), attention["prior"].get(site, [])
        if not isinstance(scorer, str):
            problems.append(f"attention.scorer.{site}={scorer}: expected a name")
        if not isinstance(bank := attention["bank"].get(site), str | None):
            problems.append(f"attention.bank.{site}={bank}: expected a name, or null for no bank")
        if not is_names(priors):
            problems.append(f"attention.prior.{site}={priors}: expected a list of names, such as [t5]")
        elif len({*map(short_name, priors)}) < len(priors):
            problems.append(f"attention.prior.{site}={priors}: expected each name once")
    for name, options in attention["options"].items():
        if not isinstance(options, dict):
            problems.append(f"attention.options.{name}={options}: expected its options, such as {{start: 0.3}}")
    return problems


def was_typed(key: str, typed: Collection[str] | None) -> bool:
    """Whether the user typed this key or a key below it."""
    return typed is None or any(other == key or other.startswith(f"{key}.") for other in typed)


def unknown_sites(attention: dict, sites: dict[str, bool], typed: Collection[str] | None) -> Iterator[str]:
    """Typed sites that the model does not have."""
    tables = {"": [key for key in attention if key not in (*TABLES, DEFAULT)]}
    tables |= {f"{table}.": list(attention[table]) for table in ("prior", "scorer", "bank")}
    for prefix, keys in tables.items():
        for key in keys:
            if key not in sites and was_typed(f"attention.{prefix}{key}", typed):
                has = f"it has {', '.join(sites)}" if sites else "it has none with these settings"
                yield f"attention.{prefix}{key}: the model has no such site; {has}." + nearest(key, sites)


def missing_sites(attention: dict, sites: dict[str, bool]) -> list[str]:
    """Sites of the model that are not set."""
    absent = [] if DEFAULT in attention else [site for site in sites if site not in attention]
    return [f"attention.{site}: missing; set it, or set attention.{DEFAULT} for all sites" for site in absent]


def part_problems(attention: dict, sites: dict[str, bool]) -> Iterator[str]:
    """Parts that cannot be built, or that cannot be used at the site where they are set."""
    for name in dict.fromkeys(normalizers_of(attention.get(DEFAULT, []))):
        yield from problems_of("normalizer", f"attention.{DEFAULT}={name}", name, attention)
    for site, autoregressive in sites.items():
        for name in dict.fromkeys(normalizers_of(attention.get(site, []))):
            yield from problems_of("normalizer", f"attention.{site}={name}", name, attention, autoregressive)
        for name in attention["prior"].get(site, []):
            yield from problems_of("prior", f"attention.prior.{site}={name}", name, attention)
        name = attention["scorer"].get(site, "scaled_dot")
        yield from problems_of("scorer", f"attention.scorer.{site}={name}", name, attention)


def problems_of(kind: str, key: str, name: str, attention: dict, autoregressive: bool = False) -> Iterator[str]:
    """Reasons why a part cannot be used at a site."""
    try:
        part = build_part(kind, name, attention, **SMALL[kind])
    except ValueError as error:
        yield problem_of_part(key, name, attention, error)
        return
    if kind == "normalizer" and not part.differentiable:
        yield f"{key}: {name} has no gradient, so a model cannot be trained with it"
    if kind == "normalizer" and autoregressive and part.couples_queries == "all":
        yield f"{key}: {leak_message(name)}"


def default_problems(attention: dict, sites: dict[str, bool], typed: Collection[str] | None) -> Iterator[str]:
    """A default that has no effect."""
    if DEFAULT not in attention or not sites:
        return
    left = [site for site in sites if site not in attention]
    key = f"attention.{DEFAULT}={as_typed(attention[DEFAULT])}"
    if not left:
        if typed is not None and was_typed(f"attention.{DEFAULT}", typed):
            yield f"{key}: has no effect, because every site of the model is set ({', '.join(sites)})"
        return
    default = [name for name in dict.fromkeys(normalizers_of(attention[DEFAULT])) if name != "softmax"]
    used = {name for site in sites for name in normalizers_of(at_site(attention, site, sites[site]))}
    if default and used.isdisjoint(default):
        instead = [f"{name}_prefix" for name in default if f"{name}_prefix" in NORMALIZERS]
        instead.append("attention=softmax with attention.<site>=<normalizer>")
        yield (
            f"{key}: no site uses it. It couples queries and would leak the future at the autoregressive sites that "
            f"are not set ({', '.join(left)}); use {', or '.join(instead)}"
        )


def layer_problems(attention: dict, sites: dict[str, bool], layers: Mapping[str, Any] | None) -> Iterator[str]:
    """Lists whose length is not the number of layers of their site."""
    if layers is None:
        return
    for site, autoregressive in sites.items():
        value = at_site(attention, site, autoregressive)
        key = f"attention.{site if site in attention else DEFAULT}"
        if isinstance(value, str):
            continue
        if site not in layers:
            yield f"{key}={as_typed(value)}: the model does not say how many layers {site} has; set one normalizer"
        elif type(layers[site]) is int and len(value) != layers[site]:
            where = "" if site in attention else f" at {site}"
            yield f"{key}: {counted(len(value), 'normalizer')} for {counted(layers[site], 'layer')}{where}"


def as_typed(value: str | list[str]) -> str:
    """The normalizers of a site in the syntax of a command-line argument: 'dnas' or '[dnas,softmax]'."""
    return value if isinstance(value, str) else f"[{','.join(value)}]"


def unused_tables(attention: dict, sites: dict[str, bool], typed: Collection[str] | None) -> Iterator[str]:
    """Tables of the file that the user chose with `attention=` that name sites, but none of the model's."""
    for table in ("prior", "scorer", "bank") if typed and "attention" in typed else ():
        named = [site for site, value in attention[table].items() if value]
        if named and sites and sites.keys().isdisjoint(named):
            has = f"the model has only {', '.join(sites)}"
            yield f"attention.{table}: has no effect, because it is set for {', '.join(named)}, and {has}"


def unused_options(attention: dict, sites: dict[str, bool], typed: Collection[str] | None) -> Iterator[str]:
    """Options that were typed for a part that no site uses, or set in a file for a part that the file does not name."""
    used, named = set(names_in(resolve_attention(attention, sites))), set(names_in(attention))
    for name in attention["options"]:
        if name not in used and (name not in named or was_typed(f"attention.options.{name}", typed)):
            yield (
                f"attention.options.{name}: has no effect, because no site uses {name!r}; in use: "
                f"{', '.join(sorted(used)) or 'nothing'}." + nearest(name, used)
            )


def leak_message(name: str) -> str:
    """Why a normalizer that couples all queries is not accepted at an autoregressive site, and which ones to use."""
    safe = ["softmax"] + [f"{name}_prefix"] * (f"{name}_prefix" in NORMALIZERS)
    return f"{name} couples queries and would leak the future at an autoregressive site; use {' or '.join(safe)}"
