"""The attention tables of a whole model: filling in defaults and finding problems.

The tables say which normalizer, priors and scorer each site of a model uses. A site is a place with attention, such as
"encoder":

    {"_default_": "dnas", "cross": ["dnas_prefix", "softmax"],
     "prior": {"encoder": ["t5"]}, "scorer": {"cross": "bilinear"}, "bank": {}, "options": {"t5": {"buckets": 64}}}

A site maps to a normalizer, or to a list with one normalizer per layer. `_default_` applies to the sites that are not
set. `prior`, `scorer` and `bank` need not contain every site. The keys of `options` are the names of parts.
`AttentionTables` reads such tables once: it finds all of their problems, and names every site explicitly. Models are
built from the resolved tables.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Any

from attnorm.attention.banks import bank_problems
from attnorm.attention.build import NORMALIZERS, build_part, normalizers_of, problem_of_part, short_name
from attnorm.attention.placement import placement_problems
from attnorm.imports import nearest

DEFAULT = "_default_"
TABLES = ("prior", "scorer", "bank", "options")
SMALL: dict[str, dict[str, Any]] = {  # facts of the smallest model, sufficient to check whether its parts can be built
    "normalizer": {"heads": 1, "width": 1, "place": None},
    "prior": {"heads": 1, "bidirectional": True, "positions": 1, "width": 1},
    "scorer": {"heads": 1, "width": 1},
    "bank": {"width": 1},
}


def resolve_attention(attention: Mapping, sites: Mapping[str, bool]) -> dict[str, Any]:
    """`AttentionTables.resolved`, for tables in which `check_attention` finds no problem."""
    return AttentionTables(attention, sites).resolved


def check_attention(
    attention: Mapping,
    sites: Mapping[str, bool],
    layers: Mapping[str, Any] | None = None,
    typed: Collection[str] | None = None,
    heads: Mapping[str, Any] | None = None,
) -> list[str]:
    """Returns all problems of the attention tables as messages for the user. The list is empty if a model can be built.

    The arguments are those of `AttentionTables`.
    """
    return AttentionTables(attention, sites, layers, typed, heads).problems


class AttentionTables:
    """The attention tables for a model with these sites. Each part that they name is built at most once.

    attention: the tables, as they were set.
    sites:  the model's sites, each with whether it is autoregressive.
    layers: the number of layers at each site, which the length of a list of normalizers must match. A number that is
            not an int is not compared. None means not known yet.
    typed:  the keys that the user typed, such as "attention.encoder". All other keys come from files that several
            models share, so a site that this model does not have is not a problem there. None means that all keys were
            typed.
    heads:  the number of heads at each site, which the numbers of values per head must match; as for `layers`.
    """

    def __init__(
        self,
        attention: Mapping,
        sites: Mapping[str, bool],
        layers: Mapping[str, Any] | None = None,
        typed: Collection[str] | None = None,
        heads: Mapping[str, Any] | None = None,
    ):
        self.attention: dict[str, Any] = {"prior": {}, "scorer": {}, "bank": {}, "options": {}, **attention}
        self.sites, self.layers, self.typed, self.heads = sites, layers, typed, heads
        self._built: dict[tuple[str, str], Any] = {}

    def build(self, kind: str, name: str) -> Any:
        """A part as in the smallest model. Raises ValueError if it cannot be built."""
        if (kind, name) not in self._built:
            try:
                self._built[kind, name] = build_part(kind, name, self.attention, **SMALL[kind])
            except ValueError as error:
                self._built[kind, name] = error
        part = self._built[kind, name]
        if isinstance(part, ValueError):
            raise part
        return part

    def normalizers(self, names: list[str]) -> list[Any]:
        """The normalizers with these names, each once, without those that cannot be built: those are problems of their
        own."""
        parts = []
        for name in dict.fromkeys(names):
            try:
                parts.append(self.build("normalizer", name))
            except ValueError:
                continue
        return parts

    # -------------------------------------------------------------------------------------- resolving

    @cached_property
    def at_sites(self) -> dict[str, str | list[str]]:
        """The normalizer of each site, or its list with one per layer, with the default filled in.

        At an autoregressive site, softmax replaces each normalizer of the default that couples all queries.
        """
        placed: dict[str, str | list[str]] = {}
        for site, autoregressive in self.sites.items():
            value = self.attention.get(site, self.attention.get(DEFAULT))
            if value is not None:
                names = normalizers_of(value)
                if site not in self.attention and autoregressive:
                    names = [self._without_leak(name) for name in names]
                    value = "softmax" if {*names} == {"softmax"} else value
                placed[site] = names[0] if isinstance(value, str) else names
        return placed

    def _without_leak(self, name: str) -> str:
        """The normalizer itself, or softmax in place of one that is not allowed at an autoregressive site."""
        return "softmax" if any(it.couples_queries == "all" for it in self.normalizers([name])) else name

    @cached_property
    def resolved(self) -> dict[str, Any]:
        """The tables with an explicit entry for every site of the model, and for no other site.

        A site that is not set gets `_default_`. A site without an entry in `prior` or `scorer` gets no prior, or the
        scaled dot product. Sites that the model does not have are removed, and so are options of parts that it does not
        use. Resolving the result again does not change it.
        """
        attention = self.attention
        tables: dict[str, Any] = {**self.at_sites, "prior": {}, "scorer": {}, "bank": {}}
        for site in self.sites:
            tables["prior"][site] = attention["prior"].get(site, [])
            tables["scorer"][site] = attention["scorer"].get(site, "scaled_dot")
            if attention["bank"].get(site) is not None:
                tables["bank"][site] = attention["bank"][site]
        used = names_in(tables)
        tables["options"] = {name: options for name, options in attention["options"].items() if name in used}
        if not tables["bank"]:
            del tables["bank"]
        return tables

    # -------------------------------------------------------------------------------------- checking

    @cached_property
    def problems(self) -> list[str]:
        """All problems, as messages for the user; empty if a model can be built."""
        if problems := malformed_tables(self.attention):
            return problems
        if problems := [*unknown_sites(self), *missing_sites(self), *malformed(self)]:
            return problems
        return [
            *dict.fromkeys(part_problems(self)),  # several sites may use the same wrong option
            *default_problems(self),
            *layer_problems(self),
            *placement_problems(self),
            *bank_problems(self),
            *unused_tables(self),
            *unused_options(self),
        ]

    def was_typed(self, key: str) -> bool:
        """Whether the user typed this key or a key below it."""
        typed = self.typed
        return typed is None or any(other == key or other.startswith(f"{key}.") for other in typed)


def names_in(tables: Mapping) -> set[str]:
    """The names under which `options` lists the parts in the tables, also at sites that the model does not have."""
    names: list[Any] = [*tables["scorer"].values(), *tables.get("bank", {}).values()]
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
        "options": "{hnas: {start: 0.3}}",
    }
    problems = []
    for table, example in examples.items():
        by = "options by name" if table == "options" else f"a {table} by site"
        if not isinstance(attention[table], dict):
            problems.append(f"attention.{table}={attention[table]}: expected {by}, such as {example}")
    return problems


def malformed(tables: AttentionTables) -> list[str]:
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
        if not isinstance(bank := attention["bank"].get(site), str | None):
            problems.append(f"attention.bank.{site}={bank}: expected a name, or null for no bank")
        if not is_names(priors):
            problems.append(f"attention.prior.{site}={priors}: expected a list of names, such as [t5]")
        elif priors and len({*map(short_name, priors)}) < len(priors):
            problems.append(f"attention.prior.{site}={priors}: expected each name once")
    for name, options in attention["options"].items():
        if not isinstance(options, dict):
            problems.append(f"attention.options.{name}={options}: expected its options, such as {{start: 0.3}}")
    return problems


def unknown_sites(tables: AttentionTables) -> Iterator[str]:
    """Typed sites that the model does not have."""
    sites = tables.sites
    for table in ("", "prior", "scorer", "bank"):
        for site in tables.attention[table] if table else tables.attention:
            key = f"attention.{table}.{site}" if table else f"attention.{site}"
            is_site = table or site not in (*TABLES, DEFAULT)
            if is_site and site not in sites and tables.was_typed(key):
                has = f"it has {', '.join(sites)}" if sites else "it has none with these settings"
                yield f"{key}: the model has no such site; {has}.{nearest(site, sites)}"


def missing_sites(tables: AttentionTables) -> list[str]:
    """Sites of the model that are not set."""
    absent = [] if DEFAULT in tables.attention else [site for site in tables.sites if site not in tables.attention]
    return [f"attention.{site}: missing; set it, or set attention.{DEFAULT} for all sites" for site in absent]


def part_problems(tables: AttentionTables) -> Iterator[str]:
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


def problems_of(tables: AttentionTables, kind: str, key: str, name: str, autoregressive: bool = False) -> Iterator[str]:
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


def default_problems(tables: AttentionTables) -> Iterator[str]:
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


def layer_problems(tables: AttentionTables) -> Iterator[str]:
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


def counted(number: int, what: str) -> str:
    """'1 layer', '2 layers'."""
    return f"{number} {what}{'s' * (number != 1)}"


def unused_tables(tables: AttentionTables) -> Iterator[str]:
    """Tables of the file that the user chose with `attention=` that name sites, but none of the model's."""
    for table in ("prior", "scorer", "bank") if tables.typed and "attention" in tables.typed else ():
        named = [site for site, value in tables.attention[table].items() if value]
        if named and tables.sites and tables.sites.keys().isdisjoint(named):
            has = f"the model has only {', '.join(tables.sites)}"
            yield f"attention.{table}: has no effect, because it is set for {', '.join(named)}, and {has}"


def unused_options(tables: AttentionTables) -> Iterator[str]:
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
