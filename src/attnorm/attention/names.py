"""Builds modules from names: `build_normalizer`, and the parts that the attention tables of a model name."""

import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from attnorm.attention.layer_options import LAYER_OPTIONS, LayerOptions
from attnorm.attention.multihead import MultiHeadAttention
from attnorm.attention.normalizers.base import Normalizer
from attnorm.attention.priors import Sum
from attnorm.attention.scorers import Scorer
from attnorm.imports import find, nearest, parameters

NORMALIZERS = {
    "softmax": "attnorm.attention.normalizers.softmax.Softmax",
    "dnas": "attnorm.attention.normalizers.dnas.DNAS",
    "hnas": "attnorm.attention.normalizers.hnas.HNAS",
    "dnas_prefix": "attnorm.attention.normalizers.prefix.DNASPrefix",
    "hnas_prefix": "attnorm.attention.normalizers.prefix.HNASPrefix",
    "sinkhorn": "attnorm.attention.normalizers.sinkhorn.Sinkhorn",
    "lotformer": "attnorm.attention.normalizers.lotformer.LOTFormer",
    "espformer": "attnorm.attention.normalizers.espformer.ESPFormer",
    "em_routing": "attnorm.attention.normalizers.em_routing.EMRouting",
    "ot": "attnorm.attention.normalizers.ot.OptimalTransport",
    "fenchel": "attnorm.attention.normalizers.fenchel.Fenchel",
    "sparsemax": "attnorm.attention.normalizers.entmax.Sparsemax",
    "entmax": "attnorm.attention.normalizers.entmax.Entmax",
    "asentmax": "attnorm.attention.normalizers.asentmax.ASEntmax",
    "forgetting": "attnorm.attention.normalizers.forgetting.Forgetting",
    "stick_breaking": "attnorm.attention.normalizers.stick_breaking.StickBreaking",
    "selective": "attnorm.attention.normalizers.selective.Selective",
    "fusedmax": "attnorm.attention.normalizers.fusedmax.Fusedmax",
    "constrained_softmax": "attnorm.attention.normalizers.constrained.ConstrainedSoftmax",
    "constrained_sparsemax": "attnorm.attention.normalizers.constrained.ConstrainedSparsemax",
    "fertility_softmax": "attnorm.attention.normalizers.fertility.FertilitySoftmax",
    "fertility_sparsemax": "attnorm.attention.normalizers.fertility.FertilitySparsemax",
    "argmax": "attnorm.attention.normalizers.argmax.Argmax",
    "continuous": "attnorm.attention.normalizers.continuous.Continuous",
    "mix": "attnorm.attention.normalizers.mix.Mix",
    "sink": "attnorm.attention.normalizers.sink.Sink",
    "off_by_one": "attnorm.attention.normalizers.sink.OffByOne",
    "ssmax": "attnorm.attention.normalizers.ssmax.SSMax",
    "sigmoid": "attnorm.attention.normalizers.sigmoid.Sigmoid",
    "relu": "attnorm.attention.normalizers.relu.ReLU",
    "softpick": "attnorm.attention.normalizers.softpick.Softpick",
    "dnas_slack": "attnorm.attention.normalizers.dnas_slack.DNASSlack",
    "dnas_slack_prefix": "attnorm.attention.normalizers.dnas_slack.DNASSlackPrefix",
    "uniform": "attnorm.attention.normalizers.null.UniformAttention",
    "none": "attnorm.attention.normalizers.null.NoAttention",
}
PRIORS = {
    "uniform": "attnorm.attention.priors.Uniform",
    "t5": "attnorm.attention.priors.T5",
    "alibi": "attnorm.attention.priors.Alibi",
    "learned": "attnorm.attention.priors.Learned",
    "content": "attnorm.attention.priors.Content",
    "unmasked": "attnorm.attention.priors.Unmasked",
    "positional": "attnorm.attention.positional.Positional",
}
SCORERS = {
    "scaled_dot": "attnorm.attention.scorers.ScaledDot",
    "dot": "attnorm.attention.scorers.Dot",
    "length_dot": "attnorm.attention.scorers.LengthDot",
    "bilinear": "attnorm.attention.scorers.Bilinear",
    "additive": "attnorm.attention.scorers.Additive",
    "gaussian": "attnorm.attention.scorers.Gaussian",
    "qk_norm": "attnorm.attention.scorers.QKNorm",
    "softcap": "attnorm.attention.scorers.Softcap",
}
BANKS = {
    "templates": "attnorm.attention.banks.Templates",
    "vocabulary": "attnorm.attention.banks.Vocabulary",
}
GATES = {
    "headwise": "attnorm.attention.layer_options.Headwise",
    "elementwise": "attnorm.attention.layer_options.Elementwise",
}
REPEATED = re.compile(r"(.+?) ?\* ?([1-9]\d{0,3})")  # "hnas*6"


