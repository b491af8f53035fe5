"""What follows from a configuration: the attention sites of its model, its attention tables, the label of its run."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from torch import nn

from attnorm.attention.tables import attention_label, check_attention, resolve_attention
from attnorm.imports import find
from attnorm.models import MODELS


def model_class(cfg: dict) -> type[nn.Module]:
    """The class of the configured model. Raises ValueError for an unknown name."""
    return find("model", cfg["model"]["name"], MODELS, nn.Module)


def model_sites(cfg: dict) -> dict[str, bool]:
    """The attention sites that the configured model uses, each with whether it is autoregressive."""
    cls = model_class(cfg)
    return cls.sites_of(cfg["model"]) if hasattr(cls, "sites_of") else cls.sites


def model_layers(cfg: dict) -> dict[str, int]:
    """The number of layers at each attention site, as far as the model says it (an optional method `site_layers`)."""
    cls = model_class(cfg)
    return cls.site_layers(cfg["model"]) if hasattr(cls, "site_layers") else {}


def model_attention(cfg: dict) -> dict:
    """The attention tables with an explicit entry for each site of the configured model, as `resolve_attention`."""
    return resolve_attention(cfg["attention"], model_sites(cfg))


def attention_problems(cfg: dict, typed: Collection[str] | None = None) -> list[str]:
    """Every problem of the attention tables for the configured model; typed: as in `check_attention`."""
    return check_attention(cfg["attention"], model_sites(cfg), model_layers(cfg), typed)


def typed_keys(overrides: Sequence[str]) -> set[str]:
    """The keys that overrides set: {"attention.encoder"}, and also for `attention={encoder: dnas}`."""

    def keys(key: str, value: Any) -> Iterator[str]:
        if not isinstance(value, dict):
            yield key
        else:
            for name, inner in value.items():
                yield from keys(f"{key}.{name}", inner)

    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return {key for it in parsed if not it.is_delete() for key in keys(it.key_or_group, it.value())}


def run_label(cfg: dict) -> str:
    """The label that a run is filed under: its attention; without the attention that fuses, the fusion too."""
    sites, fusion = model_sites(cfg), cfg["model"].get("fusion", "attention")
    parts = [] if fusion == "attention" else [fusion]
    return "_".join(parts + ([attention_label(model_attention(cfg), sites)] if sites else []))


def record_of(cfg: dict) -> dict:
    """The configuration that a run keeps: with its attention tables resolved."""
    return {**cfg, "attention": model_attention(cfg)}


def max_steps(cfg: dict) -> int | None:
    """The limit of updates: trainer.max_steps, or task.max_steps when the trainer has no limit at all."""
    trainer = cfg["trainer"]
    return trainer["max_steps"] or (None if trainer["max_epochs"] else cfg["task"]["max_steps"])
