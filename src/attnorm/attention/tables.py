"""The form of attention tables: which tables there are, and which values they hold.

The tables say which normalizer, priors and scorer each site of a model uses. A site is a place with attention, such as
"encoder":

    {"_default_": "dnas", "cross": ["dnas_prefix", "softmax"],
     "prior": {"encoder": ["t5"]}, "scorer": {"cross": "bilinear"}, "bank": {}, "gate": {"encoder": "headwise"},
     "exclusive": {}, "differential": {"encoder": True}, "laser": {}, "options": {"t5": {"buckets": 64}}}

A site maps to a normalizer, or to a list with one normalizer per layer. `_default_` applies to the sites that are not
set. The other tables need not contain every site. The keys of `options` are the names of parts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from attnorm.attention.layer_options import LAYER_OPTIONS
from attnorm.attention.names import normalizers_of
from attnorm.imports import nearest, short_name

DEFAULT = "_default_"
SWITCHES = tuple(table for table in LAYER_OPTIONS if table != "gate")  # on or off
BY_SITE = ("prior", "scorer", "bank", *LAYER_OPTIONS)  # the tables other than that of the normalizers
TABLES = (*BY_SITE, "options")
NORMALIZERS_OF_SITE = "expected a name, or a list with a name per layer, such as [dnas,softmax]"
Rule = tuple[bool, str, str]  # what must not be, the key of the setting, and the reason


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


def broken(rules: Iterable[Rule]) -> list[str]:
    """The rules that do not hold, as messages for the user."""
    problems = []
    for is_broken, key, reason in rules:
        if is_broken:
            problems.append(f"{key}: {reason}")
    return problems


def name_rules(
    tables: Mapping[str, Any], sites: Mapping[str, bool], was_typed: Callable[[str], bool]
) -> Iterator[Rule]:
    """The sites that were typed are sites of the model, all of which are set."""
    has = f"it has {', '.join(sites)}" if sites else "it has none with these settings"
    named = [(f"attention.{name}", name) for name in tables if name not in (*TABLES, DEFAULT)]
    for table in BY_SITE:
        of_table = tables[table] if isinstance(tables[table], dict) else ()
        named += [(f"attention.{table}.{name}", name) for name in of_table]
    for key, name in named:
        unknown = name not in sites and was_typed(key)
        yield unknown, key, f"the model has no such site; {has}.{nearest(name, sites) if unknown else ''}"
    for name in sites:
        missing = name not in tables and DEFAULT not in tables
        yield missing, f"attention.{name}", f"missing; set it, or set attention.{DEFAULT} for all sites"


def value_rules(tables: Mapping[str, Any], sites: Mapping[str, bool]) -> Iterator[Rule]:
    """The values are of the right kind; all tables but that of the normalizers are mappings."""
    for name in (*sites, DEFAULT):
        value = tables.get(name, "softmax")
        yield not is_normalizer(value), f"attention.{name}={value}", NORMALIZERS_OF_SITE
    for table, (content, example, is_allowed, allowed) in ENTRIES.items():
        if not isinstance(tables[table], dict):
            yield True, f"attention.{table}={tables[table]}", f"expected {content}, such as {example}"
            continue
        for name, value in tables[table].items():
            of_model, key = table == "options" or name in (*sites, DEFAULT), f"attention.{table}.{name}={value}"
            yield of_model and not is_allowed(value), key, allowed
            again = of_model and table == "prior" and are_names(value) and len({*map(short_name, value)}) < len(value)
            yield again, key, "expected each name once"


def names_in(tables: Mapping[str, Any]) -> set[str]:
    """The names under which `options` lists the parts in the tables, also at sites that the model does not have."""
    names: list[Any] = [name for table in ("scorer", "bank", "gate") for name in tables.get(table, {}).values()]
    for key, value in tables.items():
        if key not in TABLES and is_normalizer(value):
            names += normalizers_of(value)
    for priors in tables["prior"].values():
        names += priors if isinstance(priors, list) else []
    return {short_name(name) for name in names if isinstance(name, str)}
