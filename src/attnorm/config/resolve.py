"""What follows from a configuration: the attention sites of its model, and the label of its run."""

from torch import nn

from attnorm.attention.build import attention_label, short_name
from attnorm.imports import find
from attnorm.models import MODELS


def model_sites(cfg: dict) -> dict[str, bool]:
    """The attention sites that the configured model uses, each with whether it is autoregressive."""
    cls = find("model", cfg["model"]["name"], MODELS, nn.Module)
    return cls.sites_of(cfg["model"]) if hasattr(cls, "sites_of") else cls.sites


def run_label(cfg: dict) -> str:
    """The label that a run is filed under: its attention; without the attention that fuses, the fusion too."""
    sites, fusion = model_sites(cfg), cfg["model"].get("fusion", "attention")
    parts = [] if fusion == "attention" else [fusion]
    return "_".join(parts + ([attention_label(model_attention(cfg), sites)] if sites else []))


def other_sites(cfg: dict) -> set[str]:
    """The sites that only other models have: conf/attention/*.yaml names them all."""
    every = {site for name in MODELS for site in find("model", name, MODELS, nn.Module).sites}
    return every - model_sites(cfg).keys()


def model_attention(cfg: dict) -> dict:
    """The attention tables without the sites that only other models have."""
    others = other_sites(cfg)

    def kept(table: dict) -> dict:
        return {key: value for key, value in table.items() if key not in others}

    tables = {key: kept(cfg["attention"][key]) for key in ("prior", "scorer")}
    mine, theirs = kept(cfg["attention"]) | tables, names_in(cfg["attention"])
    options = cfg["attention"]["options"]
    if isinstance(options, dict):  # attention=hnas also sets options of hnas at a site that only other models have
        unread = theirs - names_in(mine)
        mine["options"] = {name: value for name, value in options.items() if name not in unread}
    return mine


def names_in(attention: dict) -> set[str]:
    """The names of the parts that stand in the attention tables."""
    scorers, priors = attention["scorer"].values(), attention["prior"].values()
    sites = [value for value in attention.values() if isinstance(value, str)]
    listed = [name for names in priors if isinstance(names, list) for name in names]
    return {short_name(name) for name in (*sites, *scorers, *listed)}


def record_of(cfg: dict) -> dict:
    """The configuration that a run keeps: only the attention sites that its model has."""
    return {**cfg, "attention": model_attention(cfg)}


def max_steps(cfg: dict) -> int | None:
    """The limit of updates: trainer.max_steps, or task.max_steps when the trainer has no limit at all."""
    trainer = cfg["trainer"]
    return trainer["max_steps"] or (None if trainer["max_epochs"] else cfg["task"]["max_steps"])
