"""From names to modules: `build_normalizer`, and the parts that the attention tables of a model name."""

import re
from typing import Any

from torch import nn

from attnorm.attention.normalizers.base import Normalizer
from attnorm.attention.priors import Sum
from attnorm.attention.scorers import Scorer
from attnorm.imports import construct, find, option_names

NORMALIZERS = {
    "softmax": "attnorm.attention.normalizers.softmax:Softmax",
    "dnas": "attnorm.attention.normalizers.dnas:DNAS",
    "hnas": "attnorm.attention.normalizers.hnas:HNAS",
    "dnas_prefix": "attnorm.attention.normalizers.prefix:DNASPrefix",
    "hnas_prefix": "attnorm.attention.normalizers.prefix:HNASPrefix",
    "sinkhorn": "attnorm.attention.normalizers.sinkhorn:Sinkhorn",
    "ot": "attnorm.attention.normalizers.ot:OptimalTransport",
    "fenchel": "attnorm.attention.normalizers.fenchel:Fenchel",
    "sparsemax": "attnorm.attention.normalizers.entmax:Sparsemax",
    "entmax": "attnorm.attention.normalizers.entmax:Entmax",
    "fusedmax": "attnorm.attention.normalizers.fusedmax:Fusedmax",
    "constrained_softmax": "attnorm.attention.normalizers.constrained:ConstrainedSoftmax",
    "constrained_sparsemax": "attnorm.attention.normalizers.constrained:ConstrainedSparsemax",
    "argmax": "attnorm.attention.normalizers.argmax:Argmax",
}
PRIORS = {
    "uniform": "attnorm.attention.priors:Uniform",
    "t5": "attnorm.attention.priors:T5",
    "alibi": "attnorm.attention.priors:Alibi",
    "learned": "attnorm.attention.priors:Learned",
    "content": "attnorm.attention.priors:Content",
}
SCORERS = {
    "scaled_dot": "attnorm.attention.scorers:ScaledDot",
    "dot": "attnorm.attention.scorers:Dot",
    "bilinear": "attnorm.attention.scorers:Bilinear",
    "additive": "attnorm.attention.scorers:Additive",
    "gaussian": "attnorm.attention.scorers:Gaussian",
}
REPEATED = re.compile(r"(.+?) ?\* ?([1-9]\d{0,3})")  # "hnas*6"


def build_normalizer(name: str, **options: Any) -> Normalizer:
    """A normalizer by its name (a key of NORMALIZERS) or by a dotted path 'package.module:Class'.

    Raises ValueError for an unknown name or option, listing the allowed ones and the nearest.
    """
    return build("normalizer", name, options)


def build_prior(name: str, **options: Any) -> nn.Module:
    """A prior by its name (a key of PRIORS) or dotted path; ValueError as `build_normalizer`."""
    return build("prior", name, options)


def build_scorer(name: str, **options: Any) -> Scorer:
    """A scorer by its name (a key of SCORERS) or dotted path; ValueError as `build_normalizer`."""
    return build("scorer", name, options)


PARTS = {  # what a site consists of: the names there are, and the class that the one behind a name extends
    "normalizer": (NORMALIZERS, Normalizer),
    "prior": (PRIORS, nn.Module),
    "scorer": (SCORERS, Scorer),
}


def build(kind: str, name: str, options: dict[str, Any]) -> Any:
    """A part of a site by its name or dotted path."""
    table, base = PARTS[kind]
    return construct(kind, name, table, options, base)


SIZES = ("heads", "width", "positions")  # facts that an option may not contradict


def short_name(name: str) -> str:
    """The key of a part's options: its name, or the class name of a dotted path."""
    return str(name).rpartition(":")[2]


def build_part(kind: str, name: str, attention: dict[str, Any], **facts: Any) -> Any:
    """A normalizer, prior or scorer with the options typed for it and what only the model knows (`facts`), as far as
    its class takes that."""
    takes = option_names(find(kind, name, *PARTS[kind]))
    known = {fact: value for fact, value in facts.items() if fact in takes}
    typed = attention["options"].get(short_name(name)) or {}
    for size in SIZES:
        if size in known and size in typed:
            raise ValueError(f"{size}={typed[size]!r}: not an option here, the model says it")
    return build(kind, name, {**known, **typed})


def normalizers_of(value: str | list[str]) -> list[str]:
    """The normalizers that a site is set to: one name, or one per layer; "hnas*6" stands for six layers of hnas."""
    if isinstance(value, str):
        return [value]
    names: list[str] = []
    for item in value:
        found = REPEATED.fullmatch(item)
        names += [found[1]] * int(found[2]) if found else [item]
    return names


def build_site_normalizer(attention: dict, site: str, heads: int, layer: int = 0) -> Normalizer:
    """The normalizer of one layer at a site, from resolved attention tables.

    layer: the number of the layer at this site, from 0. It chooses from a list of normalizers.
    """
    names = normalizers_of(attention[site])
    name = names[0] if isinstance(attention[site], str) else names[layer]
    return build_part("normalizer", name, attention, heads=heads)


def build_site_prior(
    attention: dict, site: str, *, heads: int, bidirectional: bool, positions: int, width: int
) -> Sum | None:
    """The prior of a site, shared by all layers of its stack; None without one.

    positions: how many positions the site's keys can have; width: of the states behind them.
    """
    facts = {"heads": heads, "bidirectional": bidirectional, "positions": positions, "width": width}
    names = attention["prior"].get(site, [])
    # by name, so that a prior starts the same whichever others are there
    return Sum({short_name(name): build_part("prior", name, attention, **facts) for name in names}) if names else None


def build_site_scorer(attention: dict, site: str, heads: int, width: int) -> Scorer:
    """The scorer of one layer at a site; width: of a head."""
    return build_part("scorer", attention["scorer"].get(site, "scaled_dot"), attention, heads=heads, width=width)
