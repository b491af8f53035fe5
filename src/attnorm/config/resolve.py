"""What follows from a configuration: the attention sites of its model, and the label of its run."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any

from torch import nn

from attnorm.attention.build import attention_label, short_name
from attnorm.config.choices import choices
from attnorm.errors import ConfigError
from attnorm.parts import class_of
from attnorm.tasks.task import DataConfig, Recipe, TaskConfig

GROUPS = (  # of keys that every run has
    *("task", "model", "attention", "data", "tokenizer", "optimizer", "scheduler"),
    *("trainer", "callbacks", "logger", "paths"),
)


def model_sites(cfg: dict) -> dict[str, bool]:
    """The attention sites that the configured model uses, each with whether it is autoregressive."""
    cls = class_of("model", cfg["model"], nn.Module)
    return cls.sites_of(cfg["model"]) if hasattr(cls, "sites_of") else cls.sites


def run_label(cfg: dict) -> str:
    """The label that a run is filed under: its attention; without the attention that fuses, the fusion too."""
    sites, fusion = model_sites(cfg), cfg["model"].get("fusion", "attention")
    parts = [] if fusion == "attention" else [fusion]
    return "_".join(parts + ([attention_label(model_attention(cfg), sites)] if sites else []))


def other_sites(cfg: dict) -> set[str]:
    """The sites that only other models have: conf/attention/*.yaml names them all."""
    every: set[str] = set()
    for settings in choices("model").values():
        try:
            every |= class_of("model", settings, nn.Module).sites.keys()
        except ConfigError:
            continue  # a file that builds on another one
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


def with_defaults(cfg: dict[str, Any]) -> dict[str, Any]:
    """The configuration with the defaults of the keys that the program reads itself, so that each of them is there.

    Groups that are missing altogether, such as an empty `logger` or one that was removed, become empty.
    """
    full = cfg | {group: cfg.get(group) or {} for group in GROUPS}
    for group, cls in {"data": DataConfig, **task_groups(full)}.items():
        defaults = {field.name: field.default for field in fields(cls) if field.default is not MISSING}
        full[group] = defaults | (full.get(group) or {})
    full["attention"] = {"prior": {}, "scorer": {}, "options": {}} | full["attention"]
    return full


def task_groups(cfg: dict[str, Any]) -> dict[str, type]:
    """The dataclasses of the groups of keys that the configured task declares."""
    try:
        task = class_of("task", cfg["task"], Recipe)
    except ConfigError:
        return {"task": TaskConfig}
    return {"task": task.Config, **task.groups}


def max_steps(cfg: dict) -> int | None:
    """The limit of updates: trainer.max_steps, or task.max_steps if the trainer has no limit at all."""
    steps, epochs = (limit(cfg["trainer"].get(key)) for key in ("max_steps", "max_epochs"))
    return steps or (None if epochs else cfg["task"]["max_steps"])


def limit(value: int | None) -> int | None:
    """A limit of the trainer; None for null and -1, which both mean that there is none."""
    return None if value in (None, -1) else value


def leaves(cfg: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """('trainer.max_steps', value) for every value of a nested dict."""
    for key, value in cfg.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
