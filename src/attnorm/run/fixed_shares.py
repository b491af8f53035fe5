"""Shares of a mixture that an earlier run has learned, as fixed shares of a new run: `attention.options.<name>.fixed`.

The value of this option may be a run folder. It is replaced by the shares that the run had learned at its last update,
{site: [value per layer]}, so that the new run records the numbers and does not depend on the folder.
"""

from collections.abc import Mapping
from typing import Any

from attnorm.attention.names import build, normalizers_of
from attnorm.attention.site import MIXTURES
from attnorm.attention.tables import names_in
from attnorm.errors import ConfigError, Problem
from attnorm.imports import short_name
from attnorm.run.folder import CONFIG
from attnorm.run.run import Run

Rows = list[dict[str, str]]
Value = float | list  # of one layer: a share, or the shares of the members; or a list with one of these per head


def with_fixed_shares(attention: Mapping[str, Any]) -> dict[str, Any]:
    """The attention tables with the learned shares of a run in place of its folder.

    Raises ConfigError for a folder that is not a run's, or whose run did not learn such shares.
    """
    if not isinstance(options := attention.get("options", {}), dict):  # which is reported by the check of the tables
        return dict(attention)
    for name, given in (options := dict(options)).items():
        folder = given.get("fixed") if name in MIXTURES and isinstance(given, dict) else None
        if isinstance(folder, str):
            try:
                options[name] = {**given, "fixed": learned_shares(Run(folder), name, given)}
            except ValueError as error:
                raise ConfigError([Problem(f"attention.options.{name}.fixed", str(error), folder)]) from error
    return {**attention, "options": options}


def learned_shares(run: Run, name: str, options: Mapping[str, Any]) -> dict[str, list[Value | None]]:
    """The shares that the normalizer `name` had at every site and layer of a run when it ended.

    options: those of the new run, which must mix the same members. Raises ValueError if the run has no such shares.
    """
    if not run.exists:
        raise ValueError(f"no {CONFIG} there, so it is not a run folder")
    attention = run.config["attention"]
    scalars = scalars_of(name, options)
    recorded = {scalar: run.rows(scalar) if scalar in run.learned_scalars else [] for scalar in scalars}
    if name in names_in(attention):
        check_same_members(name, options, attention["options"].get(name) or {})
    shares: dict[str, list[Value | None]] = {}
    for layer in {row["layer"]: None for scalar in scalars for row in recorded[scalar]}:
        words = layer.split("/")  # "decoder/1/cross" is layer 1 of "cross" in a model that has such a site
        site = next((word for word in reversed(words) if not word.isdigit() and word in attention), None)
        if site is None:
            raise ValueError(f"its configuration has no site for the layer {layer}")
        number = next((int(word) for word in words if word.isdigit()), 0)
        names = normalizers_of(attention[site])
        if short_name(names[0] if len(names) == 1 else names[number]) != name:
            continue
        values = shares.setdefault(site, [])
        values += [None] * (number + 1 - len(values))
        if values[number] is not None:
            raise ValueError(f"several attentions of one layer at {site} have shares of their own")
        values[number] = at_the_end([of_layer(recorded[scalar], layer) for scalar in scalars], of_members=name == "mix")
    if not shares:
        files = ", ".join(f"{scalar}.csv" for scalar in scalars)
        raise ValueError(f"the run has no learned shares of {name} ({files})")
    return shares


def scalars_of(name: str, options: Mapping[str, Any]) -> list[str]:
    """The learned scalars of a mixture: one per member, or the hybrid weight. Raises ValueError for wrong members."""
    if name != "mix":  # a single hybrid weight
        return ["hybrid_weights"]
    from attnorm.attention.normalizers.mix import MEMBERS, build_members

    return [f"mix_{label}" for label in build_members(options.get("members", MEMBERS), build, heads=1, width=1)]


def check_same_members(name: str, options: Mapping[str, Any], of_run: Mapping[str, Any]) -> None:
    """Raises ValueError if two mixtures have other members, or the same ones with other options."""
    scalars, scalars_of_run = scalars_of(name, options), scalars_of(name, of_run)
    if scalars != scalars_of_run:
        raise ValueError(f"the run mixes {', '.join(scalars_of_run)}, but this one mixes {', '.join(scalars)}")
    if name == "mix":  # the other mixtures have no options of members
        from attnorm.attention.normalizers.mix import MEMBERS

        for member, other in zip(*(each.get("members", MEMBERS) for each in (options, of_run)), strict=True):
            now, before = ({"name": each} if isinstance(each, str) else dict(each) for each in (member, other))
            if now != before:
                raise ValueError(f"the run mixes {before}, but this one mixes {now}")


def of_layer(rows: Rows, layer: str) -> list[float]:
    """The values of a layer at the last recorded update, one or one per head."""
    mine = [row for row in rows if row["layer"] == layer]
    last = max(int(row["step"]) for row in mine)
    return [float(row["value"]) for row in mine if int(row["step"]) == last]


def at_the_end(scalars: list[list[float]], of_members: bool) -> Value:
    """The value of a layer from the values of each of its scalars, by head."""
    heads: list[Any] = [list(values) for values in zip(*scalars, strict=True)]  # for each head, one value per scalar
    if not of_members:
        heads = [value for [value] in heads]
    return heads[0] if len(heads) == 1 else heads
