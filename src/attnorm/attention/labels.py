"""Short names for the attention of a model, derived from its tables (`attnorm.attention.tables`)."""

from collections.abc import Mapping
from itertools import groupby

from attnorm.attention.build import normalizers_of, short_name
from attnorm.attention.layer_options import LAYER_OPTIONS


def label_of(value: str | list[str]) -> str:
    """A short name for the normalizers of a site: 'hnas', or 'hnas*6+softmax*6' for a list with one name per layer."""
    runs = [(name, len(list(group))) for name, group in groupby(map(short_name, normalizers_of(value)))]
    return "+".join(name if count == 1 else f"{name}*{count}" for name, count in runs)


def attention_label(attention: dict, sites: Mapping[str, bool]) -> str:
    """The name of a run's attention, derived from the resolved tables and used in the path of the run folder.

    It starts with the normalizer of the first site, followed by each other site that is not plain softmax, or by 'all'
    if every site has that normalizer, then by the priors, banks, options of the layer and scorers. Examples: 'hnas',
    'entmax_all', 'softmax_cross-dnas_prefix', 'dnas_prior-encoder-t5', 'dnas_gate-encoder-headwise'.
    """
    first, *others = sites
    prior, scorer = attention["prior"], attention["scorer"]
    normalizers = {site: label_of(attention[site]) for site in sites}
    parts = [normalizers[first]]
    if others and {*normalizers.values()} == {normalizers[first]} != {"softmax"}:
        parts.append("all")
    else:
        parts += [f"{site}-{normalizers[site]}" for site in others if normalizers[site] != "softmax"]
    parts += [f"prior-{site}-{'+'.join(map(short_name, prior[site]))}" for site in sites if prior[site]]
    parts += [f"bank-{site}-{short_name(name)}" for site, name in attention.get("bank", {}).items()]
    for table in LAYER_OPTIONS:
        chosen = attention.get(table, {})
        parts += [f"{table}-{site}{'' if it is True else f'-{short_name(it)}'}" for site, it in chosen.items()]
    parts += [f"scorer-{site}-{short_name(scorer[site])}" for site in sites if scorer[site] != "scaled_dot"]
    return "_".join(parts)


def describe_sites(attention: dict, sites: Mapping[str, bool]) -> str:
    """The normalizer of every site, such as 'encoder hnas; decoder, cross softmax (autoregressive)'; '' without a site.

    attention: resolved tables. sites: as in `attention_label`.
    """
    groups: dict[str, list[str]] = {}
    for site, autoregressive in sites.items():
        groups.setdefault(f"{label_of(attention[site])}{' (autoregressive)' * autoregressive}", []).append(site)
    return "; ".join(f"{', '.join(names)} {label}" for label, names in groups.items())
