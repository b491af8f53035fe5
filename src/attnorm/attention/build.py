"""From names to modules: `build_normalizer`, and the attention tables of a whole model."""

from typing import Any

from torch import nn

from attnorm.attention.normalizers.base import Normalizer
from attnorm.attention.priors import Sum
from attnorm.attention.scorers import Scorer
from attnorm.imports import construct, find, nearest, option_names

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
TABLES = ("prior", "scorer", "options")


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


def build(kind: str, name: str, options: dict) -> nn.Module:
    """A part of a site by its name or dotted path."""
    table, base = PARTS[kind]
    return construct(kind, name, table, options, base)


SIZES = ("heads", "width", "positions")  # facts that an option may not contradict


def short_name(name: str) -> str:
    """The key of a part's options: its name, or the class name of a dotted path."""
    return str(name).rpartition(":")[2]


def build_part(kind: str, name: str, attention: dict, **facts: Any) -> nn.Module:
    """A normalizer, prior or scorer with the options typed for it and what only the model knows (`facts`), as far as
    its class takes that."""
    takes = option_names(find(kind, name, *PARTS[kind]))
    known = {fact: value for fact, value in facts.items() if fact in takes}
    typed = attention["options"].get(short_name(name)) or {}
    for size in SIZES:
        if size in known and size in typed:
            raise ValueError(f"{size}={typed[size]!r}: not an option here, the model says it")
    return build(kind, name, {**known, **typed})


def build_site_normalizer(attention: dict, site: str, heads: int) -> Normalizer:
    """The normalizer of one layer at a site, from the attention tables (see conf/attention/softmax.yaml)."""
    return build_part("normalizer", attention[site], attention, heads=heads)


def build_site_prior(
    attention: dict, site: str, *, heads: int, bidirectional: bool, positions: int, width: int
) -> nn.Module | None:
    """The prior of a site, shared by all layers of its stack; None without one.

    positions: how many positions the site's keys can have; width: of the states behind them.
    """
    facts = {"heads": heads, "bidirectional": bidirectional, "positions": positions, "width": width}
    names = attention["prior"][site]
    # by name, so that a prior starts the same whichever others are there
    return Sum({short_name(name): build_part("prior", name, attention, **facts) for name in names}) if names else None


def build_site_scorer(attention: dict, site: str, heads: int, width: int) -> Scorer:
    """The scorer of one layer at a site; width: of a head."""
    return build_part("scorer", attention["scorer"][site], attention, heads=heads, width=width)


SMALL = {  # facts of the smallest model, enough to see whether its parts can be built
    "normalizer": {"heads": 1},
    "prior": {"heads": 1, "bidirectional": True, "positions": 1, "width": 1},
    "scorer": {"heads": 1, "width": 1},
}


def check_attention(attention: dict, sites: dict[str, bool]) -> list[str]:
    """Every problem of the attention tables, in the user's words; empty when a model with these sites can be built.

    sites: the model's sites, each with whether it is autoregressive.
    """
    problems = [
        f"attention.{key}: the model has no such site; it has {', '.join(sites)}." + nearest(key, sites)
        for key in attention
        if key not in sites and key not in TABLES
    ]
    for table in ("prior", "scorer"):
        keys = [key for key in attention[table] if key not in sites]
        problems += [f"attention.{table}.{key}: the model has no such site." + nearest(key, sites) for key in keys]
    tables = {"": attention, "prior.": attention["prior"], "scorer.": attention["scorer"]}
    absent = [f"{prefix}{site}" for prefix, table in tables.items() for site in sites if site not in table]
    problems += [f"attention.{key}: missing, the model has this site" for key in absent] or malformed(attention, sites)
    if problems:
        return problems
    used = set()
    for site, autoregressive in sites.items():
        choices = [("normalizer", f"attention.{site}", attention[site])]
        choices += [("prior", f"attention.prior.{site}", name) for name in attention["prior"][site]]
        choices += [("scorer", f"attention.scorer.{site}", attention["scorer"][site])]
        for kind, key, name in choices:
            used.add(short_name(name))
            try:
                part = build_part(kind, name, attention, **SMALL[kind])
            except ValueError as error:
                problems.append(f"{key}={name}: {error}")
                continue
            if kind == "normalizer" and not part.differentiable:
                problems.append(f"{key}={name}: {name} has no gradient, so nothing can be trained through it")
            if kind == "normalizer" and autoregressive and part.couples_queries == "all":
                problems.append(f"{key}={name}: {leak_message(name)}")
    problems += [
        f"attention.options.{name}: no site uses {name!r}, so nothing would read it; in use: "
        f"{', '.join(sorted(used))}." + nearest(name, used)
        for name in attention["options"]
        if name not in used
    ]
    return problems


def malformed(attention: dict, sites: dict[str, bool]) -> list[str]:
    """Values of the tables that are of another kind than a name, a list of names, or options by name."""
    problems = []
    for site in sites:
        for key, name in ((site, attention[site]), (f"scorer.{site}", attention["scorer"][site])):
            if not isinstance(name, str):
                problems.append(f"attention.{key}={name}: expected a name")
        names = attention["prior"][site]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            problems.append(f"attention.prior.{site}={names}: expected a list of names, such as [t5]")
        elif len({short_name(name) for name in names}) < len(names):
            problems.append(f"attention.prior.{site}={names}: expected each name once")
    options = attention["options"]
    if not isinstance(options, dict):
        return [*problems, f"attention.options={options}: expected options by name, such as {{hnas: {{start: 0.3}}}}"]
    for name, typed in options.items():
        if not isinstance(typed, dict):
            problems.append(f"attention.options.{name}={typed}: expected its options, such as {{start: 0.3}}")
    return problems


def leak_message(name: str) -> str:
    """Why a normalizer that couples all queries is refused at an autoregressive site, and what to use."""
    safe = ["softmax"] + [f"{name}_prefix"] * (f"{name}_prefix" in NORMALIZERS)
    return f"{name} couples queries and would leak the future at an autoregressive site; use {' or '.join(safe)}"


def attention_label(attention: dict, sites: dict[str, bool]) -> str:
    """The name a run is filed under, by what was resolved: the first site's normalizer, then each other site that is
    not plain softmax, then priors and scorers: 'hnas', 'softmax_cross-dnas_prefix', 'dnas_prior-encoder-t5'."""
    first, *others = sites
    prior, scorer = attention["prior"], attention["scorer"]
    parts = [short_name(attention[first])]
    parts += [f"{site}-{short_name(attention[site])}" for site in others if attention[site] != "softmax"]
    parts += [f"prior-{site}-{'+'.join(map(short_name, prior[site]))}" for site in sites if prior[site]]
    parts += [f"scorer-{site}-{short_name(scorer[site])}" for site in sites if scorer[site] != "scaled_dot"]
    return "_".join(parts)