def build_normalizer(name: str, **options: Any) -> Normalizer:
    """Builds a normalizer from its name (a key of NORMALIZERS) or from a dotted path 'package.module.Class'.

    Raises ValueError for an unknown name or option. The message lists the allowed ones and the closest match.
    """
    return build("normalizer", name, options)


def name_of(normalizer: Normalizer) -> str:
    """The key of NORMALIZERS for the class of a normalizer, or the name of a class that is not in the table."""
    cls = type(normalizer)
    path = f"{cls.__module__}.{cls.__qualname__}"
    return next((name for name, other in NORMALIZERS.items() if other == path), cls.__name__)


def build_prior(name: str, **options: Any) -> nn.Module:
    """Builds a prior from its name (a key of PRIORS) or dotted path. Raises ValueError like `build_normalizer`."""
    return build("prior", name, options)


def build_scorer(name: str, **options: Any) -> Scorer:
    """Builds a scorer from its name (a key of SCORERS) or dotted path. Raises ValueError like `build_normalizer`."""
    return build("scorer", name, options)


PARTS = {  # the parts of a site: for each kind, the built-in names and the base class
    "normalizer": (NORMALIZERS, Normalizer),
    "prior": (PRIORS, nn.Module),
    "scorer": (SCORERS, Scorer),
    "bank": (BANKS, nn.Module),
    "gate": (GATES, nn.Module),
}


SIZES = ("heads", "width", "state_width", "positions", "place")  # facts that an option must not contradict


def build(kind: str, name: str, options: Mapping[str, Any], facts: Mapping[str, Any] | None = None) -> Any:
    """Builds a part of a site from its name or dotted path.

    facts: what only the model knows. A fact is passed only if the class takes it.

    Raises ValueError. If an option is wrong, its cause starts with this option.
    """
    cls = find(kind, name, *PARTS[kind])
    takes = parameters(cls)
    known = {fact: value for fact, value in facts.items() if fact in takes} if facts else {}
    try:
        for option, value in options.items():
            if option in known and option in SIZES:
                raise ValueError(f"{option}={value!r}: not an option here; the model determines it")
            if option not in takes:
                free = [other for other in takes if other not in known or other not in SIZES]
                allowed = f"allowed: {', '.join(free)}" if free else "it takes none"
                raise ValueError(f"{option}={value!r}: no such option; {allowed}.{nearest(option, free)}")
        given = known | dict(options)
        if missing := [option for option, it in takes.items() if it.default is it.empty and option not in given]:
            raise ValueError(f"needs a value for {', '.join(missing)}")
        return cls(**given)
    except ValueError as error:
        raise ValueError(f"{kind} {name!r}: {error}") from error


def short_name(name: str) -> str:
    """The key of a part's options: its name, or the class name if it is a dotted path."""
    return name.replace(":", ".").rpartition(".")[2]


def build_part(kind: str, name: str, attention: Mapping[str, Any], **facts: Any) -> Any:
    """Builds a normalizer, prior, scorer, bank or gate with the options that the attention tables have for it."""
    return build(kind, name, attention["options"].get(short_name(name)) or {}, facts)


def problem_of_part(key: str, name: str, attention: Mapping[str, Any], error: ValueError) -> str:
    """The problem that `build_part` raised, under the key of the option that is wrong, or else under `key`."""
    message = str(error.__cause__ or error)
    if message.partition("=")[0] in (attention["options"].get(short_name(name)) or {}):
        return f"attention.options.{short_name(name)}.{message}"
    return f"{key}: {error}"


