"""The attention tables of a whole model: filling in defaults and finding problems.

The tables say which normalizer, priors and scorer each site of a model uses. A site is a place with attention, such as
"encoder":

    {"_default_": "dnas", "cross": ["dnas_prefix", "softmax"],
     "prior": {"encoder": ["t5"]}, "scorer": {"cross": "bilinear"}, "bank": {}, "gate": {"encoder": "headwise"},
     "exclusive": {}, "differential": {"encoder": True}, "laser": {}, "options": {"t5": {"buckets": 64}}}

A site maps to a normalizer, or to a list with one normalizer per layer. `_default_` applies to the sites that are not
set. The other tables need not contain every site. The keys of `options` are the names of parts.
`AttentionTables` reads such tables once: it finds all of their problems, and names every site explicitly. Models are
built from the resolved tables.
"""

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

from attnorm.attention.banks import bank_problems
from attnorm.attention.build import build_part, normalizers_of
from attnorm.attention.layer_options import LAYER_OPTIONS
from attnorm.attention.placement import option_problems, placement_problems
from attnorm.attention.problems import (
    DEFAULT,
    TABLES,
    default_problems,
    layer_problems,
    malformed,
    malformed_tables,
    missing_sites,
    names_in,
    part_problems,
    unknown_sites,
    unused_options,
    unused_tables,
)

SMALL: dict[str, dict[str, Any]] = {  # facts of the smallest model, sufficient to check whether its parts can be built
    "normalizer": {"heads": 1, "width": 1, "state_width": 1, "place": None},
    "prior": {"heads": 1, "bidirectional": True, "positions": 1, "width": 1},
    "scorer": {"heads": 1, "width": 1},
    "bank": {"width": 1},
    "gate": {"width": 1, "heads": 1},
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
        self.attention: dict[str, Any] = {**{table: {} for table in TABLES}, **attention}
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
        scaled dot product. Of the other tables, only the entries that have an effect are kept. Sites that the model
        does not have are removed, and so are options of parts that it does not use. Resolving the result again does not
        change it.
        """
        attention = self.attention
        tables: dict[str, Any] = {**self.at_sites, "prior": {}, "scorer": {}}
        for site in self.sites:
            tables["prior"][site] = attention["prior"].get(site, [])
            tables["scorer"][site] = attention["scorer"].get(site, "scaled_dot")
        for table in ("bank", *LAYER_OPTIONS):
            of_table = attention[table]
            if of_table and (chosen := {site: of_table[site] for site in self.sites if of_table.get(site)}):
                tables[table] = chosen
        used = names_in(tables)
        tables["options"] = {name: options for name, options in attention["options"].items() if name in used}
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
            *option_problems(self),
            *unused_tables(self),
            *unused_options(self),
        ]

    def was_typed(self, key: str) -> bool:
        """Whether the user typed this key or a key below it."""
        typed = self.typed
        return typed is None or any(other == key or other.startswith(f"{key}.") for other in typed)
