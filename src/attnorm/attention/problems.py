"""The problems of attention tables: what is not a part, cannot be placed at its site, or has no effect."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attnorm.attention.build import NORMALIZERS, normalizers_of, problem_of_part, short_name
from attnorm.attention.layer_options import LAYER_OPTIONS
from attnorm.imports import nearest
from attnorm.wording import counted

if TYPE_CHECKING:
    from attnorm.attention.tables import AttentionTables

DEFAULT = "_default_"
SITE_TABLES = ("prior", "scorer", "bank", *LAYER_OPTIONS)  # the others by site
SWITCHES = tuple(table for table in LAYER_OPTIONS if table != "gate")  # on or off
TABLES = (*SITE_TABLES, "options")


def names_in(tables: Mapping) -> set[str]:
    """The names under which `options` lists the parts in the tables, also at sites that the model does not have."""
    names: list[Any] = [name for table in ("scorer", "bank", "gate") for name in tables.get(table, {}).values()]
    for key, value in tables.items():
        if key not in TABLES and is_normalizer(value):
            names += normalizers_of(value)
    for priors in tables["prior"].values():
        names += priors if isinstance(priors, list) else []
    return {short_name(name) for name in names if isinstance(name, str)}


def is_normalizer(value: Any) -> bool:
    """Whether a site can be set to this value: a name, or a nonempty list of names."""
    return isinstance(value, str) or (value != [] and is_names(value))


def is_names(value: Any) -> bool:
    return isinstance(value, list) and {*map(type, value)} <= {str}


def malformed_tables(attention: dict) -> list[str]:
    """Tables that are not mappings."""
    examples = {
        "prior": "{encoder: [t5]}",
        "scorer": "{encoder: bilinear}",
        "bank": "{encoder: vocabulary}",
        "gate": "{encoder: headwise}",
        **dict.fromkeys(SWITCHES, "{encoder: true}"),
        "options": "{hnas: {start: 0.3}}",
    }
    problems = []
    for table, example in examples.items():
        by = (
            "options by name"
            if table == "options"
            else f"{'true or false' if table in SWITCHES else f'a {table}'} by site"
        )
        if not isinstance(attention[table], dict):
            problems.append(f"attention.{table}={attention[table]}: expected {by}, such as {example}")
    return problems


def malformed(tables: "AttentionTables") -> list[str]:
    """Values of the tables that are not a name, a list of names, or options by name, as expected."""
    attention, problems = tables.attention, []
    for key in (*tables.sites, DEFAULT):
        if key in attention and not is_normalizer(attention[key]):
            problems.append(
                f"attention.{key}={attention[key]}: expected a name, or a list with a name per layer, such as "
                "[dnas,softmax]"
            )
    for site in tables.sites:
        scorer, priors = attention["scorer"].get(site, "scaled_dot"), attention["prior"].get(site, [])
        if not isinstance(scorer, str):
            problems.append(f"attention.scorer.{site}={scorer}: expected a name")
        for table in ("bank", "gate"):
            if not isinstance(name := attention[table].get(site), str | None):
                problems.append(f"attention.{table}.{site}={name}: expected a name, or null for no {table}")
        for table in SWITCHES:
            if not isinstance(value := attention[table].get(site), bool | None):
                problems.append(f"attention.{table}.{site}={value}: allowed: true, false")
        if not is_names(priors):
            problems.append(f"attention.prior.{site}={priors}: expected a list of names, such as [t5]")
        elif priors and len({*map(short_name, priors)}) < len(priors):
            problems.append(f"attention.prior.{site}={priors}: expected each name once")
    for name, options in attention["options"].items():
        if not isinstance(options, dict):
            problems.append(f"attention.options.{name}={options}: expected its options, such as {{start: 0.3}}")
    return problems


def unknown_sites(tables: "AttentionTables") -> Iterator[str]:
    """Typed sites that the model does not have."""
    sites = tables.sites
    for table in ("", *SITE_TABLES):
        for site in tables.attention[table] if table else tables.attention:
            key = f"attention.{table}.{site}" if table else f"attention.{site}"
            is_site = table or site not in (*TABLES, DEFAULT)
            if is_site and site not in sites and tables.was_typed(key):
                has = f"it has {', '.join(sites)}" if sites else "it has none with these settings"
                yield f"{key}: the model has no such site; {has}.{nearest(site, sites)}"


def missing_sites(tables: "AttentionTables") -> list[str]:
    """Sites of the model that are not set."""
    absent = [] if DEFAULT in tables.attention else [site for site in tables.sites if site not in tables.attention]
    return [f"attention.{site}: missing; set it, or set attention.{DEFAULT} for all sites" for site in absent]


def part_problems(tables: "AttentionTables") -> Iterator[str]:
    """Parts that cannot be built, or that cannot be used at the site where they are set."""
    attention = tables.attention
    for name in dict.fromkeys(normalizers_of(attention.get(DEFAULT, []))):
        yield from problems_of(tables, "normalizer", f"attention.{DEFAULT}={name}", name)
    for site, autoregressive in tables.sites.items():
        for name in dict.fromkeys(normalizers_of(attention.get(site, []))):
            yield from problems_of(tables, "normalizer", f"attention.{site}={name}", name, autoregressive)
        for name in attention["prior"].get(site, []):
            yield from problems_of(tables, "prior", f"attention.prior.{site}={name}", name)
        name = attention["scorer"].get(site, "scaled_dot")
        yield from problems_of(tables, "scorer", f"attention.scorer.{site}={name}", name)


def problems_of(
    tables: "AttentionTables", kind: str, key: str, name: str, autoregressive: bool = False
) -> Iterator[str]:
    """Reasons why a part cannot be used at a site."""
    try:
        part = tables.build(kind, name)
    except ValueError as error:
        yield problem_of_part(key, name, tables.attention, error)
        return
    if kind == "normalizer" and not part.differentiable:
        yield f"{key}: {name} has no gradient, so a model cannot be trained with it"
    if kind == "normalizer" and autoregressive and part.couples_queries == "all":
        yield f"{key}: {leak_message(name)}"


def default_problems(tables: "AttentionTables") -> Iterator[str]:
    """A default that has no effect."""
    attention, sites = tables.attention, tables.sites
    if DEFAULT not in attention or not sites:
        return
    left = [site for site in sites if site not in attention]
    key = f"attention.{DEFAULT}={as_typed(attention[DEFAULT])}"
    if not left:
        if tables.typed is not None and tables.was_typed(f"attention.{DEFAULT}"):
            yield f"{key}: has no effect, because every site of the model is set ({', '.join(sites)})"
        return
    default = [name for name in dict.fromkeys(normalizers_of(attention[DEFAULT])) if name != "softmax"]
    used = {name for value in tables.at_sites.values() for name in normalizers_of(value)} if default else set()
    if default and used.isdisjoint(default):
        instead = [f"{name}_prefix" for name in default if f"{name}_prefix" in NORMALIZERS]
        instead.append("attention=softmax with attention.<site>=<normalizer>")
        yield (
            f"{key}: no site uses it. It couples queries and would leak the future at the autoregressive sites that "
            f"are not set ({', '.join(left)}); use {', or '.join(instead)}"
        )


def layer_problems(tables: "AttentionTables") -> Iterator[str]:
    """Lists whose length is not the number of layers of their site."""
    if (layers := tables.layers) is None:
        return
    for site, value in tables.at_sites.items():
        if isinstance(value, str):
            continue
        key = f"attention.{site if site in tables.attention else DEFAULT}"
        if site not in layers:
            yield f"{key}={as_typed(value)}: the model does not say how many layers {site} has; set one normalizer"
        elif type(layers[site]) is int and len(value) != layers[site]:
            where = "" if site in tables.attention else f" at {site}"
            yield f"{key}: {counted(len(value), 'normalizer')} for {counted(layers[site], 'layer')}{where}"


def as_typed(value: str | list[str]) -> str:
    """The normalizers of a site in the syntax of a command-line argument: 'dnas' or '[dnas,softmax]'."""
    return value if isinstance(value, str) else f"[{','.join(value)}]"


def unused_tables(tables: "AttentionTables") -> Iterator[str]:
    """Tables of the file that the user chose with `attention=` that name sites, but none of the model's; and the
    normalizers of a file that leaves a model as it is, with softmax everywhere."""
    if not (tables.typed and "attention" in tables.typed and tables.sites):
        return
    sites = ", ".join(tables.sites)
    named = {table: [site for site, it in tables.attention[table].items() if it] for table in SITE_TABLES}
    for table, of_table in named.items():
        if of_table and tables.sites.keys().isdisjoint(of_table):
            where = f"it is set for {', '.join(of_table)}, and the model has only {sites}"
            yield f"attention.{table}: has no effect, because {where}"
    used = {name for value in tables.at_sites.values() for name in normalizers_of(value)}
    of_sites = any(not tables.sites.keys().isdisjoint(it) for it in named.values())
    if used != {"softmax"} or of_sites or any(tables.was_typed(f"attention.{site}") for site in tables.sites):
        return
    for key, value in tables.attention.items():
        if key in (*TABLES, *tables.sites) or not is_normalizer(value) or {*normalizers_of(value)} == {"softmax"}:
            continue
        if key != DEFAULT:
            yield f"attention.{key}={as_typed(value)}: has no effect, because the model has only {sites}"
        elif tables.sites.keys() <= tables.attention.keys():
            yield f"attention.{key}={as_typed(value)}: has no effect, because softmax is set for {sites}"


def unused_options(tables: "AttentionTables") -> Iterator[str]:
    """Options that were typed for a part that no site uses, or set in a file for a part that the file does not name."""
    options = tables.attention["options"]
    used = names_in(tables.resolved) if options else set()
    named = names_in(tables.attention) if options else set()
    for name in options:
        if name not in used and (name not in named or tables.was_typed(f"attention.options.{name}")):
            yield (
                f"attention.options.{name}: has no effect, because no site uses {name!r}; in use: "
                f"{', '.join(sorted(used)) or 'nothing'}.{nearest(name, used)}"
            )


def leak_message(name: str) -> str:
    """Why a normalizer that couples all queries is not accepted at an autoregressive site, and which ones to use."""
    safe = ["softmax"] + [f"{name}_prefix"] * (f"{name}_prefix" in NORMALIZERS)
    return f"{name} couples queries and would leak the future at an autoregressive site; use {' or '.join(safe)}"
