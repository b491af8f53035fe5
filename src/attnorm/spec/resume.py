"""`resume=`: which run continues in its folder, from which checkpoint, and with which settings."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from attnorm.errors import ConfigError, Problem, RunError, in_yaml
from attnorm.run.folder import EVENTS
from attnorm.run.run import Run
from attnorm.run.trust import check_names, own_cache
from attnorm.spec.compose import as_typed, escaped
from attnorm.spec.overrides import compose_group, plain
from attnorm.spec.settings import leaves

log = logging.getLogger(__name__)

GROUPS = ("trainer", "run", "callbacks", "logger", "paths")  # other files of these groups may be chosen
DEVICES = ("accelerator", "devices", "num_nodes", "strategy")  # all that another file of the group trainer changes
OWN_KEYS = ("resume", "trust_code")


def recorded_settings(folder: Path, arguments: list[str], *, is_first: bool = True) -> tuple[dict[str, Any], list[str]]:
    """The settings with which the run in a folder continues, and the overrides that were typed for that.

    The settings are those of config.yaml, changed by `key=value` arguments. Arguments that choose a file of a group are
    allowed for the groups that may change (GROUPS). arguments: as `arguments.readable` returns them. is_first: whether
    this process is the first of a distributed run; the others may find settings that the first one has changed already.

    Raises RunError for a folder that is not a run's, and ConfigError for arguments that have no meaning here.
    """
    if options := [argument for argument in arguments if argument.startswith("-")]:
        raise ConfigError([f"{option}: has no meaning when a run continues in its folder" for option in options])
    typed = OverridesParser.create().parse_overrides(arguments)
    is_trusted = any(it.key_or_group == "trust_code" and it.value() is True for it in typed)
    if (folder / EVENTS).is_file():
        raise RunError(f"resume={folder}: this is a sweep folder; to continue the sweep, repeat its command")
    run = Run(folder)
    run.check("resume")
    cfg = OmegaConf.create(escaped(run.config))
    problems: list[str] = []
    changes: list[str] = []
    for override in typed:
        if override.key_or_group in OWN_KEYS:
            continue
        changes += as_typed([override.input_line or ""])
        problems += [it for it in _apply(override, cfg) if is_first or not override.is_delete()]
    if problems:
        raise ConfigError(problems)
    settings, keys = plain(cfg), [override.key_or_group for override in typed]
    check_names(settings, is_trusted, training=True, typed=keys)
    paths = own_cache(settings.get("paths", {}), is_trusted, keys)
    return {**settings, "paths": paths, "resume": str(folder)}, changes


def _apply(override: Override, cfg: Any) -> Iterator[Problem]:
    """Applies one override to a recorded configuration, and yields a problem if it cannot be applied."""
    key, value = override.key_or_group, None if override.is_delete() else override.value()
    if override.is_sweep_override() or key == "ckpt_path" or key.startswith("hydra."):
        yield Problem(key, "cannot be set when a run continues in its folder", value)
    elif override.is_delete():
        group, _, name = key.rpartition(".")
        entries = OmegaConf.select(cfg, group) if group else {}
        if isinstance(entries, Mapping) and name in entries:
            OmegaConf.update(cfg, group, {it: inner for it, inner in entries.items() if it != name}, merge=False)
        else:
            yield Problem.about(key, f"~{key}: the run being resumed has no such entry to remove")
    elif key in GROUPS:
        chosen, kept = compose_group(key, str(value)), plain(cfg).get(key) or {}
        if key == "trainer":
            of_file = {name: chosen[name] for name in DEVICES if name in chosen}
            chosen = {name: setting for name, setting in kept.items() if name not in DEVICES} | of_file
        cfg[key] = chosen
        before, now = (dict(leaves({key: plain(OmegaConf.create(it))})) for it in (kept, chosen))
        differing = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        resets = (Problem(name, f"was {in_yaml(before.get(name))}", now.get(name)) for name in differing)
        if differing:
            log.warning("%s=%s changes %s", key, value, "; ".join(resets))
    elif "." in key or not isinstance(cfg.get(key, {}), Mapping):
        OmegaConf.update(cfg, key, value, force_add=True)
    else:
        allowed = f"single keys such as run.save_every_steps=100, and files of the groups {', '.join(GROUPS)}"
        yield Problem(key, f"cannot be set when a run continues in its folder; allowed: {allowed}", value)
