"""The names of the parts that a site can have, and building a part from its name and its options."""

import inspect
import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from attnorm.attention.normalizers.base import Normalizer
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
    "positional": "attnorm.attention.priors.Positional",
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
    return {other: name for name, other in NORMALIZERS.items()}.get(path, cls.__name__)


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


FIXED = ("heads", "width", "state_width", "positions", "place", "builder")  # facts that an option must not contradict


def build(kind: str, name: str, options: Mapping[str, Any], facts: Mapping[str, Any] | None = None) -> Any:
    """Builds a part of a site from its name or dotted path.

    facts: what only the model knows. A fact is passed only if the class takes it. A class that takes `builder` builds
           parts of its own with it: it is this function.

    Raises ValueError. If an option is wrong, its cause starts with this option.
    """
    cls = find(kind, name, *PARTS[kind])
    takes = parameters(cls)
    known = {fact: value for fact, value in {"builder": build, **(facts or {})}.items() if fact in takes}
    try:
        for option, value in options.items():
            if option in known and option in FIXED:
                raise ValueError(f"{option}={value!r}: not an option here; the model determines it")
            if option not in takes:
                free = [other for other in takes if other not in known or other not in FIXED]
                allowed = f"allowed: {', '.join(free)}" if free else "it takes none"
                raise ValueError(f"{option}={value!r}: no such option; {allowed}.{nearest(option, free)}")
        arguments = known | dict(options)
        empty = inspect.Parameter.empty
        if missing := [option for option in takes if takes[option].default is empty and option not in arguments]:
            raise ValueError(f"needs a value for {', '.join(missing)}")
        return cls(**arguments)
    except ValueError as error:
        raise ValueError(f"{kind} {name!r}: {error}") from error


def normalizers_of(value: str | list[str]) -> list[str]:
    """The list of normalizers at a site: one name, or one name per layer. "hnas*6" stands for six layers of hnas."""
    if isinstance(value, str):
        return [value]
    names: list[str] = []
    for item in value:
        repeated = REPEATED.fullmatch(item)
        names += [repeated[1]] * int(repeated[2]) if repeated else [item]
    return names
