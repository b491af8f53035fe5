"""The recorded settings of a run, changed by typed keys: to evaluate the run again, or to continue it in its folder.
The current defaults play no part."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, flag_override

from attnorm.choices import CONF
from attnorm.config.command import cannot_be_set
from attnorm.config.compose import Setting, compose_files, escaped, remove, settings_of
from attnorm.errors import ConfigError, Problem, RunError, in_yaml, is_in, unknown
from attnorm.imports import nearest, texts
from attnorm.parts import class_of, names_of
from attnorm.run.folder import EVENTS
from attnorm.run.run import Run
from attnorm.run.trust import check_names, own_cache
from attnorm.settings import CleaningConfig, DataConfig, leaves, not_recordable

log = logging.getLogger(__name__)

OVERRIDABLE = ("data", "paths")  # what a finished run can be scored with anew, besides `scoring` of its task
SHARED = (*names_of(DataConfig), *names_of(CleaningConfig))
RESUMABLE = ("trainer", "run", "callbacks", "logger", "paths")  # groups that may get another file on resuming
DEVICES = ("accelerator", "devices", "num_nodes", "strategy")  # all that another file of the group trainer changes
OWN_KEYS = ("resume", "trust_code")
AFRESH = ("paths", "resume", "ckpt_path", "hydra")  # what a new run does not take from another one


def changed(recorded: Mapping[str, Any], changes: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The settings with which a finished run is evaluated. `data=<source>` takes that source's file from conf/data, but
    keeps how the run cleaned its text and cut its batches. Raises ConfigError for a key that is not there."""
    from attnorm.tasks.task import Task

    cfg = OmegaConf.create(escaped(recorded))
    problems: list[str] = []
    allowed = [*OVERRIDABLE, *class_of("task", recorded["task"], Task).scoring]
    for key, value in sorted(changes, key=lambda change: "." in change[0]):  # groups first
        if not any(is_in(key, group) for group in allowed):
            problems.append(cannot_be_set(key, allowed))
        elif key == "data":
            kept = {name: cfg.data[name] for name in SHARED if name in cfg.data}
            cfg.data = {**group_of_file("data", value), **kept}
        elif "." not in key:
            problems.append(f"{key}={value}: type single keys here, such as {key}.<name>=<value>")
        elif OmegaConf.select(cfg, key, default="absent") == "absent" and key not in (
            names := dict(leaves(_plain(cfg)))
        ):
            problems.append(unknown(key, Problem(key, f"the run's config has no such key.{nearest(key, names)}")))
        else:
            OmegaConf.update(cfg, key, value)
    problems += [f"{key}: must be given, as in {key}=<value>" for key in OmegaConf.missing_keys(cfg)]
    if problems:
        raise ConfigError(problems)
    return {**_plain(cfg), "ckpt_path": None, "resume": None}  # nothing is resumed here


def recorded_settings(folder: Path, arguments: list[str], *, is_first: bool = True) -> tuple[dict[str, Any], list[str]]:
    """The settings with which the run in a folder continues, and the overrides that were typed for that.

    The settings are those of run.json, changed by `key=value` arguments. Arguments that choose a file of a group are
    allowed for the groups that may change (RESUMABLE). is_first: whether this process is the first one of a distributed
    run; the others may find settings that the first one has changed already.

    Raises RunError for a folder that is not a run's, and ConfigError for arguments that have no meaning here.
    """
    if options := [argument for argument in arguments if argument.startswith("-")]:
        raise ConfigError([f"{option}: has no meaning when a run continues in its folder" for option in options])
    typed = settings_of(arguments)
    is_trusted = any(setting.key == "trust_code" and setting.value is True for setting in typed)
    if (folder / EVENTS).is_file():
        raise RunError(f"resume={folder}: this is a sweep folder; to continue the sweep, repeat its command")
    run = Run(folder)
    run.check("resume")
    cfg = OmegaConf.create(escaped(run.config))
    problems: list[str] = []
    changes: list[str] = []
    for argument, setting in zip(arguments, typed, strict=True):
        if setting.key not in OWN_KEYS:
            changes.append(argument.lstrip("+"))
            problems += [problem for problem in _apply(setting, cfg) if is_first or not setting.removes]
    if problems:
        raise ConfigError(problems)
    settings, keys = _plain(cfg), [setting.key for setting in typed]
    if problems := [*not_recordable(settings)]:
        raise ConfigError(problems)
    check_names(settings, is_trusted, training=True, typed=keys)
    paths = own_cache(settings.get("paths", {}), is_trusted, keys)
    return {**settings, "paths": paths, "resume": str(folder)}, changes


