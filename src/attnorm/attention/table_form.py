"""The form of attention tables: which tables there are, and which values they hold.

The tables say which normalizer, priors and scorer each site of a model uses. A site is a place with attention, such as
"encoder":

    {"_default_": "dnas", "cross": ["dnas_prefix", "softmax"],
     "prior": {"encoder": ["t5"]}, "scorer": {"cross": "bilinear"}, "bank": {}, "gate": {"encoder": "headwise"},
     "exclusive": {}, "differential": {"encoder": True}, "laser": {}, "options": {"t5": {"buckets": 64}}}

A site maps to a normalizer, or to a list with one normalizer per layer. `_default_` applies to the sites that are not
set. The other tables need not contain every site. The keys of `options` are the names of parts.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attnorm.attention.layer_options import LAYER_OPTIONS
from attnorm.attention.registry import normalizers_of
from attnorm.imports import nearest, short_name

DEFAULT = "_default_"
SWITCHES = tuple(table for table in LAYER_OPTIONS if table != "gate")  # on or off
BY_SITE = ("prior", "scorer", "bank", *LAYER_OPTIONS)  # the tables other than that of the normalizers
TABLES = (*BY_SITE, "options")


def are_names(value: Any) -> bool:
    return isinstance(value, list) and {*map(type, value)} <= {str}


def is_normalizer(value: Any) -> bool:
    """Whether a site can be set to this value: a name, or a nonempty list of names."""
    return isinstance(value, str) or (value != [] and are_names(value))


def is_name_or_null(value: Any) -> bool:
    return isinstance(value, str | None)


Entry = tuple[str, str, Callable[[Any], bool], str]  # of a table: its content, an example, and which values are allowed
SWITCH: Entry = (
    *("true or false by site", "{encoder: true}"),
    *(lambda value: isinstance(value, bool | None), "allowed: true, false"),
)
ENTRIES: dict[str, Entry] = {
    "prior": ("a prior by site", "{encoder: [t5]}", are_names, "expected a list of names, such as [t5]"),
    "scorer": ("a scorer by site", "{encoder: bilinear}", lambda value: isinstance(value, str), "expected a name"),
    "bank": ("a bank by site", "{encoder: vocabulary}", is_name_or_null, "expected a name, or null for no bank"),
    "gate": ("a gate by site", "{encoder: headwise}", is_name_or_null, "expected a name, or null for no gate"),
    **dict.fromkeys(SWITCHES, SWITCH),
    "options": (
        *("options by name", "{hnas: {start: 0.3}}"),
        *(lambda value: isinstance(value, dict), "expected its options, such as {start: 0.3}"),
    ),
}


def wrong_names(
    tables: Mapping[str, Any], sites: Mapping[str, bool], was_typed: Callable[[str], bool]
) -> Iterator[str]:
    """The problems with the names of sites: those that were typed are sites of the model, all of which are set."""
    has = f"it has {', '.join(sites)}" if sites else "it has none with these settings"
    named = [(f"attention.{name}", name) for name in tables if name not in (*TABLES, DEFAULT)]
    for table in BY_SITE:
        of_table = tables[table] if isinstance(tables[table], dict) else ()
        named += [(f"attention.{table}.{name}", name) for name in of_table]
    for key, name in named:
        if name not in sites and was_typed(key):
            yield f"{key}: the model has no such site; {has}.{nearest(name, sites)}"
    for name in sites:
        if name not in tables and DEFAULT not in tables:
            yield f"attention.{name}: missing; set it, or set attention.{DEFAULT} for all sites"


def wrong_values(tables: Mapping[str, Any], sites: Mapping[str, bool]) -> Iterator[str]:
    """The problems with values of another kind than `ENTRIES` allows."""
    for name in (*sites, DEFAULT):
        value = tables.get(name, "softmax")
        if not is_normalizer(value):
            yield f"attention.{name}={value}: expected a name, or a list with a name per layer, such as [dnas,softmax]"
    for table, (content, example, is_allowed, allowed) in ENTRIES.items():
        if not isinstance(tables[table], dict):
            yield f"attention.{table}={tables[table]}: expected {content}, such as {example}"
            continue
        for name, value in tables[table].items():
            if table != "options" and name not in (*sites, DEFAULT):
                continue
            if not is_allowed(value):
                yield f"attention.{table}.{name}={value}: {allowed}"
            elif table == "prior" and len({*map(short_name, value)}) < len(value):
                yield f"attention.{table}.{name}={value}: expected each name once"


def names_in(tables: Mapping[str, Any]) -> set[str]:
    """The names under which `options` lists the parts in the tables, also at sites that the model does not have."""
    names: list[Any] = [name for table in ("scorer", "bank", "gate") for name in tables.get(table, {}).values()]
    for key, value in tables.items():
        if key not in TABLES and is_normalizer(value):
            names += normalizers_of(value)
    for priors in tables["prior"].values():
        names += priors if isinstance(priors, list) else []
    return {short_name(name) for name in names if isinstance(name, str)}