def normalizers_of(value: str | list[str]) -> list[str]:
    """The list of normalizers at a site: one name, or one name per layer. "hnas*6" stands for six layers of hnas."""
    if isinstance(value, str):
        return [value]
    names: list[str] = []
    for item in value:
        found = REPEATED.fullmatch(item)
        names += [found[1]] * int(found[2]) if found else [item]
    return names


def build_site_attention(
    attention: dict, site: str, width: int, heads: int, layer: int = 0, dropout: float = 0.0
) -> MultiHeadAttention:
    """Builds the multi-head attention of one layer at a site, with its normalizer, scorer, bank and options.

    attention: resolved tables (`attnorm.attention.tables`).
    layer:     the index of the layer at this site, from 0.
    width, heads, dropout: as in `MultiHeadAttention`.
    """
    normalizer = build_site_normalizer(attention, site, heads, layer, width=width // heads, state_width=width)
    scorer = build_site_scorer(attention, site, heads, width // heads)
    bank = build_site_bank(attention, site, width, normalizer)
    return MultiHeadAttention(
        width, heads, normalizer, scorer, dropout, bank, build_site_options(attention, site, width, heads)
    )


def build_site_normalizer(
    attention: dict, site: str, heads: int, layer: int = 0, *, width: int | None = None, state_width: int | None = None
) -> Normalizer:
    """Builds the normalizer of one layer at a site, from resolved attention tables.

    layer: the index of the layer at this site, from 0. It selects from a list of normalizers.
    width, state_width: the width of a head and of the states, for normalizers with parameters that act on keys or on
           states.

    With differential attention, the normalizer has 2 `heads` heads.
    """
    names = normalizers_of(attention[site])
    name = names[0] if isinstance(attention[site], str) else names[layer]
    widths = {"width": width, "state_width": state_width}
    known = {fact: value for fact, value in widths.items() if value is not None}
    maps = maps_of(attention, site, heads)
    return build_part("normalizer", name, attention, heads=maps, place=(site, layer), **known)


def build_site_prior(
    attention: dict, site: str, *, heads: int, bidirectional: bool, positions: int, width: int
) -> Sum | None:
    """Builds the prior of a site, which all layers of its stack share. Returns None if the site has no prior.

    positions: the largest number of positions of the site's keys. width: the width of the states behind the keys.
    """
    facts = {"heads": heads, "bidirectional": bidirectional, "positions": positions, "width": width}
    names = attention["prior"].get(site, [])
    # keyed by name, so that the initial parameters of a prior do not depend on the other priors
    return Sum({short_name(name): build_part("prior", name, attention, **facts) for name in names}) if names else None


def build_site_bank(attention: dict, site: str, width: int, normalizer: Normalizer) -> nn.Module | None:
    """Builds the bank of one layer at a site, or returns None if there is none or the layer gives it no weight.

    width: the width of the states. normalizer: that of the layer.
    """
    name = attention.get("bank", {}).get(site)
    return build_part("bank", name, attention, width=width) if name is not None and normalizer.takes_bank else None


def build_site_scorer(attention: dict, site: str, heads: int, width: int) -> Scorer:
    """Builds the scorer of one layer at a site. width: the width of a head. See `build_site_normalizer`."""
    name = attention["scorer"].get(site, "scaled_dot")
    return build_part("scorer", name, attention, heads=maps_of(attention, site, heads), width=width)


def build_site_options(attention: dict, site: str, width: int, heads: int) -> LayerOptions | None:
    """Builds the options of one layer at a site; None if it has none. width: the width of the states."""
    chosen = {table: attention[table][site] for table in LAYER_OPTIONS if attention.get(table, {}).get(site)}
    if "gate" in chosen:
        chosen["gate"] = build_part("gate", chosen["gate"], attention, width=width, heads=heads)
    return LayerOptions(width, heads, **chosen) if chosen else None


def maps_of(attention: Mapping[str, Any], site: str, heads: int) -> int:
    """The number of attention maps of a layer at a site: with differential attention, each head has two."""
    return 2 * heads if attention.get("differential", {}).get(site) else heads
