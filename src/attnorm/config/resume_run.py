"""`resume=`: which run continues in its folder, from which checkpoint, and with which settings."""

import csv
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from attnorm.config.arguments import as_typed, escaped
from attnorm.config.checkpoint_files import checkpoints_of, read_checkpoint
from attnorm.config.overrides import compose_group, plain
from attnorm.config.resume import changed_settings
from attnorm.config.run_config import EVENTS, FILE, read_config
from attnorm.config.run_key import run_key
from attnorm.config.run_state import RunState, state_of
from attnorm.config.trust import check_names, own_cache
from attnorm.errors import CheckpointError, ConfigError, Problem, RunError

log = logging.getLogger(__name__)
GROUPS = ("trainer", "run", "callbacks", "logger", "paths")  # other files of these groups may be chosen
OWN_KEYS = ("resume", "trust_code")


def recorded_settings(folder: Path, arguments: list[str], conf: Path) -> tuple[dict[str, Any], list[str]]:
    """The settings with which the run in a folder continues, and the overrides that were typed for that.

    The settings are those of config.yaml, changed by `key=value` arguments. Arguments that choose a file of a group are
    allowed for the groups that may change (GROUPS). arguments: as `arguments.readable` returns them.

    Raises RunError for a folder that is not a run's, and ConfigError for arguments that have no meaning here.
    """
    if options := [argument for argument in arguments if argument.startswith("-")]:
        raise ConfigError([f"{option}: has no meaning when a run continues in its folder" for option in options])
    typed = OverridesParser.create().parse_overrides(arguments)
    is_trusted = any(it.key_or_group == "trust_code" and it.value() is True for it in typed)
    if not folder.is_dir():
        raise RunError(f"resume={folder}: no such folder")
    if (folder / EVENTS).is_file():
        raise RunError(f"resume={folder}: this is a sweep folder; to continue the sweep, repeat its command")
    if not (folder / FILE).is_file():
        raise RunError(f"resume={folder}: no {FILE} there, so it is not a run folder")
    if not (folder / FILE).stat().st_size:
        raise RunError(f"resume={folder}: the run ended before it had recorded its settings; start it anew")
    recorded = read_config(folder)
    cfg = OmegaConf.create(escaped(recorded.plain()))
    problems: list[str] = []
    changes: list[str] = []
    for override in typed:
        if override.key_or_group in OWN_KEYS:
            continue
        changes += as_typed([override.input_line or ""])
        problems += _apply(override, cfg, conf)
    if problems:
        raise ConfigError(problems)
    settings, keys = plain(cfg), [override.key_or_group for override in typed]
    check_names(settings, is_trusted, training=True, typed=keys)
    return {**settings, "paths": own_cache(settings["paths"], is_trusted, keys), "resume": str(folder)}, changes


def _apply(override: Override, cfg: Any, conf: Path) -> Iterator[Problem]:
    """Applies one override to a recorded configuration, and yields a problem if it cannot be applied."""
    key, value = override.key_or_group, None if override.is_delete() else override.value()
    if override.is_sweep_override() or key.startswith("hydra."):
        yield Problem(key, "cannot be set when a run continues in its folder", value)
    elif override.is_delete():
        group, _, name = key.rpartition(".")
        entries = OmegaConf.select(cfg, group) if group else {}
        if isinstance(entries, Mapping) and name in entries:
            OmegaConf.update(cfg, group, {it: inner for it, inner in entries.items() if it != name}, merge=False)
        else:
            yield Problem.about(key, f"~{key}: the run being resumed has no such entry to remove")
    elif key in GROUPS:
        cfg[key] = compose_group(conf, key, str(value))
    elif "." in key or not isinstance(cfg.get(key, {}), Mapping):
        OmegaConf.update(cfg, key, value, force_add=True)
    else:
        allowed = f"single keys such as run.save_every_steps=100, and files of the groups {', '.join(GROUPS)}"
        yield Problem(key, f"cannot be set when a run continues in its folder; allowed: {allowed}", value)


def newest_unfinished(cfg: Mapping[str, Any], label: str) -> Path | None:
    """The newest run of the same resolved configuration that has started and ended without finishing.

    Raises RunError if a newer one is still going.
    """
    parent, key = Path(cfg["paths"]["log_dir"]) / cfg["task"]["name"] / label, run_key(cfg)
    configs = sorted(parent.glob(f"*/{FILE}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in configs:
        try:
            if not path.stat().st_size or run_key(read_config(path.parent)) != key:
                continue
            state = state_of(path.parent)
        except RunError as error:
            log.warning("resume=auto leaves out a folder: %s", error)
            continue
        if state is RunState.RUNNING:
            another = "wait until it has ended, or type resume=null to start another run with these settings"
            raise RunError(f"resume=auto: {path.parent} is still going; {another}")
        if state.is_unfinished:
            return path.parent
    return None


def newest_good(folder: Path) -> Path | None:
    """The checkpoint from which the run in a folder continues; None if it has not saved any.

    Damaged checkpoints, and those of other runs, are skipped with a warning. Raises RunError if there are checkpoints
    but none can be used.
    """
    files, cfg, reasons = checkpoints_of(folder / "checkpoints"), read_config(folder).plain(), []
    for path in [*files[:1], *sorted(files[1:], key=_update, reverse=True)]:  # last.ckpt is the newest one
        try:
            foreign = changed_settings(cfg, path)
        except CheckpointError as error:
            reasons.append(str(error))
            continue
        if not foreign:
            for reason in reasons:
                log.warning("%s; continuing from %s", reason, path.name)
            return path
        reasons.append(f"{path}: this is a checkpoint of another run: {foreign[0]}")
    if files:
        raise RunError(f"resume={folder}: none of its checkpoints can be used: {'; '.join(reasons)}")
    start = cfg.get("ckpt_path")  # a run that starts from a checkpoint takes over its curves first
    if (step := last_logged(folder)) > (max(0, _update(Path(start))) if start else 0):
        raise RunError(
            f"resume={folder}: the run has logged update {step:,}, but {folder / 'checkpoints'} has no checkpoints. Is "
            "a disk missing? To train from the beginning, start a new run"
        )
    return None


def last_logged(folder: Path) -> int:
    """The last update in metrics.csv, or 0. A checkpoint is saved before the first update is logged."""
    try:
        with open(folder / "metrics.csv", newline="", encoding="utf-8") as file:
            return max((int(row["step"] or 0) for row in csv.DictReader(file)), default=0)
    except FileNotFoundError:
        return 0
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise RunError(f"{folder / 'metrics.csv'}: cannot be read: {error}") from error


def _update(path: Path) -> int:
    """The update that a checkpoint is from; -1 for one that is damaged."""
    try:
        return read_checkpoint(path)["global_step"]
    except CheckpointError:
        return -1
