"""What follows from a configuration: the attention sites of its model, its attention tables, the label of its run."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from torch import nn

from attnorm.attention.labels import attention_label
from attnorm.attention.placement import missing_facts
from attnorm.attention.tables import check_attention, resolve_attention
from attnorm.choices import choices
from attnorm.config.run_settings import RunSettings
from attnorm.errors import ConfigError
from attnorm.parts import class_of
from attnorm.resolved import ResolvedConfig
from attnorm.tasks.task import DataConfig, Task, TaskConfig, model_settings

GROUPS = (  # of keys that every run has
    *("task", "model", "attention", "data", "tokenizer", "optimizer", "scheduler"),
    *("trainer", "run", "callbacks", "logger", "paths"),
)


def model_class(cfg: Mapping[str, Any]) -> Any:
    """The class of the configured model. Raises ConfigError if it cannot be imported."""
    return class_of("model", cfg["model"], nn.Module)


def model_sites(cfg: Mapping[str, Any]) -> dict[str, bool]:
    """The attention sites that the configured model uses, each with whether it is autoregressive."""
    cls = model_class(cfg)
    return cls.sites_of(model_settings(cfg["model"])) if hasattr(cls, "sites_of") else cls.sites


def model_layers(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The number of layers at each attention site, as far as the model says it (an optional method `site_layers`)."""
    cls = model_class(cfg)
    return cls.site_layers(model_settings(cfg["model"])) if hasattr(cls, "site_layers") else {}


def model_heads(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The number of heads at each attention site: `n_heads`, unless the model has an optional method `site_heads`."""
    cls, settings = model_class(cfg), model_settings(cfg["model"])
    if hasattr(cls, "site_heads"):
        return cls.site_heads(settings)
    return dict.fromkeys(model_sites(cfg), settings.get("n_heads"))


def model_attention(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The attention tables with an explicit entry for each site of the configured model, as `resolve_attention`."""
    return resolve_attention(cfg["attention"], model_sites(cfg))


def attention_problems(cfg: dict, typed: Collection[str] | None = None) -> list[str]:
    """Every problem of the attention tables for the configured model; typed: as in `check_attention`."""
    problems = check_attention(cfg["attention"], model_sites(cfg), model_layers(cfg), typed, model_heads(cfg))
    return problems or [*unknown_facts(cfg), *missing_vocabularies(cfg)]


def missing_vocabularies(cfg: Mapping[str, Any]) -> Iterator[str]:
    """Banks of token embeddings at sites where the configured model has none."""
    with_tokens = getattr(model_class(cfg), "token_sites", ())
    for site, bank in model_attention(cfg).get("bank", {}).items():
        if bank == "vocabulary" and site not in with_tokens:
            yield f"attention.bank.{site}=vocabulary: the model has no token embeddings at this site; use templates"


def unknown_facts(cfg: Mapping[str, Any]) -> Iterator[str]:
    """Priors that need to know something of the input that the configured model does not tell them."""
    for key, facts in missing_facts(model_attention(cfg), model_sites(cfg), facts_of(cfg.get("task") or {}, cfg)):
        fitting = [
            f"task={name}" for name, task in choices("task").items() if {*facts.split(", ")} <= {*facts_of(task, cfg)}
        ]
        instead = f"; use {' or '.join(fitting)}" if fitting else ""
        yield f"{key}: needs {facts}, which the model of this task does not provide{instead}"


def facts_of(task: Mapping[str, Any], cfg: Mapping[str, Any]) -> tuple[str, ...]:
    """The facts that the configured model passes to priors in a task, () if there is no such task."""
    try:
        return class_of("task", task, Task).provides(model_class(cfg))
    except ConfigError:
        return ()


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


def resolve(cfg: dict[str, Any]) -> ResolvedConfig:
    """A configuration in which `validate.check` finds no problem, with what follows from it."""
    return ResolvedConfig(record_of(cfg), model_sites(cfg), run_label(cfg))


def record_of(cfg: dict) -> dict:
    """The configuration that a run keeps: with its attention tables resolved."""
    return {**cfg, "attention": model_attention(cfg)}


def with_defaults(cfg: dict[str, Any]) -> dict[str, Any]:
    """The configuration with the defaults of the keys that the program reads itself, so that each of them is there.

    Groups that are missing altogether, such as an empty `logger` or one that was removed, become empty.
    """
    full = {"resume": None, "ckpt_path": None} | cfg | {group: cfg.get(group) or {} for group in GROUPS}
    for group, cls in {"data": DataConfig, "run": RunSettings, **task_groups(full)}.items():
        defaults = {field.name: field.default for field in fields(cls) if field.default is not MISSING}
        full[group] = defaults | (full.get(group) or {})
    full["attention"] = {"prior": {}, "scorer": {}, "bank": {}, "options": {}} | full["attention"]
    return full


def task_groups(cfg: dict[str, Any]) -> dict[str, type]:
    """The dataclasses of the groups of keys that the configured task declares."""
    try:
        task = class_of("task", cfg["task"], Task)
    except ConfigError:
        return {"task": TaskConfig}
    return {"task": task.Config, **task.groups}


def max_steps(cfg: dict) -> int | None:
    """The limit of updates: trainer.max_steps, or task.max_steps if the trainer has no limit at all."""
    steps, epochs = (limit(cfg["trainer"].get(key)) for key in ("max_steps", "max_epochs"))
    return steps or (None if epochs else cfg["task"]["max_steps"])


def limit(value: int | None) -> int | None:
    """A limit of the trainer; None for null and -1, which both mean no limit."""
    return None if value in (None, -1) else value