def from_run(folder: Path, arguments: Sequence[str]) -> Callable[[tuple[str, ...], tuple[Path, ...]], DictConfig]:
    """What composes the files of a new run with the settings of another one, in place of `compose_files`: groups of
    which a file is chosen are those of the file, and all others have the settings of the run, but for AFRESH.

    Raises RunError for a folder that is not a run's, and ConfigError for code that is not trusted, and for files that
    set keys of several groups.
    """
    typed = settings_of(arguments)
    message = f"sets keys of several groups, which are those of from={folder} here; leave one of them out"
    if problems := [Problem(key, message, value) for key, value, _ in typed if key in ("task", "experiment", "debug")]:
        raise ConfigError(problems)
    run = Run(folder)
    run.check("from")
    is_trusted = any(setting.key == "trust_code" and setting.value is True for setting in typed)
    check_names(run.config, is_trusted, training=True, typed=[setting.key for setting in typed])
    settings = {**run.config, "run": {**(run.config.get("run") or {}), "ladder": None}}

    def composed_files(files: tuple[str, ...], folders: tuple[Path, ...]) -> DictConfig:
        cfg = compose_files(files, folders).copy()
        chosen = {re.split("[@=/]", file.lstrip("+~"))[0] for file in files}
        with flag_override(cfg, ["struct", "readonly"], False):
            for key in {*map(str, cfg), *settings} - {*AFRESH, *chosen}:
                cfg.pop(key, None)
                if key in settings:
                    cfg[key] = escaped(settings[key])
        return cfg

    return composed_files


def without_unused(settings: dict[str, Any], typed: Sequence[str]) -> dict[str, Any]:
    """The settings of a new run, without the options of normalizers that another run had and this one has nowhere.

    typed: what was typed for this run, whose options are kept and refused if they have no effect.
    """
    attention = settings["attention"]
    options, keys = attention.get("options") or {}, [setting.key for setting in settings_of(typed)]
    used = {text for key, text in texts(attention) if not is_in(key, "options")}
    used |= {name for name in options for key in keys if is_in(key, f"attention.options.{name}")}
    kept = {name: of_name for name, of_name in options.items() if name in used}
    return {**settings, "attention": {**attention, "options": kept}}


def _apply(setting: Setting, cfg: Any) -> Iterator[Problem]:
    """Changes the settings of a run that continues, and yields a problem if that is not possible."""
    key, value, removes = setting
    if key == "ckpt_path" or key.startswith("hydra."):
        yield Problem(key, "cannot be set when a run continues in its folder", value)
    elif removes:
        group, _, name = key.rpartition(".")
        if group and name in (OmegaConf.select(cfg, group) or ()):
            remove(cfg, key)
        else:
            yield Problem.about(key, f"~{key}: the run being resumed has no such entry to remove")
    elif key in RESUMABLE:
        chosen, kept = group_of_file(key, str(value)), _plain(cfg).get(key) or {}
        if key == "trainer":
            of_file = {name: chosen[name] for name in DEVICES if name in chosen}
            chosen = {name: setting for name, setting in kept.items() if name not in DEVICES} | of_file
        cfg[key] = chosen
        before, now = (dict(leaves({key: _plain(OmegaConf.create(group))})) for group in (kept, chosen))
        differing = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        resets = (Problem(name, f"was {in_yaml(before.get(name))}", now.get(name)) for name in differing)
        if differing:
            log.warning("%s=%s changes %s", key, value, "; ".join(resets))
    elif "." in key or not isinstance(cfg.get(key, {}), Mapping):
        OmegaConf.update(cfg, key, value, force_add=True)
    else:
        allowed = f"single keys such as run.save_every_steps=100, and files of the groups {', '.join(RESUMABLE)}"
        yield Problem(key, f"cannot be set when a run continues in its folder; allowed: {allowed}", value)


def _plain(cfg: Any, resolve: bool = True) -> dict[str, Any]:
    """The values of an OmegaConf mapping."""
    content: Any = OmegaConf.to_container(cfg, resolve=resolve)
    return content


def group_of_file(group: str, name: str) -> dict[str, Any]:
    """conf/<group>/<name>.yaml with its own defaults."""
    return _plain(compose_files((f"{group}={name}",), (CONF,))[group], resolve=False)
